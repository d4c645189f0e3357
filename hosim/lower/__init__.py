"""A plan as a torch graph that runs: capture, cache ops as nodes, executors, bridges. Nothing here imports torch before it is called."""
