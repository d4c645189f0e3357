"""Describe what data and rooms of every floor use: whole numbers, processes, the collector, cells
of a notebook.
"""
