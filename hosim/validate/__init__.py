"""Replays against recordings: times of ops and transfers, makespan, memory; and recordings of allocators."""
