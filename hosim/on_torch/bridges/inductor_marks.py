"""A plan of hosim as the marks of torch's own activation offload: what ``torch.compile`` saves for
backward and offloads. Imports torch 2.13 or later.

torch (``torch._functorch._activation_offloading``) copies a saved activation that is marked
``should_offload`` down after its last use in the forward graph, and up before its first use in the
backward graph, or earlier with ``activation_reload_prefetch``. It marks none itself. Here a replay
says which: of those that torch can offload, the largest that is idle where the peak is, until the
peak is within the budget. The plan is then read off the graphs that torch's passes made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch._functorch import config
from torch._functorch._activation_offloading import activation_offloading as torchs
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.utils._ordered_set import OrderedSet

from hosim.analysis import static_curve
from hosim.cache_plan import DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import read_budget, replay
from hosim.errors import InfeasibleError
from hosim.hardware import Hardware
from hosim.io.importers.torch_programs import PlaceholderInput
from hosim.on_torch.lower import TorchProgram, read
from hosim.result import IN_PROGRAM_ORDER, Result
from hosim.units import human_size

_NAME = "forward and backward"


@dataclass(frozen=True)
class _Candidate:
    """A saved activation that torch can offload: idle after op ``after`` up to op ``before``."""

    node: str
    tensor: int
    after: int
    before: int


class InductorOffload(CustomPartitionerFn):  # type: ignore[misc]
    """A partitioner for ``torch._inductor.config.custom_partitioner_fn``, which marks activations
    so that forward and backward stay within a budget in program order.

    ``plans`` and ``results`` have a plan and its replay for each graph that was compiled. The
    account is of the graphs' aten ops; inductor fuses them afterwards, which only needs less.

    Parameters
    ----------
    hardware
        The machine.
    budget
        As :func:`hosim.offload` takes it; a share is of the peak without offload.
    partitioner
        torch's partitioner, which says what is saved.

    Raises
    ------
    InfeasibleError
        If the peak is above the budget even with everything offloaded that torch can offload.
    """

    def __init__(
        self,
        *,
        hardware: Hardware,
        budget: int | float | str,
        partitioner: Any = min_cut_rematerialization_partition,
    ) -> None:
        self._hardware = hardware
        self._budget = read_budget(budget)
        self._partitioner = partitioner
        self.plans: list[Plan] = []
        self.results: list[Result] = []

    def uuid(self) -> None:
        """``None`` keeps inductor from its cache, whose code would come without a plan."""
        return

    def __call__(
        self, gm: GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        """The forward and the backward graph of a joint one, with torch's offload of what is
        marked.
        """
        with config.patch(enable_activation_offloading=False):
            forward, backward = self._partitioner(gm, joint_inputs, **kwargs)
        outputs = int(kwargs["num_fwd_outputs"])
        program = _joined(forward, backward, outputs)
        budget = self._budget.of(program.graph, self._hardware)[1]
        marked = self._marked(program, _candidates(forward, backward, program, outputs), budget)
        for node in forward.graph.nodes:
            if node.name in marked:
                node.meta["should_offload"] = True
        if marked:
            torchs.enable_activation_offloading(forward, backward, outputs, OrderedSet())
            forward.recompile()
            backward.recompile()
        device = self._hardware.device_tier
        ops = tuple(_cache_ops((forward, backward), program, device, self._below()))
        plan = Plan(program.graph, "torch's activation offload", ops)
        result = replay(plan, self._hardware, budget, account=IN_PROGRAM_ORDER)
        if not result.feasible:
            raise InfeasibleError(f"where torch copies back what is marked: {result.error}")
        self.plans.append(plan)
        self.results.append(result)
        return forward, backward

    def _below(self) -> str:
        """The tier that torch copies to: the host's memory, below the device's own."""
        device = self._hardware.device_tier
        return next(one.destination for one in self._hardware.channels if one.source == device)

    def _marked(
        self, program: TorchProgram, candidates: Sequence[_Candidate], budget: int
    ) -> frozenset[str]:
        graph = program.graph
        curve = static_curve(graph, self._hardware.device_tier)
        left = sorted(candidates, key=lambda c: (-graph.tensors[c.tensor].size_bytes, c.after))
        marked: list[str] = []
        while (peak := max(curve)) > budget:
            at = curve.index(peak)
            found = next((c for c in left if c.after < at < c.before), None)
            if found is None:
                raise InfeasibleError(
                    f"forward and backward hold {human_size(peak)} at op {graph.ops[at].name!r}, "
                    "where nothing is idle that torch can offload, and the budget is "
                    f"{human_size(budget)}"
                )
            left.remove(found)
            marked.append(found.node)
            for k in range(found.after + 1, found.before):
                curve[k] -= graph.tensors[found.tensor].size_bytes
        return frozenset(marked)


def _joined(forward: GraphModule, backward: GraphModule, outputs: int) -> TorchProgram:
    """Forward and backward as one program: what is saved is a value, and all else that backward
    takes is an input.
    """
    graph, env = FxGraph(), dict[Node, Node]()
    returned = forward.graph.output_node().args[0]
    saved = {node.name: node for node in returned[outputs:] if isinstance(node, Node)}
    own = forward.graph.find_nodes(op="placeholder")
    tangents = [n for n in backward.graph.find_nodes(op="placeholder") if n.name not in saved]
    givens = [PlaceholderInput("", n.meta["val"], n.name, "input") for n in (*own, *tangents)]
    for node in (*own, *tangents):
        env[node] = graph.node_copy(node)
    for node in forward.graph.nodes:
        if node.op not in ("placeholder", "output"):
            env[node] = graph.node_copy(node, env.__getitem__)
    for node in backward.graph.nodes:
        if node.op == "placeholder" and node.name in saved:
            env[node] = env[saved[node.name]]
        elif node.op not in ("placeholder", "output"):
            env[node] = graph.node_copy(node, env.__getitem__)
    made = (*returned[:outputs], *backward.graph.output_node().args[0])
    graph.output(tuple(env[node] for node in made if isinstance(node, Node)))
    owner = torch.nn.Module()
    for module in (forward, backward):
        for node in module.graph.find_nodes(op="get_attr"):
            setattr(owner, str(node.target), getattr(module, str(node.target)))
    return read(GraphModule(owner, graph), givens, name=_NAME)[0]


def _positions(
    module: GraphModule, program: TorchProgram, before: int
) -> Iterator[tuple[Node, int]]:
    """Each node with the last op at or before it; ``before`` is the one before all of them."""
    for node in module.graph.nodes:
        before = program.op_of.get(node.name, before)
        yield node, before


def _candidates(
    forward: GraphModule, backward: GraphModule, program: TorchProgram, outputs: int
) -> list[_Candidate]:
    """What torch can offload of what is saved: a storage that is saved once."""
    returned = forward.graph.output_node().args[0]
    saved = [node for node in returned[outputs:] if isinstance(node, Node)]
    after = dict(_positions(forward, program, -1))
    last = max(after.values(), default=-1)
    places = [program.tensor_of.get(node.name) for node in returned if isinstance(node, Node)]
    inputs = {program.tensor_of.get(n.name) for n in forward.graph.find_nodes(op="placeholder")}
    kinds = torchs.get_default_op_list()
    found = []
    for node in saved:
        t = program.tensor_of.get(node.name)
        allowed = torchs.can_offload(
            node, OrderedSet(returned), OrderedSet(returned[:outputs]), OrderedSet()
        )
        if t is None or not allowed or places.count(t) > 1 or t in inputs:
            continue
        users = torchs._find_all_effective_users(node, kinds)
        ends = max((after[user] for user in users), default=after[node])
        uses = [k for k in program.graph.users[t] if k > last]
        if uses:
            found.append(_Candidate(node.name, t, ends, uses[0]))
    return found


def _cache_ops(
    modules: tuple[GraphModule, GraphModule], program: TorchProgram, device: str, below: str
) -> Iterator[CacheOp]:
    """The copies in the graphs that torch's passes made."""
    ops = torch.ops
    copies = (ops.ao.offload.default, ops.ao.reload.default, ops.prims.device_put.default)
    tensor_of: Mapping[str, int] = program.tensor_of
    end = -1
    for module in modules:
        for node, last in _positions(module, program, end):
            end = last
            if node.target in copies:
                name = cast(Node, node.args[0]).name.removeprefix(torchs.CPU_OFFLOAD_PREFIX)
                t = tensor_of[name]
                if module is modules[1]:
                    yield CacheOp(PREFETCH, t, below, device, last)
                    continue
                yield CacheOp(STORE, t, device, below, last)
                if node.target is copies[2]:
                    yield CacheOp(DETACH, t, device, None, last)
            elif node.target is ops.ao.wait_tensor.default and module is modules[0]:
                kept = cast(Node, node.args[1])
                yield CacheOp(DETACH, tensor_of[kept.name], device, None, last)
