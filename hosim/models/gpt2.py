"""GPT-2: learned positions, layer norms before each part, biases everywhere, the output layer tied to the embedding."""

from __future__ import annotations

from dataclasses import dataclass

from hosim.models.config import Run, layers_of
from hosim.models.dense import attended, dense, gelu_new, looked_up, mlp, normed
from hosim.models.functions import add, cross_entropy, dropout, linear, split
from hosim.models.tape import Tape, Value


@dataclass(frozen=True, slots=True)
class Gpt2:
    """Fields as in the public ``config.json`` files."""

    n_embd: int
    n_layer: int
    n_head: int
    vocab_size: int = 50257
    n_positions: int = 1024
    dropout: float = 0.1

    @property
    def num_hidden_layers(self) -> int:
        """Layers."""
        return self.n_layer


def gpt2(t: Tape, config: Gpt2, run: Run) -> Value:
    """The loss in training, else the logits."""
    width = config.n_embd
    ids = t.held("input_ids", (run.batch, run.sequence), "int64", "input")
    with t.scope("transformer"):
        places = t.ops("position_ids", "fill", [], [((1, run.sequence), "int64")])[0]
        tokens = looked_up(t, run, "wte", ids, config.vocab_size, width)
        x = dropout(t, add(t, tokens, looked_up(t, run, "wpe", places, config.n_positions, width)), config.dropout)
        for n in layers_of(config, run):

            def layer(x: Value, n: int = n) -> Value:
                with t.scope(f"h.{n}"):
                    return _layer(t, config, run, x)

            x = t.checkpointed(layer, x) if run.checkpoints(n) else layer(x)
        x = normed(t, run, "ln_f", x)
    table = t.parameter("transformer.wte.weight", (config.vocab_size, width), run.dtype)
    if not run.training:
        x = x.view(run.batch, 1, width) if run.logits == "last" else x
        flops = 2 * x.rows * width * config.vocab_size
        sizes, shape = (x.rows, config.vocab_size, width), (*x.shape[:-1], config.vocab_size)
        return t.op("lm_head", "matmul", [x, table], shape, flops=flops, result_kind="output", kernel="gemm", sizes=sizes)
    logits = linear(t, x, table, label="lm_head")
    return cross_entropy(t, logits.view(logits.rows, config.vocab_size), t.held("labels", (logits.rows,), "int64", "input"))


def _layer(t: Tape, config: Gpt2, run: Run, x: Value) -> Value:
    width = config.n_embd
    y = normed(t, run, "ln_1", x)
    with t.scope("attn"):
        q, k, v = split(t, dense(t, run, "c_attn", y, 3 * width), (width,) * 3)
        y = dropout(t, dense(t, run, "c_proj", attended(t, run, q, k, v, config.n_head, causal=True), width), config.dropout)
    x = add(t, x, y)
    y = normed(t, run, "ln_2", x)
    with t.scope("mlp"):
        y = mlp(t, run, y, ("c_fc", "c_proj"), 4 * width, gelu_new, config.dropout)
    return add(t, x, y)
