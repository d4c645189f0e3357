"""The values of a lowered graph while it runs: what steps keep for later ones, and calls compiled
once for all runs. Imports torch.

A step's call makes the views that it needs from kept values, which costs the host a look-up for
each argument and not a walk of the graph.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.fx import Node
from torch.fx.node import map_arg

from hosim.on_torch.lower.insert import Lowered


class StepValues:
    """``kept`` has the values of placeholders and steps that later steps need. ``needed`` are all
    that any step needs.
    """

    def __init__(self, lowered: Lowered, needed: set[Node]) -> None:
        self.kept: dict[Node, Any] = {}
        self._lowered = lowered
        self._needed = needed
        steps = [node for node in lowered.module.graph.nodes if node.name in lowered.op_of]
        self._items = {node: tuple(_items(node, (), needed)) for node in steps}
        self._calls = _Calls(self, steps).compiled()

    def value(self, node: Node) -> Any:
        """The value of a node: kept if a step made it, else made now (a view, a number)."""
        if node in self.kept:
            return self.kept[node]
        if self.is_attribute(node):
            return self.attribute(node)
        if self.is_cache_op(node):
            return self.value(node.args[0])
        assert callable(node.target)
        return node.target(*map_arg(node.args, self.value), **map_arg(node.kwargs, self.value))

    def call(self, node: Node) -> Any:
        """The result of a step that computes."""
        return self._calls[node](self.kept)

    def keep(self, node: Node, value: Any) -> None:
        """Keep a step's results for later steps, each of several separately, so that each may be
        freed separately.
        """
        if node in self._needed:
            self.kept[node] = value
        for item, path in self._items[node]:
            one = value
            for index in path:
                one = one[index]
            self.kept[item] = one

    def drop(self, nodes: Sequence[Node]) -> None:
        """Forget values."""
        for node in nodes:
            self.kept.pop(node, None)

    def returned(self, node: Node) -> tuple[Any, ...]:
        """The results of the graph, from its output node."""
        returned = map_arg(node.args[0], self.value)
        return tuple(returned) if isinstance(returned, (list, tuple)) else (returned,)

    def is_kept(self, node: Node) -> bool:
        """Return whether a node's value is kept for a step."""
        return node in self._needed

    def is_attribute(self, node: Node) -> bool:
        """Return whether a node is an attribute of the module."""
        return bool(node.op == "get_attr")

    def attribute(self, node: Node) -> Any:
        """An attribute of the module."""
        return operator.attrgetter(str(node.target))(self._lowered.module)

    def is_cache_op(self, node: Node) -> bool:
        """Return whether a node is a cache op, whose value is that of its argument."""
        return node.name in self._lowered.cache_op_of


class _Calls:
    """The steps' calls as one text of Python, each a function of the kept values; other nodes,
    targets and constants are names in it.
    """

    def __init__(self, values: StepValues, steps: Sequence[Node]) -> None:
        self._values = values
        self._steps = steps
        self._names: dict[str, Any] = {}
        self._named: dict[int, str] = {}

    def compiled(self) -> Mapping[Node, Callable[[Mapping[Node, Any]], Any]]:
        """The functions by step."""
        lines = []
        for i, step in enumerate(self._steps):
            made: dict[Node, str] = {}
            lines.append(f"def step_{i}(kept):")
            lines += [f"    {line}" for line in self._lines(step, made)]
        exec(compile("\n".join(lines), "<steps of a lowered graph>", "exec"), self._names)
        return {step: self._names[f"step_{i}"] for i, step in enumerate(self._steps)}

    def _lines(self, step: Node, made: dict[Node, str]) -> Iterator[str]:
        """Each view once, before what needs it, and the call itself last; no recursion, because
        chains of views may be long.
        """
        path = [step]
        while path:
            node = path[-1]
            missing = [n for n in self._needs(node, step) if n not in made and n is not node]
            path += missing
            if missing:
                continue
            path.pop()
            if node in made:
                continue
            if node is not step and self._values.is_kept(node):
                made[node] = f"kept[{self._name(node)}]"
            elif self._values.is_attribute(node):
                made[node] = self._name(self._values.attribute(node))
            elif self._values.is_cache_op(node):
                source = node.args[0]
                assert isinstance(source, Node)
                made[node] = made[source]
            else:
                positional = [self._text(argument, made) for argument in node.args]
                named = (
                    [f"**{self._text(node.kwargs, made)}"] if node.kwargs else []
                )  # a keyword of torch may be one of Python
                call = f"{self._name(node.target)}({', '.join([*positional, *named])})"
                if node is step:
                    yield f"return {call}"
                else:
                    made[node] = f"v{len(made)}"
                    yield f"{made[node]} = {call}"

    def _needs(self, node: Node, step: Node) -> Sequence[Node]:
        if node is not step and (self._values.is_kept(node) or self._values.is_attribute(node)):
            return ()
        if node is not step and self._values.is_cache_op(node):
            return tuple(node.all_input_nodes[:1])
        return tuple(node.all_input_nodes)

    def _text(self, value: Any, made: Mapping[Node, str]) -> str:
        if isinstance(value, Node):
            return made[value]
        if isinstance(value, list):
            return f"[{', '.join(self._text(one, made) for one in value)}]"
        if isinstance(value, tuple):
            return f"({''.join(self._text(one, made) + ', ' for one in value)})"
        if isinstance(value, slice):
            return f"slice({', '.join(self._text(one, made) for one in (value.start, value.stop, value.step))})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key!r}: {self._text(one, made)}' for key, one in value.items())}}}"
        return (
            repr(value) if value is None or type(value) in (bool, int, str) else self._name(value)
        )

    def _name(self, value: Any) -> str:
        """A name for an object; the same for the same one."""
        if id(value) not in self._named:
            self._named[id(value)] = name = f"c{len(self._named)}"
            self._names[name] = value
        return self._named[id(value)]


def _items(
    node: Node, path: tuple[Any, ...], needed: set[Node]
) -> Iterator[tuple[Node, tuple[Any, ...]]]:
    """The single results of a step that has several, as far as steps need them, with where each is
    in the step's value.
    """
    for user in node.users:
        if user.target is operator.getitem and user.args[0] is node:
            inner = (*path, user.args[1])
            if user in needed:
                yield user, inner
            yield from _items(user, inner, needed)
