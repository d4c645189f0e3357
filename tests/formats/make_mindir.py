"""Writes ``data/mindir_*.mindir`` with MindSpore, and beside them in ``data/mindir_truth.json``
what MindSpore says of the same networks.

Run as ``python tests/formats/make_mindir.py`` in an environment with MindSpore (made with 2.10.0,
which runs on the CPU). The truth of a network is the shape and dtype of every parameter, the shape
and dtype of every output of a real run of it, and the products that it multiplies, worked out by
hand from the sizes below (``products``: batch, m, k, n of each).
"""

import json
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops

HERE = Path(__file__).parents[1] / "importers/data"


class Mlp(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up = nn.Dense(8, 16)
        self.act = nn.ReLU()
        self.down = nn.Dense(16, 4)

    def construct(self, x):
        return self.down(self.act(self.up(x)))


class ConvNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, pad_mode="same")
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, pad_mode="pad", padding=1, group=8)
        self.pool = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.head = nn.Dense(8 * 4 * 4, 5)

    def construct(self, x):
        x = ops.relu(self.norm(self.conv(x)))
        x = x + self.depthwise(x)
        return self.head(self.flatten(self.pool(x)))


class Block(nn.Cell):
    """A decoder layer: attention over four heads and a gated MLP, both with a residual."""

    def __init__(self, width=32, heads=4, hidden=64):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm1 = nn.LayerNorm((width,))
        self.norm2 = nn.LayerNorm((width,))
        self.qkv = nn.Dense(width, 3 * width, has_bias=False)
        self.out = nn.Dense(width, width, has_bias=False)
        self.gate = nn.Dense(width, hidden, has_bias=False)
        self.up = nn.Dense(width, hidden, has_bias=False)
        self.down = nn.Dense(hidden, width, has_bias=False)

    def construct(self, x, mask):
        batch, sequence, width = x.shape
        q, k, v = ops.split(self.qkv(self.norm1(x)), width, axis=-1)
        q = q.reshape((batch, sequence, self.heads, self.size)).transpose((0, 2, 1, 3))
        k = k.reshape((batch, sequence, self.heads, self.size)).transpose((0, 2, 3, 1))
        v = v.reshape((batch, sequence, self.heads, self.size)).transpose((0, 2, 1, 3))
        scores = ops.matmul(q, k) / (self.size**0.5) + mask
        seen = (
            ops.matmul(ops.softmax(scores, -1), v)
            .transpose((0, 2, 1, 3))
            .reshape((batch, sequence, width))
        )
        x = x + self.out(seen)
        y = self.norm2(x)
        return x + self.down(ops.silu(self.gate(y)) * self.up(y))


class Embedded(nn.Cell):
    """A table, two blocks in a list and a head that shares its weight with the table; returns two
    tensors.
    """

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.blocks = nn.CellList([Block(), Block()])

    def construct(self, ids, mask):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x, mask)
        return ops.matmul(x, self.table.embedding_table.T), x


class Branches(nn.Cell):
    """Two ways of which the data choose one: functions of the main graph."""

    def __init__(self):
        super().__init__()
        self.near = nn.Dense(8, 8)
        self.far = nn.Dense(8, 8)

    def construct(self, x):
        if x.sum() > 0:
            y = self.near(x)
        else:
            y = self.far(self.far(x))
        return y + 1


class Step(nn.Cell):
    """A training step: forward, backward and SGD with momentum."""

    def __init__(self):
        super().__init__()
        network = nn.WithLossCell(Mlp(), nn.MSELoss())
        self.step = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))

    def construct(self, x, y):
        return self.step(x, y)


def f32(*shape):
    return ms.Tensor(np.zeros(shape), ms.float32)


CASES = {
    "mlp": (Mlp, (f32(2, 8),), [(1, 2, 8, 16), (1, 2, 16, 4)]),
    "conv": (
        ConvNet,
        (f32(2, 3, 16, 16),),
        [(1, 2 * 8 * 8, 3 * 9, 8), (1, 2 * 8 * 8, 9, 8), (1, 2, 128, 5)],
    ),
    "block": (
        Block,
        (f32(2, 6, 32), f32(6, 6)),
        [
            (1, 12, 32, 96),
            (8, 6, 8, 6),
            (8, 6, 6, 8),
            (1, 12, 32, 32),
            (1, 12, 32, 64),
            (1, 12, 32, 64),
            (1, 12, 64, 32),
        ],
    ),
    "branches": (Branches, (f32(2, 8),), [(1, 2, 8, 8), (1, 2, 8, 8)]),
    "step": (
        Step,
        (f32(2, 8), f32(2, 4)),
        [(1, 2, 8, 16), (1, 2, 16, 4), (1, 2, 4, 16), (1, 4, 2, 16), (1, 16, 2, 8)],
    ),
}
CASES["embedded"] = (
    Embedded,
    (ms.Tensor(np.zeros((2, 6)), ms.int32), f32(6, 6)),
    [*CASES["block"][2], *CASES["block"][2], (1, 12, 32, 50)],
)


def main():
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    ms.set_seed(0)
    truth = {}
    for name, (network, inputs, products) in CASES.items():
        cell = network()
        cell.set_train(name == "step")
        ms.export(cell, *inputs, file_name=str(HERE / f"mindir_{name}"), file_format="MINDIR")
        results = cell(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        truth[name] = {
            "parameters": {p.name: [list(p.shape), str(p.dtype)] for p in cell.get_parameters()},
            "inputs": [[list(t.shape), str(t.dtype)] for t in inputs],
            "outputs": [[list(t.shape), str(t.dtype)] for t in results],
            "products": products,
        }
    (HERE / "mindir_truth.json").write_text(
        json.dumps({"mindspore": ms.__version__, "networks": truth}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
