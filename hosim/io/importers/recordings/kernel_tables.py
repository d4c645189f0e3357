"""Tables of measured kernel times: rows of sizes and microseconds, kept as a :class:`KernelTable`
for each class, dtype and machine.

They are read from CSV files, compressed or not, and from Parquet files. Their columns tell three
layouts apart: hosim's own (``kernel``, ``dtype``, the sizes of the class, ``latency_us``); one file
for each kind of kernel, with a column ``machine`` and short names; and the files of aiconfigurator,
with longer names and ``latency`` in milliseconds.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from hosim.analysis.costmodel.kernels import CLASSES, CUSTOM_BYTES, DTYPES, NO_WINDOW, first_wrong
from hosim.analysis.costmodel.kernels.op_families import Array, expected_loads
from hosim.base.files import (
    cell_text,
    check_widths,
    csv_line,
    csv_rows,
    decode,
    read_bytes,
    read_head,
)
from hosim.base.files.formats import TABLE, unexpected
from hosim.errors import InputError
from hosim.hardware import MeasuredTimes
from hosim.io.models import build
from hosim.limits import within
from hosim.plain_text import counted, one_line

PARQUET = b"PAR1"
"""The first bytes of a Parquet file."""

_LONGER = {
    **{f"{of}_dtype": "dtype" for of in ("gemm", "attn", "mla", "moe", "nccl", "allreduce")},
    "batch_size": "batch",
    "num_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "tp_size": "tp",
    "num_tokens": "tokens",
    "hidden_size": "hidden",
    "inter_size": "intermediate",
    "num_experts": "experts",
    "moe_tp_size": "moe_tp",
    "moe_ep_size": "moe_ep",
    "num_gpus": "gpus",
    "message_size": "message_elements_or_bytes",
    "op_name": "op",
}

DTYPE_NAMES = {
    "float16": "fp16",
    "bfloat16": "fp16",
    "half": "fp16",
    "int8_wo": "int8_weights",
    "int4_wo": "int4_weights",
    "w4afp8": "int4_weights_fp8",
    **{name: name for name in DTYPES},
}
"""hosim's names of dtypes, by their labels in files."""


def table_frame(source: str, tell: Callable[[str], None]) -> pandas.DataFrame:
    """Return the rows of a CSV or Parquet file as texts. Raises :class:`InputError`."""
    content = read_bytes(source)
    if content.startswith(PARQUET):
        return _parquet(content, source, tell)
    lines = csv_rows(decode(content, source).rstrip().encode(), source)
    header, *rows = lines or [[]]
    if not rows:
        raise InputError(
            "expected a line of columns and a line for each measured time, separated by commas",
            source=source,
        )
    columns = [_LONGER.get(name, name) for name in header]
    if len(set(columns)) < len(columns):
        raise InputError("a column is listed twice", source=source, where="line 1")
    check_widths(lines, source)
    return pandas.DataFrame(rows, columns=columns, dtype=object).map(cell_text)


def _parquet(content: bytes, source: str, tell: Callable[[str], None]) -> pandas.DataFrame:
    """Return the rows of a Parquet file as texts. If it has kernels in CUDA graphs, eager launches
    are omitted; so are dtypes that hosim has no kernels for.
    """
    if find_spec("pyarrow") is None:
        raise InputError(
            "Parquet needs pyarrow, which is not installed; run: pip install 'hosim[parquet]'",
            source=source,
        )
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile  # imported here because the import is slow

    try:
        with ParquetFile(io.BytesIO(content)) as file:
            told = file.metadata
            unpacked = sum([told.row_group(n).total_byte_size for n in range(told.num_row_groups)])
            within("unpacked_bytes", unpacked, source=source)
            within("values", told.num_rows * told.num_columns, source=source)
            frame = file.read().to_pandas()
    except (ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"is no Parquet file: {one_line(str(error), 100)}", source=source
        ) from None
    if not len(frame):
        raise InputError("expected a row for each measured time", source=source)
    frame.columns = pandas.Index([_LONGER.get(str(name), str(name)) for name in frame.columns])
    if len(set(frame.columns)) < len(frame.columns):
        raise InputError("a column is listed twice", source=source)
    texts: pandas.DataFrame = frame.map(lambda cell: "" if cell is None else str(cell))
    kept = pandas.Series(True, index=texts.index)
    if "kernel_source" in texts and texts["kernel_source"].str.endswith("_graph").any():
        kept = ~texts["kernel_source"].str.endswith("_eager")
    if "dtype" in texts and (known := kept & texts["dtype"].isin([*DTYPE_NAMES, ""])).any():
        for dtype, rows in texts["dtype"][kept & ~known].value_counts().sort_index().items():
            tell(
                f"left out: {counted(rows, 'row')} in {one_line(str(dtype), 40)}, for which hosim "
                "has no kernels"
            )
        kept = known
    return texts[kept].reset_index(drop=True)


@dataclass(frozen=True, eq=False)
class TableColumns:
    """The columns of a file, which are checked when they are read."""

    frame: pandas.DataFrame
    source: str

    def has(self, name: str) -> bool:
        """Return whether there is such a column."""
        return name in self.frame

    def numbers(self, name: str, least: float = 0.0) -> Array:
        """Return a column of numbers that are at least ``least``. Raises :class:`InputError` with
        the line.
        """
        values: Array = pandas.to_numeric(self.frame[name], errors="coerce").to_numpy(float)
        wrong = np.flatnonzero(~((values >= least) & (values < 1e15)))
        if len(wrong):
            raise InputError(
                f"expected a number of at least {least:g} as {name}",
                source=self.source,
                where=f"line {wrong[0] + 2}",
            )
        return values

    def known(self, name: str, names: Mapping[str, str], default: str = "") -> npt.NDArray[np.str_]:
        """Return a column of names, translated by ``names``. Raises :class:`InputError` with the
        line.
        """
        column = (
            self.frame[name] if self.has(name) else pandas.Series(default, index=self.frame.index)
        )
        meant = column.replace("", default).map(names)
        wrong = np.flatnonzero(meant.isna())
        if len(wrong):
            raise InputError(
                f"unknown {name} {column.iloc[wrong[0]]!r}; expected one of {', '.join(names)}",
                source=self.source,
                where=f"line {wrong[0] + 2}",
            )
        return meant.to_numpy(str)


def check_sizes(
    kernel: str, sizes: Mapping[str, Array], chosen: npt.NDArray[np.bool_], source: str
) -> None:
    """Raise :class:`InputError` for sizes that no kernel of the class can have; ``chosen`` marks
    the lines of the file that they are from.
    """
    wrong = first_wrong(kernel, sizes)
    if wrong is not None:
        row, expected = wrong
        raise InputError(
            f"expected {expected}", source=source, where=f"line {np.flatnonzero(chosen)[row] + 2}"
        )


@dataclass(frozen=True, eq=False)
class KernelTable:
    """Measured times of one class of kernels in one dtype on one machine.

    ``distribution`` says how tokens are spread over experts (``uniform`` for all classes but
    mixtures of experts). ``sizes`` has the columns of sizes by name.
    """

    machine: str
    kernel: str
    dtype: str
    distribution: str
    sizes: Mapping[str, Array]
    latency_us: Array

    def __len__(self) -> int:
        return len(self.latency_us)

    def part(self, chosen: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> KernelTable:
        """Return the rows that ``chosen`` selects, a mask or positions."""
        sizes = {name: values[chosen] for name, values in self.sizes.items()}
        return KernelTable(
            self.machine, self.kernel, self.dtype, self.distribution, sizes, self.latency_us[chosen]
        )


_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


def read_kernel_tables(
    path: str | os.PathLike[str],
    tell: Callable[[str], None] = lambda said: None,
    model: Mapping[str, Any] | None = None,
) -> list[KernelTable]:
    """Return the tables in a file. Raises :class:`InputError` for other columns, and for a size or
    a time that is not a number above 0.

    Rows of a Parquet file in dtypes that hosim has no kernels for are omitted, and ``tell`` gets
    their number. With ``model``, the parameters of a builder, the file has the times of that
    model's layers (:func:`kernels_of_layers`).
    """
    source = os.fspath(path)
    if model is not None:
        columns = TableColumns(table_frame(source, tell), source)
        return [
            KernelTable("", kernel, "fp16", "uniform", sizes, us)
            for kernel, sizes, us in kernels_of_layers(columns, model, tell)
        ]
    try:
        frame, time, kind = _headed(source, tell)
    except InputError as error:
        if read_head(source).startswith(PARQUET):
            raise
        raise unexpected(source, "a table of kernel times (CSV)", but=TABLE) or error from None
    sorted_in = _READERS[kind](TableColumns(frame, source))
    us = TableColumns(frame, source).numbers(time, least=1e-9) * (
        1.0 if time == "latency_us" else 1000.0
    )
    named = next((name for name in ("machine", "device") if name in frame), None)
    machines = frame[named] if named else pandas.Series("", index=frame.index)
    tables = []
    for kernel, dtypes, distributions, sizes, chosen in sorted_in:
        of_class = {name: sizes[name][chosen] for name in CLASSES[kernel].sizes}
        check_sizes(kernel, of_class, chosen, source)
        keys = pandas.DataFrame(
            {"machine": machines, "dtype": dtypes, "distribution": distributions}
        )[chosen]
        numbers = keys.groupby(["machine", "dtype", "distribution"], sort=False).ngroup().to_numpy()
        for number in range(numbers.max(initial=-1) + 1):
            places = np.flatnonzero(chosen)[numbers == number]
            machine, dtype, distribution = map(str, keys.loc[places[0]])
            listed = {name: sizes[name][places] for name in CLASSES[kernel].sizes}
            tables.append(KernelTable(machine, kernel, dtype, distribution, listed, us[places]))
    return tables


def _headed(source: str, tell: Callable[[str], None]) -> tuple[pandas.DataFrame, str, str]:
    """Return the rows of a file, the name of its column of times, and the kind of table by its
    columns.
    """
    frame = table_frame(source, tell)
    time = next((name for name in ("latency_us", "latency") if name in frame), None)
    if time is None and {"time_us"} < set(frame.columns):
        raise InputError(
            "has times of one model's layers, as LLMServingSim records them, without the sizes of "
            "kernels: say which model (--model), or let hosim serve read the folder (--iterations)",
            source=source,
        )
    if time is None:
        raise InputError(
            "expected a column latency_us, or latency in milliseconds",
            source=source,
            where="line 1",
        )
    kind = _kind(set(map(str, frame.columns)))
    if kind is None:
        known = ", ".join(sorted(_READERS))
        raise InputError(
            f"unknown columns; expected kernel and dtype, or those of a table of {known}",
            source=source,
            where="line 1",
        )
    if "op" in frame and (modules := frame["op"].str.contains("module")).any():
        op = frame["op"][modules].iloc[0]
        raise InputError(
            f"has times of whole modules ({one_line(op, 40)}), which are several kernels; expected "
            "those of single ones",
            source=source,
        )
    return frame, time, kind


Sorted = Iterator[
    tuple[
        str, npt.NDArray[np.str_], npt.NDArray[np.str_], Mapping[str, Array], npt.NDArray[np.bool_]
    ]
]
"""For each class: its name, the dtype and distribution of each row, the sizes, and a mask of its
rows.
"""


def _rows_of(
    kernel: str,
    columns: TableColumns,
    sizes: Mapping[str, Array],
    chosen: npt.NDArray[np.bool_] | None = None,
) -> Sorted:
    count = len(columns.frame)
    rows = np.full(count, True) if chosen is None else chosen
    yield kernel, columns.known("dtype", DTYPE_NAMES), np.full(count, "uniform"), sizes, rows


def _own(columns: TableColumns) -> Sorted:
    kernels = columns.known("kernel", {name: name for name in CLASSES})
    dtypes = columns.known("dtype", DTYPE_NAMES)
    distributions = _distributions(columns)
    for kernel in dict.fromkeys(kernels.tolist()):
        missing = [name for name in CLASSES[kernel].sizes if not columns.has(name)]
        if missing:
            raise InputError(
                f"rows of {kernel} need a column {missing[0]}",
                source=columns.source,
                where="line 1",
            )
        chosen = kernels == kernel
        part = TableColumns(
            columns.frame.where(pandas.Series(chosen, index=columns.frame.index), "1"),
            columns.source,
        )
        yield (
            kernel,
            dtypes,
            distributions,
            {name: part.numbers(name) for name in CLASSES[kernel].sizes},
            chosen,
        )


def _distributions(columns: TableColumns) -> npt.NDArray[np.str_]:
    if not columns.has("distribution"):
        return np.full(len(columns.frame), "uniform")
    names = {
        name: "uniform" if name in ("", "balanced") else name
        for name in columns.frame["distribution"].unique()
    }
    for name in names.values():
        try:
            expected_loads(1, 1, 1, 1, name)
        except ValueError as error:
            line = columns.frame["distribution"].tolist().index(name) + 2
            raise InputError(str(error), source=columns.source, where=f"line {line}") from None
    return columns.known("distribution", names)


def _attention(columns: TableColumns) -> Sorted:
    """Sort the rows into prefill, with ``isl`` queries, and generation, with ``isl + step`` keys,
    which include the new one.
    """
    dtypes, kv_dtypes = (
        columns.known("dtype", DTYPE_NAMES),
        columns.known("kv_cache_dtype", DTYPE_NAMES, "fp16"),
    )
    labels = np.where((dtypes == "fp16") & (kv_dtypes == "fp8"), "fp16_fp8_cache", dtypes)
    sizes = {name: columns.numbers(name, 1) for name in ("batch", "heads", "kv_heads")} | {
        "width": columns.numbers("head_dim", 1)
    }
    queries, before = columns.numbers("isl", 1), columns.numbers("step")
    sizes |= {
        "queries": queries,
        "before": before,
        "keys": queries + before,
        "window": np.full(len(queries), float(NO_WINDOW)),
    }
    whole = columns.frame["op"].str.contains("context").to_numpy(bool)
    distributions = np.full(len(queries), "uniform")
    yield "context_attention", labels, distributions, sizes, whole
    yield "generation_attention", labels, distributions, sizes, ~whole


def _latent(columns: TableColumns) -> Sorted:
    queries, before = columns.numbers("isl", 1), columns.numbers("step")
    sizes = {"queries": queries, "before": before, "keys": queries + before}
    sizes |= {name: columns.numbers(name, 1) for name in ("batch", "heads")}
    whole = columns.frame["op"].str.contains("context").to_numpy(bool)
    yield from _rows_of("context_latent", columns, sizes, whole)
    yield from _rows_of("latent_attention", columns, sizes, ~whole)


def _moe(columns: TableColumns) -> Sorted:
    named = {"top": "topk", "tensor": "moe_tp", "ranks": "moe_ep"}
    sizes = {name: columns.numbers(named.get(name, name), 1) for name in CLASSES["moe"].sizes}
    yield (
        "moe",
        columns.known("dtype", DTYPE_NAMES),
        _distributions(columns),
        sizes,
        np.full(len(columns.frame), True),
    )


def _collective(columns: TableColumns) -> Sorted:
    """Sort the rows by collective. Sizes of messages are in elements, of one byte for int8 and two
    otherwise. All-reduces below the custom kernel's limit count as that kernel's unless NCCL ran
    them.
    """
    one_byte = (columns.frame["dtype"] == "int8").to_numpy(bool)
    sizes = {
        "ranks": columns.numbers("gpus", 2),
        "bytes": columns.numbers("message_elements_or_bytes", 1) * np.where(one_byte, 1, 2),
    }
    ops = columns.known("op", _COLLECTIVES, "all_reduce")
    dtypes = np.full(len(one_byte), "fp16")
    nccl = (
        (columns.frame["library"] == "NCCL").to_numpy(bool)
        if columns.has("library")
        else np.full(len(ops), columns.has("op"))
    )
    custom = ~nccl & (ops == "all_reduce") & (sizes["bytes"] < CUSTOM_BYTES)
    yield "custom_all_reduce", dtypes, np.full(len(ops), "uniform"), sizes, custom
    for kernel in _COLLECTIVES.values():
        yield kernel, dtypes, np.full(len(ops), "uniform"), sizes, (ops == kernel) & ~custom


_READERS: Mapping[str, Callable[[TableColumns], Sorted]] = {
    "hosim": _own,
    "gemm": lambda columns: _rows_of(
        "gemm", columns, {name: columns.numbers(name, 1) for name in "mnk"}
    ),
    "attention": _attention,
    "latent attention": _latent,
    "moe": _moe,
    "collectives": _collective,
}


def _kind(has: set[str]) -> str | None:
    """Return the key of :data:`_READERS` for a file with these columns; None if there is none."""
    if {"kernel", "dtype"} <= has:
        return "hosim"
    needed = {
        "gemm": {"m", "n", "k"},
        "moe": {"tokens", "hidden", "intermediate", "topk", "experts", "moe_tp", "moe_ep"},
        "attention": {"op", "batch", "isl", "step", "heads", "kv_heads", "head_dim"},
        "latent attention": {"op", "batch", "isl", "step", "heads"},
        "collectives": {"gpus", "message_elements_or_bytes"},
    }
    return next((kind for kind, columns in needed.items() if columns | {"dtype"} <= has), None)


def measured_times(table: KernelTable, file: str) -> MeasuredTimes:
    """Return a table, read from ``file``, as part of a profile."""
    columns = [table.sizes[name].astype(np.int64).tolist() for name in CLASSES[table.kernel].sizes]
    rows = tuple(zip(*columns, strict=True))
    return MeasuredTimes(
        file, table.kernel, table.dtype, table.distribution, rows, tuple(table.latency_us.tolist())
    )


def tables_text(tables: Sequence[KernelTable]) -> str:
    """Return tables as text in hosim's own layout: one header with the sizes of all classes, then a
    line for each row.
    """
    sizes = list(dict.fromkeys(name for table in tables for name in CLASSES[table.kernel].sizes))
    lines = [csv_line(("machine", "kernel", "dtype", "distribution", *sizes, "latency_us"))]
    for table in tables:
        columns = [table.sizes.get(name) for name in sizes]
        names = table.machine, table.kernel, table.dtype, table.distribution
        for i, us in enumerate(table.latency_us.tolist()):
            figures = ["" if column is None else int(column[i]) for column in columns]
            lines.append(csv_line((*names, *figures, f"{us:.10g}")))
    return "".join(lines)


def of_machine(
    tables: Sequence[KernelTable], machine: str | None, option: str
) -> list[KernelTable]:
    """Return the tables of one machine; ``None`` means the only machine. Raises
    :class:`InputError`, which names ``option``, if there is no such machine or if there are several
    to choose from.
    """
    machines = sorted({table.machine for table in tables})
    if machine is None and len(machines) == 1:
        return list(tables)
    if machine not in machines:
        said = (
            "the tables have several machines"
            if machine is None
            else f"the tables have no machine {machine!r}"
        )
        raise InputError(f"{said}; expected one of {', '.join(machines) or 'none'}", source=option)
    return [table for table in tables if table.machine == machine]


# -- tables of the times of one model's layers
# --------------------------------------------------------------------------------------------------
# The profiler of LLMServingSim (casys-kaist/LLMServingSim, MIT) records them. The model gives the
# sizes of the kernels among these layers. ``kernels_dense.csv`` has ``layer``, ``tokens`` and
# ``time_us``, ``kernels_per_sequence.csv`` ``layer``, ``sequences`` and ``time_us``,
# ``kernels_attention.csv`` ``prefill_chunk``, ``kv_prefill``, ``n_decode``, ``kv_decode`` and
# ``time_us``.

_COUNTS = ("tokens", "sequences")
_ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
Timed = tuple[str, Mapping[str, Array], Array]
"""A class of kernels, columns of its sizes by name, and microseconds."""
_STEP = {"phase": "prefill", "sequence": 16, "layers": 1, "merged": True, "fused": True}


def kernels_of_layers(
    columns: TableColumns, model: Mapping[str, Any], tell: Callable[[str], None]
) -> list[Timed]:
    """Return the class, the sizes and the times of each product and of attention in a table of
    layers.

    ``model`` has the parameters of a builder (:func:`hosim.io.models.builder.build`), with
    ``tensor`` if several devices shared a layer. ``tell`` is told which layers belong to none of
    hosim's classes of kernels, and how many rows have prompts beside sequences that decode. Raises
    :class:`InputError` for other columns, and if no row is left.
    """
    count = next((name for name in _COUNTS if columns.has(name)), "")
    if columns.has("time_us") and columns.has("layer") and count:
        found = list(_products_of_layers(columns, count, model, tell))
    elif columns.has("time_us") and all(map(columns.has, _ATTENTION)):
        found = list(_attention_of_layers(columns, model, tell))
    else:
        raise InputError(
            "expected layer, tokens or sequences, and time_us, or "
            f"{', '.join(_ATTENTION)} and time_us",
            source=columns.source,
            where="line 1",
        )
    if not found:
        raise InputError(
            "has no layer that is a product or attention of this model", source=columns.source
        )
    return found


def _kernels_of_a_layer(model: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the last part of the name, the class and the sizes of each kernel of one layer and the
    head.
    """
    for op in build("layer", {**model, **_STEP}).ops:
        if op.kernel:
            yield op.name.rpartition(".")[2], op.kernel, op.sizes


def _products_of_layers(
    columns: TableColumns, count: str, model: Mapping[str, Any], tell: Callable[[str], None]
) -> Iterator[Timed]:
    rows, us = columns.numbers(count, 1), columns.numbers("time_us", 1e-9)
    sizes = {name: of for name, kernel, of in _kernels_of_a_layer(model) if kernel == "gemm"}
    layers = columns.frame["layer"].to_numpy(str)
    other = sorted(set(layers.tolist()) - set(sizes))
    if other:
        tell(f"left out, as they are no products: {', '.join(other)}")
    for layer in [name for name in sizes if name in layers]:
        chosen, (_, n, k) = layers == layer, sizes[layer]
        m = rows[chosen]
        named = {"m": m, "n": np.full(len(m), float(n)), "k": np.full(len(m), float(k))}
        check_sizes("gemm", named, chosen, columns.source)
        yield "gemm", named, us[chosen]


def _attention_of_layers(
    columns: TableColumns, model: Mapping[str, Any], tell: Callable[[str], None]
) -> Iterator[Timed]:
    chunk, before, decodes, keys = (columns.numbers(name) for name in _ATTENTION)
    us = columns.numbers("time_us", 1e-9)
    found = [of for _, kernel, of in _kernels_of_a_layer(model) if kernel == "context_attention"]
    if not found:
        return
    *_, heads, kv_heads, width, _ = map(float, found[0])
    mixed = (chunk > 0) & (decodes > 0)
    if mixed.any():
        tell(
            f"left out: {counted(int(mixed.sum()), 'row')} of prompts beside sequences that "
            "decode, which are one kernel there and two here"
        )
    prompts, steps = (chunk > 0) & ~mixed, (decodes > 0) & ~mixed & (keys > 0)
    for kernel, chosen, sizes in (
        (
            "context_attention",
            prompts,
            {"batch": np.ones(len(us)), "queries": chunk, "before": before},
        ),
        ("generation_attention", steps, {"batch": decodes, "keys": keys}),
    ):
        if chosen.any():
            alike = {"heads": heads, "kv_heads": kv_heads, "width": width}
            alike |= {"window": float(NO_WINDOW)} if kernel == "context_attention" else {}
            sizes |= {name: np.full(len(us), value) for name, value in alike.items()}
            sizes = {name: values[chosen] for name, values in sizes.items()}
            check_sizes(kernel, sizes, chosen, columns.source)
            yield kernel, sizes, us[chosen]
