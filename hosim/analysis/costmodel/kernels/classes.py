"""The classes of kernels whose time follows from their sizes, and the dtypes in which they are
measured.

A class has the names of its sizes, which a row of a table and an op of a workload both have; a
function from constants, processor and sizes to microseconds; and its constants, with where a fit of
them starts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hosim.analysis.costmodel.kernels.op_families import (
    FLASH,
    TILES,
    Array,
    CollectiveConstants,
    ContextConstants,
    CustomConstants,
    GemmConstants,
    GenerationConstants,
    LatentConstants,
    MoeConstants,
    Processor,
    Shapes,
    collective_us,
    context_gradient_us,
    context_us,
    custom_us,
    expected_loads,
    expert_product_us,
    flash_us,
    full_gradient_us,
    full_us,
    gemm_us,
    generation_us,
    latent_us,
    moe_us,
)
from hosim.analysis.costmodel.kernels.sizes_of_ops import NO_WINDOW
from hosim.analysis.costmodel.transfers import PASSES


@dataclass(frozen=True, slots=True)
class KernelDtype:
    """The dtype that a kernel computes in, and the bytes per element of what it reads and
    writes. ``scales``: what the kernels of tables read beside a packed weight.
    """

    compute: str
    weight_bytes: float = 2
    input_bytes: float = 2
    kv_bytes: float = 2
    output_bytes: float = 2
    scales: float = 0


DTYPES: Mapping[str, KernelDtype] = {
    "fp16": KernelDtype("fp16"),
    "fp8": KernelDtype("fp8", 1, 1, 1),
    "fp8_block": KernelDtype("fp8", 1, 1, 1),
    "int8_weights": KernelDtype("fp16", 1),
    "int4_weights": KernelDtype("fp16", 0.5, scales=2 / 128),
    "int4_weights_fp8": KernelDtype("fp8", 0.5, 1),
    "fp16_fp8_cache": KernelDtype("fp16", kv_bytes=1),
    "fp16_int4_cache": KernelDtype("fp16", kv_bytes=0.5),
}
"""By the name that tables and constants have. ``bf16`` is as ``fp16``; the cache of latent
attention has 16 bits in all of them.
"""


LABELS: Mapping[str, str] = {
    **{
        dtype: dtype
        for dtype in (
            "fp16",
            "fp8",
            "fp8_block",
            "int8_weights",
            "int4_weights",
            "fp16_fp8_cache",
            "fp16_int4_cache",
        )
    },
    "bf16": "fp16",
}
"""By the dtype of an op, the name that its kernels have; ops in other dtypes are not timed as
kernels.
"""


@dataclass(frozen=True, slots=True)
class KernelClass:
    """One class. ``start`` and ``limits`` are where a fit of the constants starts and what it stays
    within.
    """

    name: str
    sizes: tuple[str, ...]
    constants: type[Any]
    us: Callable[[Any, Processor, Shapes], Array]
    start: tuple[float, ...]
    limits: tuple[tuple[float, float], ...]
    given: Mapping[str, float]
    """The arguments of the function beyond the sizes, the same for all kernels of the class."""
    tried: Mapping[str, tuple[float, ...]]
    """Constants that a fit tries one by one: the time jumps with them."""

    def constants_from(self, values: Mapping[str, float]) -> Any:
        """The constants by name. Raises :class:`TypeError` unless they are exactly those of the
        class.
        """
        return self.constants(**values)

    @property
    def constant_names(self) -> tuple[str, ...]:
        """The names of the constants."""
        return tuple(f.name for f in fields(self.constants))

    def shapes(
        self,
        sizes: Mapping[str, Array],
        dtype: str,
        distribution: str = "uniform",
        weight_bytes: Array | None = None,
    ) -> Shapes:
        """Return the shapes that the function reads, from the sizes of many kernels of one dtype
        (:data:`DTYPES`) and one distribution of tokens; ``weight_bytes`` are those of an element of
        each, without them the dtype's.
        """
        kind = DTYPES[dtype]
        count = len(next(iter(sizes.values())))
        shapes = {name: np.full(count, float(value)) for name, value in self.given.items()}
        for name in ("weight_bytes", "input_bytes", "kv_bytes", "output_bytes"):
            shapes[name] = np.full(count, float(getattr(kind, name)))
        if weight_bytes is not None:
            shapes["weight_bytes"] = weight_bytes
        shapes |= {name: np.asarray(values, float) for name, values in sizes.items()}
        shapes.setdefault("kv_heads", shapes.get("heads", shapes["weight_bytes"]))
        return _with_loads(shapes, distribution) if "experts" in self.sizes else shapes


def _with_loads(shapes: Shapes, distribution: str) -> Shapes:
    keys = zip(
        *(shapes[name].astype(int).tolist() for name in ("tokens", "top", "experts", "ranks")),
        strict=True,
    )
    loads = [expected_loads(*key, distribution) for key in keys]
    shapes["rows"] = np.array([load.rows for load in loads])
    shapes["touched"] = np.array([load.touched for load in loads])
    for i, tile in enumerate(TILES):
        shapes[f"padded_{tile}"] = np.array([load.padded[i] for load in loads])
    if "intermediate" in shapes:
        shapes["width"] = shapes["intermediate"] / shapes["tensor"]
    return shapes


Constants = Mapping[str, tuple[float, float, float]]


def _kernel(
    name: str,
    sizes: str,
    constants: type[Any],
    us: Callable[[Any, Processor, Shapes], Array],
    fitted: Constants,
    given: Mapping[str, float] | None = None,
    tried: Mapping[str, tuple[float, ...]] | None = None,
) -> KernelClass:
    """``fitted`` has (least, start, most) of each constant."""
    order = [fitted[f.name] for f in fields(constants)]
    starts, limits = (
        tuple(start for _, start, _ in order),
        tuple((least, most) for least, _, most in order),
    )
    return KernelClass(
        name, tuple(sizes.split()), constants, us, starts, limits, given or {}, tried or {}
    )


_CYCLES = (1.0, 1e6)


def _cycles(start: float) -> tuple[float, float, float]:
    return (_CYCLES[0], start, _CYCLES[1])


def _context(
    name: str,
    sizes: str,
    given: Mapping[str, float],
    us: Callable[[Any, Processor, Shapes], Array] = context_us,
) -> KernelClass:
    constants = {
        "fixed_cycles": _cycles(20000),
        "block_cycles": _cycles(3000),
        "peak_share": (0.02, 0.6, 1.0),
        "move_share": (0.05, 0.5, 2.0),
        "longest_share": (0.3, 0.9, 1.0),
    }
    return _kernel(name, sizes, ContextConstants, us, constants, given)


def _collective(name: str) -> KernelClass:
    return _kernel(
        name,
        "ranks bytes",
        CollectiveConstants,
        collective_us,
        {
            "fixed_cycles": _cycles(12000),
            "rank_cycles": _cycles(2000),
            "large_cycles": _cycles(30000),
            "small_share": (0.02, 0.3, 1.0),
            "large_share": (0.05, 0.8, 1.2),
            "few_ranks": (0.01, 0.5, 1.2),
            "switched": (0.1, 1.0, 3.0),
        },
        {"passes": float(PASSES[name])},
    )


_HALF_TILE = (1.0, 90.0, 300.0)
_LARGEST = (0.2, 1.8, 2.5)

_MIXTURE = {
    "fixed_cycles": _cycles(50000),
    "bandwidth_share": (0.2, 0.85, 1.2),
    "largest_share": _LARGEST,
    "half_tile": _HALF_TILE,
    "tile_cycles": _cycles(3000),
    "row_traffic": (0.05, 1.0, 10.0),
    "token_traffic": (0.05, 2.0, 20.0),
}

_CONTEXT = "batch queries before heads kv_heads width window"
_FULL = "batch queries keys heads kv_heads width"
_HEAD = {"width": 128.0, "value_width": 128.0, "before": 0.0, "window": float(NO_WINDOW)}

CLASSES: Mapping[str, KernelClass] = {
    kernel.name: kernel
    for kernel in (
        _kernel(
            "gemm",
            "m n k",
            GemmConstants,
            gemm_us,
            {
                "fixed_cycles": _cycles(5000),
                "bandwidth_share": (0.2, 0.85, 1.2),
                "largest_share": _LARGEST,
                "half_tile": _HALF_TILE,
                "tile_cycles": _cycles(300),
                "sum_cycles": _cycles(2500),
                "cache_ratio": (1.0, 4.0, 10.0),
            },
        ),
        _context("context_attention", _CONTEXT, _HEAD),
        _context("context_gradient", _CONTEXT, _HEAD, context_gradient_us),
        _context("full_attention", _FULL, _HEAD, full_us),
        _context("full_gradient", _FULL, _HEAD, full_gradient_us),
        *(
            _context(f"{library}_attention", _CONTEXT, _HEAD, flash_us(library, gradient=False))
            for library in FLASH
        ),
        *(
            _context(f"{library}_gradient", _CONTEXT, _HEAD, flash_us(library, gradient=True))
            for library in FLASH
        ),
        _kernel(
            "generation_attention",
            "batch keys heads kv_heads width",
            GenerationConstants,
            generation_us,
            {
                "group_fixed_cycles": _cycles(9500),
                "group_block_cycles": _cycles(8000),
                "group_head_cycles": _cycles(100),
                "group_key_cycles": _cycles(22),
                "group_bytes": (0.02, 0.5, 2.0),
                "group_merge_cycles": _cycles(6000),
                "single_first_cycles": _cycles(15000),
                "single_block_cycles": _cycles(3000),
                "single_few_keys_cycles": _cycles(3000),
                "single_key_cycles": _cycles(30),
                "single_bandwidth_share": (0.2, 0.9, 1.2),
                "single_parts": (0.2, 1.6, 16.0),
                "single_merge_cycles": _cycles(9000),
                "single_shared_read": (0.005, 0.3, 1.0),
            },
            _HEAD,
        ),
        _context("context_latent", "batch queries before heads", {**_HEAD, "width": 192.0}),
        _kernel(
            "latent_attention",
            "batch keys heads",
            LatentConstants,
            latent_us,
            {
                "fixed_cycles": _cycles(15000),
                "block_cycles": _cycles(5000),
                "key_cycles": (0.1, 100.0, 1000.0),
                "bandwidth_share": (0.2, 0.9, 1.2),
                "query_traffic": (0.1, 2.0, 20.0),
                "least_keys": (16.0, 192.0, 2048.0),
                "waves": (0.0, 0.0, 16.0),
                "merge_cycles": _cycles(5000),
                "crowding": (0.05, 1.0, 4.0),
            },
            tried={"waves": (0.0, 1.0, 2.0)},
        ),
        _kernel(
            "moe",
            "tokens hidden intermediate top experts tensor ranks",
            MoeConstants,
            moe_us,
            _MIXTURE,
        ),
        _kernel(
            "expert_product",
            "tokens top experts ranks columns depth",
            MoeConstants,
            expert_product_us,
            _MIXTURE,
        ),
        _collective("all_reduce"),
        _collective("all_gather"),
        _collective("reduce_scatter"),
        _collective("all_to_all"),
        _kernel(
            "custom_all_reduce",
            "ranks bytes",
            CustomConstants,
            custom_us,
            {
                "fixed_cycles": _cycles(5000),
                "rank_cycles": _cycles(200),
                "link_share": (0.02, 0.5, 2.0),
            },
        ),
    )
}
"""All classes by name."""

_LEAST = {"before": 0, "bytes": 0}
_AT_MOST = (
    ("top", "experts"),
    ("ranks", "experts"),
    ("tensor", "intermediate"),
    ("kv_heads", "heads"),
)
_MOST_EXPERTS = 1 << 14
_TOO_LARGE = 1e15


def first_wrong(kernel: str, sizes: Mapping[str, Array]) -> tuple[int, str] | None:
    """The first of many kernels of a class that has impossible sizes, by its row, and what is
    expected; ``None`` if there is none.
    """
    names = CLASSES[kernel].sizes
    checks = []
    for name in names:
        least, values = _LEAST.get(name, 1), sizes[name]
        whole = (values >= least) & (values < _TOO_LARGE) & (np.floor(values) == values)
        checks.append((whole, f"a whole number of at least {least} as {name}"))
    for small, large in _AT_MOST:
        if small in names and large in names:
            checks.append((sizes[small] <= sizes[large], f"{small} of at most {large}"))
    if "experts" in names:
        checks.append((sizes["experts"] <= _MOST_EXPERTS, f"at most {_MOST_EXPERTS:,} experts"))
    found = [(int(np.argmin(right)), expected) for right, expected in checks if not right.all()]
    return min(found, key=lambda one: one[0], default=None)
