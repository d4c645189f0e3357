"""A plan of hosim as the marks of torch's own activation offload: what ``torch.compile`` saves for
backward and offloads. Imports torch 2.13 or later.

torch (``torch._functorch._activation_offloading``) copies a saved activation that is marked
``should_offload`` down after its last use in the forward graph, and up before its first use in the
backward graph, or earlier with ``activation_reload_prefetch``. It marks none itself. Here hosim's
planner says which (:mod:`hosim.on_torch.bridges.planned_marks`), and the plan is then read off the
graphs that torch's passes made.
"""

from collections.abc import Container, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch._functorch import config
from torch._functorch._activation_offloading import activation_offloading as torchs
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.utils._ordered_set import OrderedSet

from hosim.cache_plan import Plan
from hosim.engine import read_budget
from hosim.hardware import Hardware
from hosim.io.importers.torch_programs import PlaceholderInput
from hosim.on_torch.bridges.planned_marks import CarriedOut, marks
from hosim.on_torch.bridges.torch_copies import copies, tier_below
from hosim.on_torch.lower import TorchProgram, read
from hosim.result import Result

_NAME = "forward and backward"


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
    InputError
        If the machine has no channels from its device to a tier and back.
    """

    def __init__(
        self,
        *,
        hardware: Hardware,
        budget: int | float | str,
        partitioner: Any = min_cut_rematerialization_partition,
    ) -> None:
        tier_below(hardware)
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
        nodes = _can_be_marked(forward, program, outputs)

        def carry_out(marked: frozenset[str]) -> CarriedOut:
            down = GraphModule(forward, deepcopy(forward.graph))
            up = GraphModule(backward, deepcopy(backward.graph))
            _offload(down, up, outputs, marked)
            return program, [*copies((down, up), program, self._hardware)]

        with config.patch(activation_reload_prefetch=False):
            could = carry_out(frozenset(nodes))
        name = "torch's activation offload"
        marked, plan, result = marks(could, nodes, carry_out, name, self._hardware, budget)
        _offload(forward, backward, outputs, marked)
        self.plans.append(plan)
        self.results.append(result)
        return forward, backward


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


def _offload(
    forward: GraphModule, backward: GraphModule, outputs: int, marked: Container[str]
) -> None:
    """Have torch's passes offload the marked nodes of a forward graph."""
    for node in forward.graph.nodes:
        if node.name in marked:
            node.meta["should_offload"] = True
    torchs.enable_activation_offloading(forward, backward, outputs, OrderedSet())
    forward.recompile()
    backward.recompile()


def _can_be_marked(forward: GraphModule, program: TorchProgram, outputs: int) -> list[str]:
    """The saved tensors that torch can offload: those whose storage is saved once."""
    returned = forward.graph.output_node().args[0]
    places = [program.tensor_of.get(node.name) for node in returned if isinstance(node, Node)]
    inputs = {program.tensor_of.get(n.name) for n in forward.graph.find_nodes(op="placeholder")}
    of_model = OrderedSet(returned[:outputs])
    return [
        node.name
        for node in returned[outputs:]
        if isinstance(node, Node)
        and torchs.can_offload(node, OrderedSet(returned), of_model, OrderedSet())
        and (t := program.tensor_of.get(node.name)) not in inputs
        and places.count(t) == 1
    ]
