"""The planners: HyperOffload's refinement, exact search for small graphs, and rewrites of the graph
itself.
"""
