"""What can be said of a graph, a plan or a result without running a replay."""
