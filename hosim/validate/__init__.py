"""Trace against replay: per op, per transfer, makespan, memory; and recordings of allocators."""
