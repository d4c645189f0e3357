"""The pass that puts a plan's cache ops into the graph of its program as nodes. Imports torch.

It is the last pass: those that fuse, merge or remove ops come before it, because the plan refers to
the ops of the final graph. Afterwards, dead-code elimination and the like leave the cache nodes
alone, and :func:`barriers` lists the nodes that nothing may be moved across.

Each cache op stands right behind the op that it is issued after. Its argument is some value of the
storage. A storage keeps its identity, so a detach frees it and a prefetch fills it again under all
existing views. Consumers behind a prefetch to the device tier take the prefetch's value, or
``ready(view, prefetch)`` if they take another view, so that the graph shows what they wait for.
"""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from torch.fx import Graph, GraphModule, Node

from hosim.cache_plan import AT_START, DETACH, PREFETCH, CacheOp, Plan
from hosim.errors import PlanError
from hosim.graph import Op
from hosim.io import importers
from hosim.on_torch.lower.torch_program import TorchProgram
from hosim.processors import refuse_other_processors

# -- edited program
# --------------------------------------------------------------------------------------------------
# The program of a plan that runs ops again: their nodes are there again, in the plan's order.
# Imports torch.
#
# A copy of an op takes the values that are current where it stands, and so does every later node,
# as in :mod:`hosim.edits`. Views and items cost nothing: where one is needed after its storage
# was made again, it is made again too.


class _Editing:
    """Makes a program as a plan runs it, whose positions are those of the plan's graph: copies the
    nodes that compute in the plan's order, and the others when they are needed.

    ``env`` has the current copy of each node, ``current[t]`` the tensor that holds the contents of
    tensor t where it is another, and ``writer[t]`` the op that wrote it last.
    """

    def __init__(self, program: TorchProgram, plan: Plan) -> None:
        self.base = program
        self.plan = plan
        self.graph = Graph()
        self.env: dict[Node, Node] = {}
        self.current: dict[int, int] = {}
        self.writer: dict[int, str] = {}
        self.tensor_of: dict[str, int] = {}
        self.op_of: dict[str, int] = {}
        self.items: dict[str, list[tuple[str, int]]] = {}
        for name, t in program.tensor_of.items():
            if name.endswith("]"):
                self.items.setdefault(name.partition("[")[0], []).append(
                    (name.partition("[")[2], t)
                )

    def program(self) -> TorchProgram:
        base, edits = self.base.graph, self.plan.edits
        assert edits is not None
        by_name = {node.name: node for node in self.base.module.graph.nodes}
        again = {entry.name: entry.op for entry in edits.recompute}
        for node in self.base.module.graph.find_nodes(op="placeholder"):
            self.add(node, {}).name = node.name
        for position, op in enumerate(self.plan.graph.ops):
            name = again.get(op.name, op.name)
            node, first = by_name[name], base.ops[base.op_index[name]]
            self.bring(node)
            if op.name in again:
                self.run_again(node, first, op, position)
            else:
                for t in first.writes:
                    self.writer[t] = name
                self.op_of[self.add(node, {}).name] = position
        output = self.base.module.graph.output_node()
        for node in self.base.module.graph.nodes:
            if node is output or (
                node not in self.env and node.op != "placeholder" and node.is_impure()
            ):
                self.bring(node)
                self.graph.node_copy(node, self.env.__getitem__)
        module = GraphModule(self.base.module, self.graph)
        module.graph.lint()
        return TorchProgram(
            module,
            self.plan.graph,
            self.base.givens,
            self.tensor_of,
            self.op_of,
            self.base.gradients,
        )

    def bring(self, wanted: Node) -> None:
        """Make the views and items from which a node is made."""
        path = [n for n in wanted.all_input_nodes if n not in self.env]
        while path:  # no recursion: chains of views may be long
            missing = [n for n in path[-1].all_input_nodes if n not in self.env]
            path += missing
            if not missing:
                node = path.pop()
                if node not in self.env:
                    self.add(node, {})

    def add(self, node: Node, made: Mapping[int, int]) -> Node:
        """The copy of a node; ``made`` has the new tensor of each that it makes again."""
        self.env[node] = copied = self.graph.node_copy(node, self.env.__getitem__)
        for source, target in (
            (node.name, copied.name),
            *((f"{node.name}[{i}", f"{copied.name}[{i}") for i, _ in self.items.get(node.name, ())),
        ):
            t = self.base.tensor_of.get(source)
            if t is not None:
                self.tensor_of[target] = made.get(t, self.current.get(t, t))
        return copied

    def run_again(self, node: Node, first: Op, op: Op, position: int) -> None:
        """The copy of an op that has run; later nodes take its results, unless the first ones were
        written since or survive the step.
        """
        made = dict(zip(first.outputs, op.outputs, strict=True))
        kept = {
            t for t in first.outputs if self.base.graph.survives[t] or self.writer[t] != first.name
        }
        if kept and len(kept) < len(made):
            raise PlanError(
                f"op {first.name!r} runs again for some of its results alone, which cannot be "
                "lowered; plan with recompute=false"
            )
        before = self.env[node]
        self.op_of[self.add(node, made).name] = position
        if kept:
            self.env[node] = before
            return
        self.current.update(made)
        stale = [node]
        while stale:
            for user in stale.pop().users:
                if user in self.env and user.name not in self.base.op_of and user.op != "output":
                    del self.env[user]
                    stale.append(user)


@dataclass(frozen=True)
class Lowered:
    """A plan as a graph module.

    ``op_of`` are positions in ``plan.graph.ops``, ``tensor_of`` positions in ``plan.graph.tensors``
    of values that are one tensor, and ``cache_op_of`` positions in ``plan.cache_ops``, all by the
    name of the node.
    """

    program: TorchProgram
    plan: Plan
    module: GraphModule = field(repr=False)
    op_of: Mapping[str, int] = field(repr=False)
    tensor_of: Mapping[str, int] = field(repr=False)
    cache_op_of: Mapping[str, int] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Barrier:
    """A node across which no use of ``tensor`` may be moved or fused.

    ``op`` is prefetch, store, detach or initial. ``before`` are the nodes above it that use the
    tensor since the previous barrier, ``after`` those below it up to the next one: nodes of
    different lists stay in different kernels.
    """

    node: str
    op: str
    tensor: str
    before: tuple[str, ...]
    after: tuple[str, ...]


def insert(program: TorchProgram, plan: Plan, device_tier: str = "hbm") -> Lowered:
    """``program`` with the cache ops of ``plan`` as nodes and its ops in the plan's order;
    ``program`` itself stays as it is.

    Raises :class:`PlanError` for a plan of another workload, and for one that decides during the
    replay. The verifier checks that the plan is legal.
    """
    if plan.workload != program.graph:
        raise PlanError(
            f"the plan is for workload {plan.workload.name!r}, not for the graph of this program; "
            "plan for its graph"
        )
    if plan.runtime is not None:
        raise PlanError(
            f"policy {plan.policy} decides during the run; a graph needs a plan that is made "
            "beforehand"
        )
    refuse_other_processors(plan.graph, "a program runs all of its ops on the device")
    return _Pass(
        _Editing(program, plan).program() if plan.recomputes else program, plan, device_tier
    ).lowered()


def barriers(lowered: Lowered) -> tuple[Barrier, ...]:
    """List what later passes have to leave where it is.

    Parameters
    ----------
    lowered
        A program with a plan's cache ops as nodes (:func:`insert`).

    Returns
    -------
    tuple[Barrier, ...]
        The barriers in the order of the graph: nodes that nothing which uses their tensor may be
        moved or fused across.

    References
    ----------
    docs/executor.md describes the graph with cache ops.
    """
    place = {node.name: i for i, node in enumerate(lowered.module.graph.nodes)}
    return tuple(sorted(_barriers(lowered), key=lambda barrier: place[barrier.node]))


class _Pass:
    """Copies the nodes of a program one by one.

    ``env`` has the copy of each node, ``root[t]`` an existing value of tensor t, ``fresh[t]`` the
    last prefetch of t to the device tier, and ``basis[n]`` the prefetch from whose value the copy n
    was made.
    """

    def __init__(self, program: TorchProgram, plan: Plan, device_tier: str) -> None:
        self.program = program
        self.plan = plan
        self.device_tier = device_tier
        self.graph = Graph()
        self.env: dict[Node, Node] = {}
        self.root: dict[int, Node] = {}
        self.fresh: dict[int, Node] = {}
        self.basis: dict[Node, Node | None] = {}
        self.ready: dict[tuple[Node, Node], Node] = {}
        self.tensor_of: dict[str, int] = {}
        self.cache_op_of: dict[str, int] = {}
        same = program.graph is plan.graph
        self.op_of = {
            name: i if same else plan.graph.op_index[name] for name, i in program.op_of.items()
        }
        self.node_of = {i: name for name, i in self.op_of.items()}
        self.after: dict[int, list[int]] = {}
        for k, cache_op in enumerate(plan.cache_ops):
            self.after.setdefault(cache_op.after, []).append(k)

    def lowered(self) -> Lowered:
        op_of = self.op_of
        *_, output = self.program.module.graph.nodes
        held = [node for node in self.program.module.graph.nodes if node.op == "placeholder"]
        for node in held:
            self.copy(node)
            self.env[node].name = node.name
        for t, tiers in sorted(self.plan.initial.items()):
            if tiers != (self.device_tier,) and t in self.root:
                x = self.root[t]
                _node(self.graph, importers.initial, (x, list(tiers)), f"{x.name}_initial", None)
        self.cache_ops(AT_START)
        for node in self.order(output):
            self.copy(node)
            if node.name in op_of:
                self.cache_ops(op_of[node.name])
        self.copy(output)
        module = GraphModule(self.program.module, self.graph)
        module.graph.lint()
        return Lowered(self.program, self.plan, module, op_of, self.tensor_of, self.cache_op_of)

    def order(self, output: Node) -> Iterator[Node]:
        """The nodes between placeholders and output, unchanged; if the plan has its own order,
        views come when they are needed.
        """
        between = [
            node
            for node in self.program.module.graph.nodes
            if node.op not in ("placeholder", "output")
        ]
        if self.plan.edits is None or not self.plan.edits.order or self.plan.recomputes:
            yield from between
            return
        done: set[Node] = set()
        by_name = {node.name: node for node in between}
        for wanted in (*(by_name[op.name] for op in self.plan.graph.ops), output):
            path = [wanted]
            while path:  # no recursion: chains of views may be long
                node = path[-1]
                missing = [
                    n for n in node.all_input_nodes if n not in done and n.op != "placeholder"
                ]
                path += missing
                if not missing:
                    path.pop()
                    if node not in done and node is not output:
                        yield node
                    done.add(node)
        yield from (node for node in between if node not in done and node.is_impure())

    def copy(self, node: Node) -> None:
        """The copy of a node, made if it does not exist; its arguments are the values of the last
        prefetches of their storages.
        """
        if node in self.env:
            return
        self.env[node] = copied = self.graph.node_copy(node, self.current)
        tensor = self.program.tensor_of.get(node.name)
        if tensor is not None:
            self.tensor_of[node.name] = tensor
            self.root.setdefault(tensor, copied)
            item = node.target is operator.getitem
            self.basis[copied] = None if item else self.fresh.get(tensor)

    def current(self, n: Node) -> Node:
        """The current value of ``n`` for a consumer."""
        copied = self.env[n]
        tensor = self.program.tensor_of.get(n.name)
        prefetch = None if tensor is None else self.fresh.get(tensor)
        if prefetch is None or self.basis[copied] is prefetch:
            return copied
        if copied is self.root[tensor]:  # type: ignore[index]
            return prefetch
        if (copied, prefetch) not in self.ready:
            name = f"{copied.name}_ready"
            made = _node(self.graph, importers.ready, (copied, prefetch), name, copied)
            self.ready[copied, prefetch] = made
            self.tensor_of[made.name] = tensor  # type: ignore[assignment]
        return self.ready[copied, prefetch]

    def cache_ops(self, place: int) -> None:
        """Add the nodes of the cache ops that are issued after op ``place``."""
        for k in self.after.get(place, ()):
            cache_op = self.plan.cache_ops[k]
            t = cache_op.tensor
            if t not in self.root:
                self.take(t)
            made = _add(self.graph, cache_op, k, self.fresh.get(t, self.root[t]))
            self.cache_op_of[made.name] = k
            if cache_op.op == PREFETCH:
                self.tensor_of[made.name] = t
                if cache_op.destination == self.device_tier:
                    self.fresh[t] = made

    def take(self, t: int) -> None:
        """The first value of a tensor that is one of several results of an op: its ``getitem``,
        further down or missing.
        """
        producer = self.node_of[self.plan.graph.users[t][0]]
        node = next(n for n in self.env if n.name == producer)
        for user in node.users:
            if user.target is operator.getitem and self.program.tensor_of.get(user.name) == t:
                self.copy(user)
                return
        index = next(i for i in count() if self.program.tensor_of.get(f"{producer}[{i}]") == t)
        value = node.meta.get("val")
        item = self.graph.create_node(
            "call_function",
            operator.getitem,
            (self.env[node], index),
            name=f"{producer}_item_{index}",
        )
        self.root[t] = item
        item.meta["val"] = None if value is None else value[index]
        self.tensor_of[item.name] = t


def _barriers(lowered: Lowered) -> Iterator[Barrier]:
    tensors = lowered.plan.graph.tensors
    open_: dict[int, Barrier] = {}
    used: dict[int, list[str]] = {}
    for node in lowered.module.graph.nodes:
        taken = dict.fromkeys(
            t
            for n in (node, *node.all_input_nodes)
            if (t := lowered.tensor_of.get(n.name)) is not None
        )
        if not is_cache_node(node.target):
            for t in taken:
                used.setdefault(t, []).append(node.name)
            continue
        if node.target is importers.ready:
            continue
        (t,) = taken
        if t in open_:
            yield replace(open_[t], after=tuple(used.get(t, ())))
        open_[t] = Barrier(
            node.name,
            str(node.target.overloadpacket.__name__),
            tensors[t].name,
            tuple(used.pop(t, ())),
            (),
        )
    yield from (replace(barrier, after=tuple(used.get(t, ()))) for t, barrier in open_.items())


# -- cache ops as nodes: the ops themselves are those of hosim.io.importers
# --------------------------------------------------------------------------------------------------


is_cache_node = importers.is_cache_node


def _add(graph: Graph, cache_op: CacheOp, number: int, x: Node) -> Node:
    """Insert the node of a cache op on the storage of ``x`` at the graph's insertion point."""
    name = f"{cache_op.op}_op_{number}"
    if cache_op.op == DETACH:
        return _node(graph, importers.detach, (x, cache_op.source, number), name, None)
    target = importers.prefetch if cache_op.op == PREFETCH else importers.store
    arguments = (x, cache_op.source, cache_op.destination, number)
    return _node(graph, target, arguments, name, x if cache_op.op == PREFETCH else None)


def _node(graph: Graph, target: Any, args: tuple[Any, ...], name: str, like: Node | None) -> Node:
    node = graph.create_node("call_function", target, args, name=name)
    node.meta["val"] = None if like is None else like.meta.get("val")
    return node
