"""The changes that a plan may make to the graph itself: other processors for ops, another order of
ops, and recomputation.

An op that may run on several processors (``also_on``) runs on its own ``processor`` unless a plan
chooses another. There its duration comes from ``also_on`` or the cost model, and it joins the
stream of that processor: the one named after its tier, or ``compute`` on the device.

A recomputed op is a copy of an op of the workload. Its outputs are new tensors (``a@f~2`` is ``a``
as made by op ``f~2``), and every later user of ``a`` uses the new one. So the first ``a`` is
released after its last user before the copy, like any tensor (docs/contract.md, rule 1). Dropping
it needs no cache op: all parts of hosim see two tensors with short lives, not one with a long life.

An edited graph computes the same as the workload: :func:`edited` refuses a change after which an op
would read other contents.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hosim.data.columns import Ops, Tensors
from hosim.errors import GraphError
from hosim.graph import DEVICE, MAIN_STREAM, Graph, Op, Tensor

RECOMPUTE, BACKWARD = "recompute.", "backward."
"""The prefixes of op names in these phases of a training step."""

RANDOM_KINDS = frozenset(
    {
        "random",
        "rand",
        "randn",
        "randint",
        "dropout",
        "native_dropout",
        "bernoulli",
        "normal",
        "multinomial",
    }
)
"""Kinds of ops whose results differ from run to run. They are recomputed only if the workload is
:data:`SEEDED`.
"""

COLLECTIVE_KINDS = frozenset(
    {
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "all_to_all",
        "all_to_all_single",
    }
    | {"wait_tensor", "broadcast", "collective", "send", "recv", "barrier"}
)
"""Kinds of ops in which other devices take part. They are never recomputed, because the device
would wait for the others.
"""

CROSSING_KINDS = COLLECTIVE_KINDS - {"wait_tensor", "barrier"}
"""The kinds of collectives that send bytes themselves."""

REPEATABLE, RANDOM, SEEDED = "repeatable", "random", "seeded"
"""Keys of a workload's ``meta``.

``repeatable: true`` states that ops may be recomputed and reordered within their dependencies: they
are functions of what they read, and the graph has all their effects. ``random`` names ops whose
results differ from run to run although their kind does not show it. ``seeded: true`` states that a
recomputed random op draws the same numbers, because the state of its generator is restored, as
``torch.utils.checkpoint`` does.
"""


@dataclass(frozen=True, slots=True)
class Recompute:
    """A recomputation: op ``op`` runs again as op ``name``, just before op ``before``."""

    op: str
    before: str
    name: str


Step = tuple[int, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""An op of an edited graph: the position of its op in the workload, its name, and its inputs,
outputs and mutates. New tensors are numbered after those of the workload.
"""


@dataclass(frozen=True)
class Edits:
    """The edits that make a plan's graph from the workload ``base``.

    First ``processors``, pairs of an op and a processor (``""``: the device), are applied, then
    ``order``, all ops by name (empty: as listed), then ``recompute``.
    """

    base: Graph
    order: tuple[str, ...] = ()
    recompute: tuple[Recompute, ...] = ()
    processors: tuple[tuple[str, str], ...] = ()

    def graph(self) -> Graph:
        """Return the edited graph.

        Raises :class:`GraphError` as :func:`edited` and :func:`on_processors` do.
        """
        return edited(on_processors(self.base, self.processors), self.order, self.recompute)


def is_repeatable(graph: Graph) -> bool:
    """Return whether the graph's ``meta`` states that its ops are :data:`REPEATABLE`."""
    return graph.meta.get(REPEATABLE) is True


def why_once(graph: Graph, op: Op) -> str:
    """Return the reason that an op may not be recomputed, as a predicate, or ``""`` if it may."""
    if op.mutates:
        return (
            f"changes tensor {graph.tensors[op.mutates[0]].name!r} in place: run again, it "
            "would change it twice"
        )
    if is_random(graph, op) and graph.meta.get(SEEDED) is not True:
        return f"is random (kind {op.kind!r}): run again, it would give another result"
    if op.kind in COLLECTIVE_KINDS:
        return f"is of kind {op.kind!r}: run again, it would wait for other devices"
    return ""


def is_random(graph: Graph, op: Op) -> bool:
    """Return whether the op's results differ from run to run, by its kind or by the ``meta``."""
    return op.kind in RANDOM_KINDS or op.name in graph.derived(_random)


def _random(graph: Graph) -> frozenset[str]:
    return named_ops(graph, RANDOM)


def named_ops(graph: Graph, key: str) -> frozenset[str]:
    """Return the op names that the graph's ``meta`` lists under a key."""
    listed = graph.meta.get(key)
    return frozenset(
        [name for name in listed if isinstance(name, str)]
        if isinstance(listed, (list, tuple))
        else ()
    )


def on_processors(graph: Graph, chosen: Sequence[tuple[str, str]]) -> Graph:
    """Return the graph with each op of ``chosen``, pairs of an op and a processor (``""``: the
    device), fixed to its processor.

    Raises :class:`GraphError`, with the path in the plan's file, for an unknown op and for a
    processor that the op may not run on.

    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("a", 30), b.op("f", "relu", outputs=["a"], duration_ns=10, also_on={"ddr": 40})
    >>> op = on_processors(b.build(), [("f", "ddr")]).ops[0]
    >>> op.processor, op.stream, op.duration_ns
    ('ddr', 'ddr', 40)
    """
    if not chosen:
        return graph
    ops = list(graph.ops)
    for name, processor in chosen:
        i = graph.op_index.get(name)
        if i is None:
            raise GraphError(
                f"unknown op {name!r}; expected one of {graph.name!r}", where=f"processors.{name}"
            )
        ops[i] = _on_processor(graph.ops[i], processor)
    return Graph(graph.name, graph.tensors, tuple(ops), graph.meta)


def _on_processor(op: Op, processor: str) -> Op:
    if processor == op.processor:
        return replace(op, also_on=())
    durations = dict(op.also_on)
    if processor not in durations:
        may = ", ".join([name or DEVICE for name in (op.processor, *durations)])
        raise GraphError(
            f"op {op.name!r} may not run on {processor or DEVICE!r} (it may on: {may})",
            where=f"processors.{op.name}",
        )
    return replace(
        op,
        processor=processor,
        stream=processor or MAIN_STREAM,
        duration_ns=durations[processor],
        also_on=(),
    )


def edited(graph: Graph, order: Sequence[str] = (), recompute: Sequence[Recompute] = ()) -> Graph:
    """Return the graph with its ops in ``order``, and those of ``recompute`` run again before their
    ``before``, in the given order.

    It takes O(uses) time. Raises :class:`GraphError`, with the path in the plan's file, for an
    unknown or repeated name, for an order that puts an op before one of its producers, and for an
    op to recompute that has not run yet, may not run again (:func:`why_once`), or would read other
    contents than at first.

    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("a", 30),
    ...     b.op("f", "relu", outputs=["a"]),
    ...     b.op("g", "relu", inputs=["a"]),
    ...     b.op("h", "relu", inputs=["a"]),
    ... )
    >>> again = edited(b.build(), recompute=[Recompute("f", "h", "f~2")])
    >>> [op.name for op in again.ops], [again.tensors[t].name for t in again.ops[3].inputs]
    (['f', 'g', 'f~2', 'h'], ['a@f~2'])
    """
    if order:
        graph = permuted(graph, _positions(graph, order))
    return _Recomputing(graph, recompute).graph() if recompute else graph


def edited_from(base: Graph, graph: Graph, t: int) -> int:
    """Return the tensor of ``base`` to which tensor ``t`` of an edited graph corresponds.

    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("a", 30), b.op("f", "relu", outputs=["a"]), b.op("g", "relu", inputs=["a"])
    >>> base = b.build()
    >>> again = edited(base, recompute=[Recompute("f", "g", "f~2")])
    >>> again.tensors[1].name, edited_from(base, again, 1)
    ('a@f~2', 0)
    """
    if t < len(base.tensors):
        return t
    maker = graph.ops[graph.writers[t][0]].name
    return base.tensors.positions[graph.tensors[t].name.removesuffix(f"@{maker}")]


def permuted(graph: Graph, positions: Sequence[int]) -> Graph:
    """Return the graph with its ops listed in the order of ``positions``, a permutation.

    Raises :class:`GraphError` if an op would come before one of its producers
    (:attr:`Graph.producers`). Otherwise every op reads what the same writer wrote as before.
    """
    place = [-1] * len(graph.ops)
    for new, old in enumerate(positions):
        place[old] = new
    for new, i in enumerate(positions):
        for p in graph.producers[i]:
            if place[p] > new:
                raise GraphError(
                    f"op {graph.ops[i].name!r} stands before op {graph.ops[p].name!r}, but "
                    f"{_why(graph, i, p)}",
                    where=f"order[{new}]",
                )
    return Graph(graph.name, graph.tensors, graph.ops.permuted(positions, place), graph.meta)


def _positions(graph: Graph, order: Sequence[str]) -> list[int]:
    """Return the positions of the named ops.

    Raises :class:`GraphError` unless each op is named exactly once.
    """
    index = graph.op_index
    seen: set[str] = set()
    for k, name in enumerate(order):
        if name not in index:
            raise GraphError(
                f"unknown op {name!r}; the order lists the ops of {graph.name!r}",
                where=f"order[{k}]",
            )
        if name in seen:
            raise GraphError(f"op {name!r} is listed twice", where=f"order[{k}]")
        seen.add(name)
    missing = [op.name for op in graph.ops if op.name not in seen]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise GraphError(
            f"op {missing[0]!r}{more} missing; the order lists every op of {graph.name!r} once",
            where="order",
        )
    return [index[name] for name in order]


def _why(graph: Graph, i: int, p: int) -> str:
    """Return the reason that op ``i`` must follow op ``p``."""
    later, earlier = graph.ops[i], graph.ops[p]
    for t in later.inputs:
        if t in earlier.writes:
            return f"it reads tensor {graph.tensors[t].name!r}, which that writes"
    for t in later.writes:
        if t in earlier.uses:
            return f"it writes tensor {graph.tensors[t].name!r}, which that uses first"
    return "its deps name that"


class _Recomputing:
    """The walk that inserts recomputed ops.

    ``version[t]`` is the op that last wrote the contents of tensor t (-1: none), ``current[t]`` the
    tensor that holds them if it is not t itself. ``made`` has, for each new tensor, the original
    tensor and the name of the op that makes it.
    """

    def __init__(self, graph: Graph, recompute: Sequence[Recompute]) -> None:
        self.base = graph
        self.made: list[tuple[int, str]] = []
        self.version = [-1] * len(graph.tensors)
        self.current: dict[int, int] = {}
        self.names = {op.name for op in graph.ops}
        self.read: dict[int, tuple[int, ...]] = {}
        self.before: dict[int, list[tuple[int, int, str]]] = {}
        index = graph.op_index
        for j, entry in enumerate(recompute):
            for label, name in (("op", entry.op), ("before", entry.before)):
                if name not in index:
                    raise GraphError(
                        f"unknown op {name!r}; expected one of {graph.name!r}",
                        where=f"recompute[{j}].{label}",
                    )
            if not entry.name or entry.name in self.names:
                wrong = f"op name {entry.name!r} is taken" if entry.name else "op name is empty"
                raise GraphError(
                    f"{wrong}; give the recomputed op a name of its own, such as '{entry.op}~2'",
                    where=f"recompute[{j}].name",
                )
            self.names.add(entry.name)
            op, before = index[entry.op], index[entry.before]
            if wrong := why_once(graph, graph.ops[op]):
                raise GraphError(f"op {entry.op!r} {wrong}", where=f"recompute[{j}].op")
            if op >= before:
                raise GraphError(
                    f"op {entry.op!r} has not run before op {entry.before!r}: it cannot run again "
                    "there",
                    where=f"recompute[{j}].before",
                )
            self.before.setdefault(before, []).append((j, op, entry.name))
            self.read[op] = ()

    def steps(self) -> Iterator[Step]:
        for i, op in enumerate(self.base.ops):
            for entry in self.before.get(i, ()):
                yield self._again(*entry)
            yield self._run(i, op)

    def graph(self) -> Graph:
        """Return the edited graph.

        A recomputed op differs from its original in name and tensors only, so the columns are
        built without op objects.
        """
        base, ops, tensors = self.base, self.base.ops, self.base.tensors
        positions, codes, named = dict[str, int](), list[int](), list[int]()
        place: list[int] = []
        for i, name, inputs, outputs, mutates in self.steps():
            op = ops[i]
            if name == op.name:
                place.append(len(codes))
            positions[name] = len(codes)
            codes.append(ops.codes[i])
            named += inputs + outputs + mutates
            if op.deps:
                named += [place[d] for d in op.deps]
        alike, names = list(tensors.alike), dict(tensors.positions)
        kinds, new = list(tensors.codes), dict[int, int]()
        for t, name in self.made:
            code = tensors.codes[t]
            if code not in new:
                new[code] = len(alike)
                alike.append(self._new(tensors.alike[code]))
            made = f"{tensors[t].name}@{name}"
            if names.setdefault(made, len(kinds)) != len(kinds):
                raise GraphError(
                    f"tensor name {made!r} is taken; give recomputed op {name!r} another name",
                    where="recompute",
                )
            kinds.append(new[code])
        return Graph(
            base.name,
            Tensors.like_these(names, alike, kinds),
            Ops.like_these(positions, ops.alike, codes, named),
            base.meta,
        )

    def _new(self, tensor: Tensor) -> Tensor:
        """Return the tensor that a recomputed op makes in place of ``tensor``."""
        kind = "activation" if tensor.survives else tensor.kind
        return Tensor(tensor.name, tensor.size_bytes, kind, None, False)

    def _run(self, i: int, op: Op) -> Step:
        if i in self.read:
            self.read[i] = tuple([self.version[t] for t in op.inputs])
        for t in op.writes:
            self.version[t] = i
            if t in self.current and t not in op.reads:
                del self.current[t]  # written again: later users take the original tensor
        if not self.current:
            return i, op.name, op.inputs, op.outputs, op.mutates
        return i, op.name, self._now(op.inputs), self._now(op.outputs), self._now(op.mutates)

    def _again(self, j: int, f: int, name: str) -> Step:
        op, survives = self.base.ops[f], self.base.survives
        for t, version in zip(op.inputs, self.read[f], strict=True):
            if self.version[t] != version:
                changed, writer = self.base.tensors[t].name, self.base.ops[self.version[t]].name
                raise GraphError(
                    f"op {op.name!r} reads tensor {changed!r}, which op {writer!r} has written "
                    "since",
                    where=f"recompute[{j}].before",
                )
        inputs, outputs = self._now(op.inputs), []
        for t in op.outputs:
            again = len(self.base.tensors) + len(self.made)
            outputs.append(again)
            self.made.append((t, name))
            if self.version[t] == f and not survives[t]:
                self.current[t] = again
        return f, name, inputs, tuple(outputs), op.mutates

    def _now(self, tensors: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([self.current.get(t, t) for t in tensors]) if self.current else tensors
