"""Exact schedules of small graphs, by constraint programming: the plan with the least makespan, and its proof."""
