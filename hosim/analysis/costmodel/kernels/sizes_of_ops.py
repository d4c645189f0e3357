"""The kernel class and the sizes of a product or an attention, from the shapes of its operands."""

from collections.abc import Sequence
from math import prod

KernelSizes = tuple[str, tuple[int, ...]]
"""A class of :data:`hosim.analysis.costmodel.kernels.classes.CLASSES` and its sizes; an empty name where no
class is known.
"""

UNKNOWN: KernelSizes = "", ()

NO_WINDOW = 2**40
"""The window of attention that sees all keys before a query."""

CUSTOM_BYTES = 2 * 2**20
"""Below so many bytes, inference engines add up by a kernel of their own, in which each device
reads what all others have.

TensorRT-LLM's buffers for it are no larger; messages from this size on go by NCCL.
"""


def product_kernel(made: Sequence[int], second: Sequence[int], flops: int) -> KernelSizes:
    """The kernel of rows times one matrix, whose result has the shape ``made`` and whose second
    operand ``second``.

    Several matrices at once are another kernel, of no class that is known.
    """
    elements = prod(made)
    if not elements or not flops or len(second) < 2 or prod(second[:-2]) != 1:
        return UNKNOWN
    return "gemm", (elements // made[-1], made[-1], flops // (2 * elements))


def full_kernel(query: Sequence[int], key: Sequence[int], out_width: int) -> KernelSizes:
    """The fused kernel of queries [batch, heads, tokens, width] that each see all keys.

    One query has the kernel of :func:`causal_kernel`. Values narrower than keys have none that is
    known.
    """
    batch, heads, queries, width = query
    if queries == 1:
        return causal_kernel(query, key, out_width)
    return (
        UNKNOWN
        if out_width < width
        else ("full_attention", (batch, queries, key[2], heads, key[1], width))
    )


def causal_kernel(
    query: Sequence[int], key: Sequence[int], out_width: int, window: int = NO_WINDOW
) -> KernelSizes:
    """The fused kernel of queries [batch, heads, tokens, width] and keys of fewer heads, of which a
    query sees those up to its own.

    The last query is that of the last key. Values narrower than keys are those of latent attention.
    A query sees at most ``window`` keys; attention over latents has no kernel of which that
    is known.
    """
    batch, heads, queries, width = query
    kv_heads, keys = key[1:3]
    if queries == 1:
        latent = out_width < width and kv_heads == 1
        return (
            ("latent_attention", (batch, keys, heads))
            if latent
            else ("generation_attention", (batch, keys, heads, kv_heads, width))
        )
    if out_width < width:
        return (
            ("context_latent", (batch, queries, keys - queries, heads))
            if window >= keys
            else UNKNOWN
        )
    return "context_attention", (batch, queries, keys - queries, heads, kv_heads, width, window)
