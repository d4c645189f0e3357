"""Rewrites of the graph that a plan may make: another order of its ops, and ops that run again instead of moving data."""
