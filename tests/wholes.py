"""Tensors by the wholes that they are parts of."""

from collections import Counter
from collections.abc import Callable

from hosim.graph import Graph, Tensor


def wholes(graph: Graph, which: Callable[[Tensor], bool] = lambda tensor: True) -> dict[str, int]:
    """The bytes of each whole of the tensors that are meant, by its name."""
    found = Counter[str]()
    for tensor in graph.tensors:
        if which(tensor):
            found[tensor.whole] += tensor.size_bytes
    return dict(found)
