"""BERT: an encoder with layer norms after each part, and a masked-language head that is tied to the
embedding.
"""

from dataclasses import dataclass

from hosim.io.models.config import Run, layers_of
from hosim.io.models.dense import attended, dense, gelu, looked_up, normed, repeated, scored
from hosim.io.models.functions import add, dropout
from hosim.io.models.tape import Tape, Value


@dataclass(frozen=True, slots=True)
class Bert:
    """The sizes of BERT. Fields are named as in the public ``config.json`` files."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int = 30522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    dropout: float = 0.1


def bert(t: Tape, config: Bert, run: Run) -> Value:
    """The loss of every position in training, else the logits."""
    width, shape = config.hidden_size, (run.batch, run.sequence)
    ids = t.held("input_ids", shape, "int64", "input")
    with t.scope("bert.embeddings"):
        places = t.ops("position_ids", "fill", [], [((1, run.sequence), "int64")])[0]
        types = t.ops("token_type_ids", "fill", [], [(shape, "int64")])[0]
        x = looked_up(t, run, "word_embeddings", ids, config.vocab_size, width)
        x = add(
            t, x, looked_up(t, run, "token_type_embeddings", types, config.type_vocab_size, width)
        )
        x = add(
            t,
            x,
            looked_up(t, run, "position_embeddings", places, config.max_position_embeddings, width),
        )
        x = dropout(t, normed(t, run, "LayerNorm", x), config.dropout)
    x = repeated(
        t,
        run,
        layers_of(config, run),
        "bert.encoder.layer",
        x,
        lambda x: _layer(t, config, run, x),
    )
    with t.scope("cls.predictions"):
        with t.scope("transform"):
            x = normed(t, run, "LayerNorm", gelu(t, run, dense(t, run, "dense", x, width)))
        bias = t.parameter("bias", (config.vocab_size,), run.dtype)
    table = t.parameter(
        "bert.embeddings.word_embeddings.weight", (config.vocab_size, width), run.dtype
    )
    return scored(t, run, x, table, bias, "decoder")


def _layer(t: Tape, config: Bert, run: Run, x: Value) -> Value:
    width = config.hidden_size
    with t.scope("attention"):
        with t.scope("self"):
            q, k, v = [dense(t, run, name, x, width) for name in ("query", "key", "value")]
            y = attended(t, run, q, k, v, config.num_attention_heads)
        with t.scope("output"):
            y = dropout(t, dense(t, run, "dense", y, width), config.dropout)
            x = normed(t, run, "LayerNorm", add(t, y, x))
    with t.scope("intermediate"):
        y = gelu(t, run, dense(t, run, "dense", x, config.intermediate_size))
    with t.scope("output"):
        return normed(
            t,
            run,
            "LayerNorm",
            add(t, dropout(t, dense(t, run, "dense", y, width), config.dropout), x),
        )
