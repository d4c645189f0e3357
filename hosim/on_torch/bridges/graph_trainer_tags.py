"""A plan of hosim as the tags of torchtitan's graph_trainer: what is saved, offloaded or recomputed
between forward and backward. Imports torch, and torchtitan (0.3.0) where it is used.

graph_trainer traces forward, loss and backward as one graph. A memory policy tags each forward node
(``node.meta["recompute"]``), and passes of torchtitan carry the tags out: they place a copy down
right behind its op, the release of device memory some layers after the last use, the copy up some
layers before its first use in backward, and what is recomputed before its first use there. Where
exactly is read from the graphs that these passes make.
"""

from collections.abc import Collection
from copy import deepcopy
from typing import Any, cast

from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from hosim.cache_plan import Plan
from hosim.engine import read_budget
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.io.importers.torch_programs import PlaceholderInput
from hosim.on_torch.bridges.planned_marks import CarriedOut, marks
from hosim.on_torch.bridges.torch_copies import (
    copies,
    read_when_gone,
    tier_below,
)
from hosim.on_torch.lower import TorchProgram, read
from hosim.result import Result


class GraphTrainerOffload:
    """A memory policy for torchtitan's graph_trainer, which tags activations so that forward and
    backward stay within a budget in program order.

    ``plans`` and ``results`` have a plan and its replay for each graph that was tagged. The account
    is of the graph's aten ops, on one device.

    Parameters
    ----------
    hardware
        The machine.
    budget
        As :func:`hosim.offload` takes it; a share is of the peak without offload.
    after
        A memory policy of torchtitan that tags first, such as ``default`` or ``full``: what it
        recomputes stays so, and what it saves may be offloaded. ``None``: all is saved.

    Raises
    ------
    InfeasibleError
        If the peak is above the budget even with everything offloaded that torchtitan can offload.
    InputError
        If torchtitan is not installed, or has no policy ``after`` of its own, or the machine has no
        channels from its device to a tier and back.
    """

    def __init__(
        self, *, hardware: Hardware, budget: int | float | str, after: str | None = None
    ) -> None:
        tier_below(hardware)
        try:
            from torchtitan.experiments.graph_trainer import (
                cpu_offload,
                registry,
                selective_activation_remat,
            )
        except ImportError as error:
            raise InputError(
                f"graph_trainer of torchtitan cannot be imported ({error}); install torchtitan "
                "0.3.0 and triton"
            ) from None
        self._offload, self._recompute = cpu_offload, selective_activation_remat
        self._policies = registry.MEMORY_POLICY_REGISTRY
        self._hardware = hardware
        self._budget = read_budget(budget)
        self._after = after
        self.plans: list[Plan] = []
        self.results: list[Result] = []

    def __call__(self, gm: GraphModule, *, config: Any) -> GraphModule:
        """The graph with its tags; torchtitan's passes follow them."""
        if self._after is not None:
            policy = self._policies.get(self._after)
            if policy is None or isinstance(policy, GraphTrainerOffload):
                known = ", ".join(
                    name
                    for name, other in self._policies.items()
                    if not isinstance(other, GraphTrainerOffload)
                )
                raise InputError(
                    f"torchtitan has no memory policy {self._after!r} of its own (policies: "
                    f"{known})",
                    where="after",
                )
            policy(gm, config=config)
        trial = GraphModule(gm, deepcopy(gm.graph))
        self._offload.tag_all_offloadable_activations(trial, cpu_budget_gb=0)
        nodes = [
            node.name
            for node in trial.graph.nodes
            if node.meta.get("recompute") is CheckpointPolicy.MUST_CPU_OFFLOAD
        ]
        every = self._passes(gm, nodes, config)
        could = self._read(every)
        lost = {*read_when_gone(every, could[0])}
        nodes = [node for node in nodes if node not in lost]
        budget = self._budget.of(could[0].graph, self._hardware)[1]

        def carry_out(marked: Collection[str]) -> CarriedOut:
            return self._read(self._passes(gm, marked, config))

        name = "torchtitan's offload"
        marked, plan, result = marks(could, nodes, carry_out, name, self._hardware, budget)
        _tag(gm, marked)
        self.plans.append(plan)
        self.results.append(result)
        return gm

    def _passes(self, gm: GraphModule, marked: Collection[str], config: Any) -> GraphModule:
        """The program that torchtitan's passes make of a graph with these tags."""
        module = GraphModule(gm, deepcopy(gm.graph))
        _tag(module, marked)
        self._offload.apply_cpu_offload_pass(
            module,
            prefetch_lookahead=config.compile.cpu_offload_prefetch_n_layers,
            defer_n_layers=config.compile.cpu_offload_defer_n_layers,
        )
        return cast(GraphModule, self._recompute.selective_activation_remat_pass(module))

    def _read(self, module: GraphModule) -> CarriedOut:
        """The program of what torchtitan's passes made, and its copies."""
        program = _without_copies(module)
        return program, [*copies([module], program, self._hardware)]


def _tag(module: GraphModule, marked: Collection[str]) -> None:
    """Tag nodes to be offloaded."""
    for node in module.graph.nodes:
        if node.name in marked:
            node.meta["recompute"] = CheckpointPolicy.MUST_CPU_OFFLOAD


def _without_copies(module: GraphModule) -> TorchProgram:
    """The program of a graph in which nothing is copied: a copy is what it is of."""
    graph, env = FxGraph(), dict[Node, Node]()
    for node in module.graph.nodes:
        is_copy = getattr(node.target, "namespace", "") == "ao"
        env[node] = env[node.args[0]] if is_copy else graph.node_copy(node, env.__getitem__)
    given = [
        PlaceholderInput("", node.meta.get("val"), node.name, "input")
        for node in module.graph.find_nodes(op="placeholder")
    ]
    return read(GraphModule(module, graph), given, name="forward and backward")[0]
