"""The rows of a table of measured kernel times, CSV or Parquet, and its columns, checked as they are
read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import pandas

from hosim.analysis.costmodel.kernels import DTYPES, first_wrong
from hosim.analysis.costmodel.kernels.op_families import Array
from hosim.base.files import cell_text, check_widths, csv_rows, decode, read_bytes
from hosim.errors import InputError
from hosim.limits import within
from hosim.plain_text import counted, one_line

PARQUET = b"PAR1"
"""The first bytes of a Parquet file."""

_LONGER = {
    "gemm_dtype": "dtype",
    "attn_dtype": "dtype",
    "mla_dtype": "dtype",
    "moe_dtype": "dtype",
    "nccl_dtype": "dtype",
    "allreduce_dtype": "dtype",
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
"""The labels of dtypes in files."""


def table_frame(source: str, tell: Callable[[str], None]) -> pandas.DataFrame:
    """The rows of a file, CSV or Parquet, as texts. Raises :class:`InputError`."""
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
    """The rows of a Parquet file as texts, of kernels in CUDA graphs where the file has both them
    and launched ones.
    """
    if find_spec("pyarrow") is None:
        raise InputError(
            "Parquet needs pyarrow, which is not installed; run: pip install 'hosim[parquet]'",
            source=source,
        )
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile  # here, as it takes long to import

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
    """The columns of a file, checked as they are read."""

    frame: pandas.DataFrame
    source: str

    def has(self, name: str) -> bool:
        """Return whether there is such a column."""
        return name in self.frame

    def numbers(self, name: str, least: float = 0.0) -> Array:
        """A column of numbers from ``least`` on. Raises :class:`InputError` with the line."""
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
        """A column of names, each by what hosim calls it."""
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
    """Raise :class:`InputError` for sizes that no kernel of the class has; ``chosen`` are the lines
    of the file that they are from.
    """
    wrong = first_wrong(kernel, sizes)
    if wrong is not None:
        row, expected = wrong
        where = f"line {np.flatnonzero(chosen)[row] + 2}"
        raise InputError(f"expected {expected}", source=source, where=where)
