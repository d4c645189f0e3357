"""Plans on torch: ``lower`` captures, runs and trains with them, ``gpu`` is the kit for GPU
machines.
"""
