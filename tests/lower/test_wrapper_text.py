"""Inductor's text is cut into calls, and they run under a plan: here a text made by hand, whose
kernels are written in Python.
"""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from layers import Layers, machine, program_of, streamed, values_of  # noqa: E402

from hosim.analysis.verifying import verify  # noqa: E402
from hosim.engine import replay  # noqa: E402
from hosim.errors import InputError  # noqa: E402
from hosim.on_torch.lower import Executor, inference, insert  # noqa: E402
from hosim.on_torch.lower.compiled import (  # noqa: E402
    GATHERED,
    READ,
    UPDATED,
    WRITTEN,
    CompiledModel,
    InductorProgram,
    compiled_program,
    read_wrapper,
)
from hosim.on_torch.lower.devices import CpuDevice  # noqa: E402

LINES = """
        arg0_1, arg1_1, arg2_1, arg3_1 = args
        args.clear()
        assert_size_stride(arg0_1, (16, 16), (16, 1), 'input')
        buf0 = empty_strided_cpu((4, 16), (16, 1), torch.float32)
        # a comment
        extern_kernels.mm(arg3_1, arg0_1, out=buf0)
        del arg0_1
        buf1 = reinterpret_tensor(buf0, (4, 16), (16, 1), 0); del buf0  # reuse
        cpp_relu_0(buf1)
        buf2 = torch.ops.aten.topk.default(reinterpret_tensor(buf1, (64, ), (1, ), 0), 3)
        buf3 = buf2[0]
        assert_size_stride(buf3, (3, ), (1, ), 'topk')
        bufi = buf2[1]
        del buf2
        buf4 = empty_strided_cpu((4, 16), (16, 1), torch.float32)
        buf5 = empty_strided_cpu((4, 16), (16, 1), torch.float32)
        cpp_relu_and_rest_1(buf1, buf3, bufi, buf4, buf5)
        del buf1
        del buf5
        buf6 = empty_strided_cpu((4, 16), (16, 1), torch.float32)
        extern_kernels.mm(buf4, arg1_1, out=buf6)
        buf7 = buf6; del buf6  # reuse
        cpp_relu_0(buf7)
        buf8 = empty_strided_cpu((4, 16), (16, 1), torch.float32)
        extern_kernels.mm(buf7, arg2_1, out=buf8)
        buf9 = buf8; del buf8  # reuse
        cpp_relu_0(buf9)
        return (reinterpret_tensor(buf9, (4, 16), (16, 1), 0), )
"""
SOURCE = f'''
import torch

reinterpret_tensor = torch._C._dynamo.guards._reinterpret_tensor
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
assert_size_stride = torch._C._dynamo.guards.assert_size_stride


class extern_kernels:
    mm = staticmethod(torch.mm)


class async_compile:
    def cpp_pybinding(types, code):
        return kernels[len(types)]


def relu(x):
    x.relu_()


def relu_and_rest(x, top, places, y, rest):
    y.copy_(x.relu())
    rest.copy_(x - x)


kernels = {{1: relu, 5: relu_and_rest}}
cpp_relu_0 = async_compile.cpp_pybinding(['float*'], """
extern "C" void kernel(float* in_out_ptr0)
{{ auto tmp0 = in_out_ptr0[x0]; }}
""")
cpp_relu_and_rest_1 = async_compile.cpp_pybinding(['const float*', 'const float*', 'const int64_t*', 'float*', 'float*'], """
extern "C" void kernel(const float* in_ptr0,
                       const float* in_ptr1,
                       const int64_t* in_ptr2,
                       float* out_ptr0,
                       float* out_ptr1)
{{ auto tmp1 = in_ptr0[static_cast<int64_t>(x0)]; auto x = 0;
   auto tmp2 = in_ptr1[static_cast<int64_t>(tmp1)];
   auto tmp3 = in_ptr1[static_cast<int64_t>(x1 + 64L*tmp1)]; }}
""")


class Runner:
    def call(self, args):{LINES}
'''
X = torch.linspace(-1, 1, 64).reshape(4, 16)


def test_calls_of_a_text():
    text = read_wrapper(SOURCE)
    assert text.inputs == ("arg0_1", "arg1_1", "arg2_1", "arg3_1")
    assert text.kernels == {
        "cpp_relu_0": (UPDATED,),
        "cpp_relu_and_rest_1": (READ, GATHERED, READ, WRITTEN, WRITTEN),
    }
    assert text.items == {"buf3": ("buf2", 0), "bufi": ("buf2", 1)}
    first, second, third, fourth, *_ = text.calls
    assert first.lines == (
        "buf0 = empty_strided_cpu((4, 16), (16, 1), torch.float32)",
        "extern_kernels.mm(arg3_1, arg0_1, out=buf0)",
    )
    assert (first.takes, first.gives) == (("arg3_1", "arg0_1"), ("buf0",))
    assert second.lines == (
        "buf1 = reinterpret_tensor(buf0, (4, 16), (16, 1), 0)",
        "cpp_relu_0(buf1)",
    )
    assert (second.takes, second.gives) == (("buf0",), ())  # written in place
    assert third.lines[-2:] == (
        "buf3 = buf2[0]",
        "assert_size_stride(buf3, (3,), (1,), 'topk')",
    )  # a check of what torch gives stays
    assert third.gives == ("buf2",)
    assert fourth.gives == ("buf4",)  # nobody reads buf5: it is workspace
    assert [call.function for call in text.calls[4:]] == [
        "extern_kernels.mm",
        "cpp_relu_0",
        "extern_kernels.mm",
        "cpp_relu_0",
    ]
    assert text.results[0].takes == ("buf8",)


def test_checks_of_several_values_at_once():
    """As torch 2.14 writes them: those of inputs are left out, others go with their call."""
    alone = "        assert_size_stride(buf3, (3, ), (1, ), 'topk')\n"
    grouped = "assert_size_stride_grouped((buf3, bufi), ((3,), (3,)), ((1,), (1,)), 'topk')"
    of_inputs = (
        "assert_size_stride_grouped((arg0_1, arg1_1), ((16, 16), (16, 16)), (1, 1), 'input')"
    )
    source = SOURCE.replace(alone, "").replace("del buf2\n", f"del buf2\n        {grouped}\n")
    source = source.replace("args.clear()\n", f"args.clear()\n        {of_inputs}\n")
    first, second, third, *_ = read_wrapper(source).calls
    assert third.lines[-3:] == ("buf3 = buf2[0]", "bufi = buf2[1]", grouped)
    assert not any("grouped" in line for call in (first, second) for line in call.lines)


@pytest.mark.parametrize(
    "line",
    [
        "buf9 = elsewhere(arg0_1)",
        "elsewhere(arg0_1)",
        "if arg0_1.item(): pass",
        "with torch.cuda._DeviceGuard(0): pass",
        "buf9 = arg0_1[0]",
        "s0 = arg0_1.size()[0]",
        "arg0_1 = arg1_1",
        "buf9 = 3",
    ],
)
def test_a_line_that_is_not_understood_is_refused(line):
    with pytest.raises(
        InputError, match=r"has a line that hosim cannot plan: .*; offload the model uncompiled"
    ):
        read_wrapper(
            f"def call(args):\n    arg0_1, arg1_1 = args\n    {line}\n    return (arg0_1, )"
        )


def test_kernels_of_other_arguments_and_texts_without_a_program_are_refused():
    with pytest.raises(InputError, match="no function 'call'"):
        read_wrapper("x = 1")
    code = (
        "cpp_0 = async_compile.cpp_pybinding(['const int64_t'], 'void kernel(const int64_t "
        "ks0) { }')"
    )
    with pytest.raises(InputError, match="has an argument 'ks0'; expected tensors of fixed sizes"):
        read_wrapper(f"{code}\ndef call(args): return ()")
    with pytest.raises(InputError, match="no declaration"):
        read_wrapper(
            "cpp_0 = async_compile.cpp_pybinding([], 'nothing')\ndef call(args): return ()"
        )


def test_a_gpu_is_refused_before_anything_is_compiled():
    with pytest.raises(
        InputError,
        match="compiled models run on the CPU's machine alone, not on cuda; offload the model "
        "uncompiled",
    ):
        inference(
            Layers(),
            X,
            "layers",
            SimpleNamespace(torch_device=torch.device("cuda")),
            compiled=CompiledModel(None, {}),
        )


def test_calls_run_under_a_plan_with_cache_ops_between_them(monkeypatch):
    model = Layers()
    program = program_of(model, X)
    text = InductorProgram(SimpleNamespace(source_code=SOURCE, constants={}))
    monkeypatch.setattr("hosim.on_torch.lower.compiled.program_of_text._compiled", lambda *_: text)
    made = compiled_program(program, {})
    names = "mm relu topk relu_and_rest mm_1 relu_1 mm_2 relu_2"
    assert [op.name for op in made.graph.ops] == names.split()
    assert [op.kind for op in made.graph.ops[:3]] == ["matmul", "fused", "sort"]
    relu, rest = made.graph.ops[1], made.graph.ops[3]
    assert relu.mutates
    assert not relu.outputs
    assert relu.bytes_accessed == 2 * 4 * 64
    # three arguments of 64 numbers, three numbers that are gathered, and their places; the last
    # argument is nobody's and workspace
    assert (rest.bytes_accessed, rest.workspace_bytes) == (4 * (3 * 64 + 3) + 8 * 3, 4 * 64)
    assert made.graph.ops[0].flops == 2 * 4 * 16 * 16
    small = machine()
    plan = streamed(made)
    assert not verify(plan, small)
    lowered = insert(made, plan)
    between = [
        node.name
        for node in lowered.module.graph.nodes
        if node.name in lowered.op_of or node.name in lowered.cache_op_of
    ]
    for k, cache_op in enumerate(plan.cache_ops):
        name = next(name for name, number in lowered.cache_op_of.items() if number == k)
        ahead = [
            lowered.op_of[one] for one in between[: between.index(name)] if one in lowered.op_of
        ]
        assert ahead == list(range(cache_op.after + 1))  # all calls up to its own, and no others
    values = values_of(program, model, X)
    wanted = model(X).detach()
    user = {given.placeholder for given in program.givens if not given.own}
    with torch.no_grad(), Executor(lowered, small, CpuDevice(small, synchronous=True)) as executor:
        executor.place({name: value for name, value in values.items() if name not in user})
        for _ in range(2):
            (result,) = executor.run(
                {name: value for name, value in values.items() if name in user}
            )
            assert torch.equal(result, wanted)
    assert replay(plan, small).feasible
