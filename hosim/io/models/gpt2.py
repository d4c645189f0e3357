"""GPT-2: learned positions, layer norms before each part, biases everywhere, the output layer tied
to the embedding.
"""

from dataclasses import dataclass

from hosim.io.models.config import Decoder


@dataclass(frozen=True, slots=True)
class Gpt2:
    """Fields as in the public ``config.json`` files.

    ``dropout`` is of what attention and MLP add, and of the embedding and the scores of attention
    unless these have one of their own.
    """

    n_embd: int
    n_layer: int
    n_head: int
    vocab_size: int = 50257
    n_positions: int = 1024
    dropout: float = 0.1
    embedding_dropout: float | None = None
    attention_dropout: float | None = None

    @property
    def num_hidden_layers(self) -> int:
        """Layers."""
        return self.n_layer

    def decoder(self) -> Decoder:
        """The same model among decoders in general."""
        return Decoder(
            self.n_embd,
            self.n_layer,
            self.n_head,
            self.n_head,
            4 * self.n_embd,
            self.vocab_size,
            self.n_embd // self.n_head,
            tie_word_embeddings=True,
            gated_mlp=False,
            dropout=self.dropout,
            qkv_bias=True,
            norm="layer",
            positions="learned",
            max_position_embeddings=self.n_positions,
            hidden_act="gelu_new",
            fused_projections=True,
            out_bias=True,
            mlp_bias=True,
            embedding_dropout=self.dropout
            if self.embedding_dropout is None
            else self.embedding_dropout,
            attention_dropout=self.dropout
            if self.attention_dropout is None
            else self.attention_dropout,
            names="gpt2",
        )
