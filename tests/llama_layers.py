"""A small language model with the names of a GGUF, whose ops may run on the CPU."""

from __future__ import annotations

from hosim.graph import Graph, GraphBuilder

MIB = 2**20


def layers(count: int, *, experts: bool, movable: bool = True) -> Graph:
    """An embedding, layers of attention (1 MiB and a cache of 1 MiB) and an MLP (2 MiB, or experts
    of 10 MiB), and a head of 3 MiB.
    """
    b = GraphBuilder("small")
    also = {"ddr": 1000} if movable else None

    def op(name: str, weights: dict[str, tuple[int, str]], before: str, kept: str = "") -> str:
        for weight, (size, kind) in weights.items():
            b.tensor(weight, size * MIB, kind)
        out = b.tensor(f"{name}.out", 100)
        b.op(
            name,
            "m",
            inputs=[*weights, before],
            outputs=[out],
            mutates=[kept] if kept else [],
            duration_ns=100,
            also_on=also,
        )
        return out

    x = op("embedding", {"token_embd.weight": (4, "parameter")}, b.tensor("ids", 8, "input"))
    for n in range(count):
        cache = b.tensor(f"cache.{n}", MIB, "kv_cache")
        x = op(f"blk.{n}.q", {f"blk.{n}.attn_q.weight": (1, "parameter")}, x)
        x = op(f"blk.{n}.attention", {}, x, cache)
        mlp = ("ffn_up_exps", "ffn_down_exps") if experts else ("ffn_up", "ffn_down")
        x = op(
            f"blk.{n}.mlp",
            {
                f"blk.{n}.{name}.weight": (
                    5 if experts else 1,
                    "expert" if experts else "parameter",
                )
                for name in mlp
            },
            x,
        )
        x = op(f"blk.{n}.add", {}, x)
    op("head", {"output.weight": (3, "parameter")}, x)
    return b.build()
