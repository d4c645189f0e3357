"""HyperOffload's refinement: candidates, selection, placement, local search, and the loop that keeps the budget."""
