"""The program of a plan that runs ops again: their nodes are there again, in the plan's order.
Imports torch.

A copy of an op takes the values that are current where it stands, and so does every later node, as
in :mod:`hosim.edits`. Views and items cost nothing: where one is needed after its storage was made
again, it is made again too.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Graph, GraphModule, Node

from hosim.cache_plan import Plan
from hosim.errors import PlanError
from hosim.graph import Op
from hosim.on_torch.lower.torch_program import TorchProgram


def edited_program(program: TorchProgram, plan: Plan) -> TorchProgram:
    """``program`` as ``plan`` runs it: its graph is the plan's, and positions are those there."""
    return _Editing(program, plan).program()


class _Editing:
    """Copies the nodes that compute in the plan's order, and the others when they are needed.

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
