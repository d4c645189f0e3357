"""Helpers for data and rooms of every floor: whole numbers, processes, the garbage collector,
notebook cells.
"""
