"""The inserted nodes under torch's own passes, in files, with views, in-place ops, several outputs
and another order of the ops.
"""

import copy
import operator
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from random_plans import legal_plan, legal_plans  # noqa: E402
from strategies import edits  # noqa: E402
from torch._functorch.compile_utils import fx_graph_cse  # noqa: E402
from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops  # noqa: E402

from hosim.cache_plan import CacheOp, Plan  # noqa: E402
from hosim.edits import Edits  # noqa: E402
from hosim.errors import InputError, PlanError  # noqa: E402
from hosim.graph import Graph  # noqa: E402
from hosim.hardware import Channel, Compute, Hardware, Tier  # noqa: E402
from hosim.io.importers import detach, prefetch, store  # noqa: E402
from hosim.io.importers.torch_programs import import_exported, import_plan, load  # noqa: E402
from hosim.on_torch.lower import (  # noqa: E402
    Barrier,
    Executor,
    barriers,
    capture,
    insert,
    is_cache_node,
    read,
)
from hosim.on_torch.lower.devices import CpuDevice  # noqa: E402

MACHINE = Hardware(
    "two tiers",
    (Tier("hbm", 1 << 30, 10**12, "device"), Tier("ddr", 1 << 34, 10**11)),
    (Channel("h2d", "ddr", "hbm", 10**10), Channel("d2h", "hbm", "ddr", 10**10)),
    Compute({"fp32": 10**13}),
)


class Views(torch.nn.Module):
    """Views taken before and after moves, views that are written through, an op with several
    results of which one is never looked at.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, input):  # noqa: A002  # a name that fx does not leave as it is
        a = self.first(input)
        top, turned = a[:4], a.t()
        b = torch.relu(a)
        top.mul_(2)
        turned[3].add_(1)
        values, _ = torch.sort(b + a, dim=1)
        largest, places = torch.max(values, dim=0)
        self.seen.add_(largest)
        c = self.second(a) + turned.reshape(16, 8).t() + places
        a.relu_()
        return c.view(-1)[:20], a[2:], torch.relu(b) + torch.relu(b)


X = torch.linspace(-2, 2, 8 * 16).reshape(8, 16)


@cache
def exported():
    return torch.export.export(Views(), (X,), strict=False)


@pytest.fixture(scope="module")
def program():
    return capture(exported(), name="views")


def eager():
    model = Views()
    with torch.no_grad():
        return [*model(X), model.seen]


def values_of(program):
    return {
        given.placeholder: (given.value.detach().clone() if given.own else X.clone())
        for given in program.givens
    }


def plainly(module, program):
    values = values_of(program)
    with torch.no_grad():
        results = module(*values.values())
    return [*results, values["b_seen"]]


def really(lowered, synchronous=False):
    values = values_of(lowered.program)
    x = {
        given.placeholder: values.pop(given.placeholder)
        for given in lowered.program.givens
        if not given.own
    }
    with Executor(lowered, MACHINE, CpuDevice(MACHINE, synchronous=synchronous)) as executor:
        executor.place(values)
        results = executor.run(x)
    return [*results, values["b_seen"]]


def same(ours, theirs):
    return len(ours) == len(theirs) and all(
        torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )


def number_of(node):
    """The position in the plan of a node's cache op; none of any other node."""
    return int(node.args[-1]) if node.target in (prefetch, store, detach) else None


def exported_with(program, module):
    """``program`` with the graph of ``module``, which came from its own."""
    signature = copy.deepcopy(program.graph_signature)
    outputs = module.graph.output_node().args[0]
    for spec, value in zip(signature.output_specs, outputs, strict=True):
        if isinstance(value, torch.fx.Node):
            spec.arg.name = value.name
    return program._update(module, signature)


def cache_nodes(graph):
    return [
        (str(node.target), number_of(node), node.args[1:])
        for node in graph.nodes
        if number_of(node) is not None
    ]


def plans(graph):
    return legal_plans(graph, MACHINE)


MANY = settings(max_examples=15, suppress_health_check=list(HealthCheck))


@MANY
@given(st.data())
def test_views_and_in_place_ops_on_moved_storages(program, data):
    lowered = insert(program, data.draw(plans(program.graph)))
    assert same(plainly(lowered.module, program), eager())
    assert same(really(lowered, data.draw(st.booleans())), eager())


@MANY
@given(st.data())
def test_other_orders_of_the_ops(program, data):
    drawn = data.draw(edits(program.graph))
    order = Edits(program.graph, drawn.order)
    plan = legal_plan(order.graph(), MACHINE, data.draw(st.integers(0, 2**32)), 0.7)
    lowered = insert(program, Plan(plan.graph, "drawn", plan.cache_ops, plan.initial, edits=order))
    computing = [node.name for node in lowered.module.graph.nodes if node.name in lowered.op_of]
    assert computing == [op.name for op in plan.graph.ops]
    assert same(plainly(lowered.module, program), eager())
    assert same(really(lowered), eager())
    again, back = read(lowered.module, program.givens, name="views")
    assert [op.name for op in again.graph.ops] == computing
    said = [
        (c.op, plan.graph.tensors[c.tensor].name, c.source, c.destination, c.after)
        for c in plan.cache_ops
    ]
    assert [
        (c.op, again.graph.tensors[c.tensor].name, c.source, c.destination, c.after)
        for c in back.cache_ops
    ] == said


@MANY
@given(st.data())
def test_dead_code_elimination_leaves_them_alone(program, data):
    lowered = insert(program, data.draw(plans(program.graph)))
    graph = lowered.module.graph
    before = cache_nodes(graph)
    assert [number for _, number, _ in before] != [] or not lowered.plan.cache_ops
    graph.eliminate_dead_code()
    graph.lint()
    lowered.module.recompile()
    assert cache_nodes(graph) == before
    assert same(plainly(lowered.module, program), eager())


class Repeats(torch.nn.Module):
    """The same values more than once, for elimination of common subexpressions. Nothing in place:
    one of the passes knows none such.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.w = torch.nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        a, b = torch.relu(x @ self.w), torch.relu(x @ self.w)
        return a.t() @ torch.sin(b) + a.t() @ torch.sin(a), torch.sin(a)


def by_functorch(module):
    return torch.fx.GraphModule(module, fx_graph_cse(module.graph))


def by_dialect(module):
    return CSEPass(get_CSE_banned_ops())(module).graph_module


@pytest.mark.parametrize("eliminate", [by_functorch, by_dialect])
def test_common_subexpression_elimination_leaves_them_alone(eliminate):
    """It comes before, where it does away with ops; after the plan is in, there is nothing left for
    it, and the nodes stay.
    """
    plain = capture(torch.export.export(Repeats(), (X,), strict=False), name="repeats")
    merged, _ = read(eliminate(plain.module), plain.givens, name="repeats")
    assert len(merged.graph.ops) < len(plain.graph.ops)
    with torch.no_grad():
        wanted = Repeats()(X)
    values = [given.value if given.own else X for given in merged.givens]

    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    @given(plans(merged.graph))
    def check(plan):
        lowered = insert(merged, plan)
        after = eliminate(lowered.module)
        after.graph.lint()
        assert cache_nodes(after.graph) == cache_nodes(lowered.module.graph)
        again, back = read(after, merged.givens, name="repeats")
        assert again.graph == merged.graph
        assert back.cache_ops == plan.cache_ops
        with torch.no_grad():
            assert same(after(*values), wanted)

    check()


def test_prefetches_of_one_tensor_are_not_one():
    """Two that look the same but for their numbers."""
    plain = capture(torch.export.export(Repeats(), (X,), strict=False), name="repeats")
    t, last = plain.graph.tensor_index["w"], len(plain.graph.ops) - 1
    moves = (CacheOp("detach", t, "hbm", None, 1), CacheOp("prefetch", t, "ddr", "hbm", 1)) * 2
    plan = Plan(
        plain.graph, "twice", (*moves, CacheOp("detach", t, "ddr", None, last)), {t: ("hbm", "ddr")}
    )
    for eliminate in (by_functorch, by_dialect):
        assert len(cache_nodes(eliminate(insert(plain, plan).module).graph)) == 5


@MANY
@given(st.data())
def test_consumers_wait_for_the_prefetch_that_the_plan_has(program, data):
    """Whoever uses a tensor behind a prefetch of it to the device tier depends on that prefetch in
    the graph itself.
    """
    lowered = insert(program, data.draw(plans(program.graph)))
    fresh, reaches = {}, {}
    for node in lowered.module.graph.nodes:
        behind = {node} | set().union(*(reaches[n] for n in node.all_input_nodes))
        reaches[node] = behind
        if number_of(node) is not None:
            k = lowered.cache_op_of[node.name]
            cache_op = lowered.plan.cache_ops[k]
            assert (k, cache_op.op) == (number_of(node), node.target.overloadpacket.__name__)
            if cache_op.op == "prefetch":
                fresh[cache_op.tensor] = node
        elif node.name in lowered.op_of:
            op = lowered.plan.graph.ops[lowered.op_of[node.name]]
            assert all(fresh[t] in behind for t in op.reads if t in fresh), node.name


def test_an_item_that_the_program_never_takes(program):
    """The places of ``sort`` are made and dropped; a plan may still store them."""
    (t,) = [i for i, tensor in enumerate(program.graph.tensors) if tensor.name == "sort.1"]
    sort = program.graph.users[t][0]
    assert program.graph.users[t] == (sort,)
    lowered = insert(
        program, Plan(program.graph, "one", (CacheOp("store", t, "hbm", "ddr", sort),))
    )
    (node,) = [node for node in lowered.module.graph.nodes if number_of(node) == 0]
    assert node.args[0].target is operator.getitem
    assert same(plainly(lowered.module, program), eager())


class Sorts(torch.nn.Module):
    def forward(self, x):
        return torch.sort(x, dim=1)[0] * 2


def test_an_item_of_which_the_program_has_no_node():
    """Some pass has taken the node of the second result away: a plan that stores it makes it again,
    with its shape and its name.
    """
    plain = capture(torch.export.export(Sorts(), (X,), strict=False), name="sorts")
    (unused,) = [
        node
        for node in plain.module.graph.nodes
        if node.target is operator.getitem and node.args[1] == 1
    ]
    plain.module.graph.erase_node(unused)
    plain.module.recompile()
    program, _ = read(plain.module, plain.givens, name="sorts")
    graph = program.graph
    t = graph.tensor_index["sort.1"]
    (sort,) = graph.users[t]
    moves = (CacheOp("store", t, "hbm", "ddr", sort), CacheOp("store", t, "hbm", "nvme", sort))
    lowered = insert(program, Plan(graph, "one", moves))
    nodes = {node.name: node for node in lowered.module.graph.nodes}
    item = nodes["sort_item_1"]
    assert (item.target, item.args) == (operator.getitem, (nodes["sort"], 1))
    assert (item.meta["val"].shape, item.meta["val"].dtype) == (X.shape, torch.int64)
    assert lowered.tensor_of["sort_item_1"] == t
    assert [node.args[0] for node in nodes.values() if number_of(node) is not None] == [item, item]
    assert same(lowered.module(X), [Sorts()(X)])
    again = program.module.graph.find_nodes(op="call_function", target=torch.ops.aten.sort.default)[
        0
    ]
    again.meta.pop("val")
    bare = insert(program, Plan(graph, "one", moves))
    assert (
        next(node for node in bare.module.graph.nodes if node.name == "sort_item_1").meta["val"]
        is None
    )


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_through_a_file(tmp_path_factory, data):
    source = exported()
    program = capture(source, name="views")
    plan = data.draw(plans(program.graph))
    path = tmp_path_factory.mktemp("pt2") / "lowered.pt2"
    torch.export.save(exported_with(source, insert(program, plan).module), path)
    back = import_plan(load(str(path)), name="views")
    assert back.graph == program.graph
    assert back.cache_ops == plan.cache_ops
    assert back.residency("hbm") == plan.residency("hbm")
    assert import_exported(load(str(path)), name="views") == program.graph


def test_after_a_pass_that_fuses(program):
    """The plan is for the ops that a pass leaves; it is told where it may not go on."""

    def pattern(x, w, b):
        return torch.ops.aten.relu.default(torch.ops.aten.linear.default(x, w, b))

    def fused(x, w, b):
        return torch.ops.aten.clamp_min.default(
            torch.ops.aten.addmm.default(b, x, torch.ops.aten.t.default(w)), 0
        )

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def forward(self, x):
            return torch.relu(self.layer(x)) + 1

    plain = capture(torch.export.export(Plain(), (X,), strict=False), name="plain")
    matches = torch.fx.replace_pattern(plain.module, pattern, fused)
    assert len(matches) == 1
    after, _ = read(plain.module, plain.givens, name="plain")
    kinds = [op.kind for op in after.graph.ops]
    assert kinds == ["matmul", "elementwise", "elementwise"]
    t = after.graph.tensor_index["layer.weight"]
    moves = (CacheOp("prefetch", t, "ddr", "hbm"), CacheOp("detach", t, "hbm", None, 0))
    lowered = insert(after, Plan(after.graph, "one", moves, {t: ("ddr",)}))
    first, second, third = barriers(lowered)
    assert [b.op for b in (first, second, third)] == ["initial", "prefetch", "detach"]
    assert {b.tensor for b in (first, second, third)} == {"layer.weight"}
    assert set(second.after) == set(third.before) >= {after.graph.ops[0].name}
    assert third.after == ()
    assert all(
        is_cache_node(node.target)
        for node in lowered.module.graph.nodes
        if node.name in {b.node for b in (first, second, third)}
    )


class Chain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(16))

    def forward(self, x):
        y = x @ self.weight
        turned = y.t()
        z = torch.relu(y)
        return turned.sin() + turned.cos(), z + y


def test_a_graph_with_cache_ops_node_by_node():
    """y leaves behind relu and comes back: sin and cos take a view of it made before, which waits,
    and add the prefetch itself.
    """
    plain = capture(torch.export.export(Chain(), (X,), strict=False), name="chain")
    graph = plain.graph
    assert [op.name for op in graph.ops] == ["matmul", "relu", "sin", "cos", "add", "add_1"]
    w, y = graph.tensor_index["weight"], graph.tensor_index["matmul"]
    moves = (
        CacheOp("prefetch", w, "ddr", "hbm"),
        CacheOp("detach", w, "hbm", None, 0),
        CacheOp("store", y, "hbm", "ddr", 1),
        CacheOp("detach", y, "hbm", None, 1),
        CacheOp("prefetch", y, "ddr", "hbm", 1),
        CacheOp("detach", y, "ddr", None, 1),
    )
    lowered = insert(plain, Plan(graph, "mine", moves, {w: ("ddr",)}))
    nodes = list(lowered.module.graph.nodes)
    assert [(node.name, *map(str, node.args)) for node in nodes] == [
        ("p_weight",),
        ("x",),
        ("p_weight_initial", "p_weight", "['ddr']"),
        ("prefetch_op_0", "p_weight", "ddr", "hbm", "0"),
        ("matmul", "x", "prefetch_op_0"),
        ("detach_op_1", "prefetch_op_0", "hbm", "1"),
        ("t", "matmul"),
        ("relu", "matmul"),
        ("store_op_2", "matmul", "hbm", "ddr", "2"),
        ("detach_op_3", "matmul", "hbm", "3"),
        ("prefetch_op_4", "matmul", "ddr", "hbm", "4"),
        ("detach_op_5", "prefetch_op_4", "ddr", "5"),
        ("t_ready", "t", "prefetch_op_4"),
        ("sin", "t_ready"),
        ("cos", "t_ready"),
        ("add", "sin", "cos"),
        ("add_1", "relu", "prefetch_op_4"),
        ("output", "(add, add_1)"),
    ]
    assert lowered.op_of == {
        name: i for i, name in enumerate(["matmul", "relu", "sin", "cos", "add", "add_1"])
    }
    assert lowered.cache_op_of == {
        node.name: number_of(node) for node in nodes if number_of(node) is not None
    }
    of = {name: graph.tensors[t].name for name, t in lowered.tensor_of.items()}
    assert of == {
        **dict.fromkeys(("p_weight", "prefetch_op_0"), "weight"),
        **dict.fromkeys(("matmul", "t", "t_ready", "prefetch_op_4"), "matmul"),
        **{name: name for name in ("x", "relu", "sin", "cos", "add", "add_1")},
    }
    shapes = {
        node.name: tuple(node.meta["val"].shape)
        for node in nodes
        if number_of(node) is not None and node.meta["val"] is not None
    }
    assert shapes == {"prefetch_op_0": (16, 16), "prefetch_op_4": (8, 16)}
    shown = {node.name: node.meta.get("val", "none") for node in nodes}
    assert (tuple(shown["t_ready"].shape), shown["p_weight_initial"]) == ((16, 8), None)
    assert barriers(lowered) == (
        Barrier("p_weight_initial", "initial", "weight", ("p_weight",), ()),
        Barrier("prefetch_op_0", "prefetch", "weight", (), ("matmul",)),
        Barrier("detach_op_1", "detach", "weight", ("matmul",), ()),
        Barrier("store_op_2", "store", "matmul", ("matmul", "t", "relu"), ()),
        Barrier("detach_op_3", "detach", "matmul", (), ()),
        Barrier("prefetch_op_4", "prefetch", "matmul", (), ()),
        Barrier("detach_op_5", "detach", "matmul", (), ("sin", "cos", "add_1")),
    )


class Quiet(torch.nn.Module):
    """A part without gradients, of which one result is used and two are returned."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        y = x @ self.weight
        with torch.no_grad():
            low, high = y.sin() - x, torch.cos(y)
        return y * low, high


def test_a_part_without_gradients_is_part_of_the_graph():
    exported = torch.export.export(Quiet(), (X,), strict=False)
    assert any("wrap_with_set_grad_enabled" in str(node.target) for node in exported.graph.nodes)
    plain = capture(exported, name="quiet")
    assert [op.name for op in plain.graph.ops] == ["matmul", "sin", "sub", "cos", "mul"]
    with torch.no_grad():
        assert same(
            plain.module(*(given.value if given.own else X for given in plain.givens)), Quiet()(X)
        )


def test_a_plan_that_decides_during_the_run_cannot_be_lowered(program):
    with pytest.raises(PlanError) as caught:
        insert(program, Plan(program.graph, "belady", runtime=lambda: None))
    assert (
        str(caught.value)
        == "policy belady decides during the run; a graph needs a plan that is made beforehand"
    )


def test_what_cannot_be_lowered(program):
    graph = program.graph
    with pytest.raises(PlanError, match="is for workload 'other'"):
        insert(program, Plan(Graph("other", graph.tensors, graph.ops)))
    lowered = insert(program, Plan(graph, "one", (CacheOp("store", 0, "hbm", "ddr", 0),)))
    (node,) = [node for node in lowered.module.graph.nodes if number_of(node) == 0]
    node.args = (*node.args[:-1], 7)
    with pytest.raises(InputError, match="not numbered 0 to 0"):
        read(lowered.module, program.givens, name="views")
