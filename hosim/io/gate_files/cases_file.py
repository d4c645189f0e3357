"""The cases of a gate: ``hosim.toml``, or the table ``[tool.hosim]`` of a ``pyproject.toml``.

::

    baselines = "hosim-baselines"            # the folder of the baseline files, beside this file
    tolerance = {peak = "0 B", makespan = "1%"}

    [cases.prefill]
    workload = "llama-3.1-8b-prefill-4k"     # or entry = "package.module:function"
    hardware = "h100-80gb-sxm"
    policy = "hyperoffload"                  # or plan = "plan.json"
    budget = "12 GiB"

    [cases.chat]                             # requests over time, with the options of hosim.serve
    hardware = "h100-80gb-sxm"
    serve = {model = "llama-3.1-8b", requests = "poisson:rate=10:count=300", limit = "ttft=2s"}

    [matrix.wide]                            # a case for each combination, and one baseline file, one line per case
    workloads = ["llama-3.1-8b-prefill-4k", "my-step.yaml"]
    hardware = ["h100-80gb-sxm", "gh200-96gb"]
    policies = ["hyperoffload", "layerwise"]
    budgets = ["75%"]                        # optional: by default, all of the device tier
    cover = "pairs"                          # pairwise coverage of workloads, machines and policies
"""

import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from hosim.base.files import check_lines, decode, format_of, read_bytes
from hosim.errors import InputError
from hosim.io.options import REQUIRED, Option, Options, declared
from hosim.io.validators import STRICT, Format, Name, mapping_type
from hosim.limits import refusal, within

_DOTTED = re.compile(r"""[\w\s.\[-]*""")
"""The beginning of a line that may be a dotted key, up to its first quote: each dot is one level of
nested tables.
"""

Tolerance = dict[Name, Name | dict[Name, Name]]
"""Tolerances by metric; a metric with a dot in its name may be written as a nested table."""


_ONE_STEP = "a case that serves requests has no plan of one step"
CASE: Options = tuple(
    option if option.of is bool or option.name == "hardware" else replace(option, default=None)
    for option in declared(
        "workload entry hardware policy plan strict rescale budget serve",
        Option("entry"),
        Option("plan", excludes={"policy": ""}),
        Option("strict", of=bool, default=False, needs=("plan",)),
        Option(
            "serve",
            of=dict[Name, Any],
            excludes=dict.fromkeys(("policy", "plan", "budget", "strict", "rescale"), _ONE_STEP),
        ),
    )
)
"""The options of a case; a missing key is ``None``, a missing flag false."""


def _key(option: Option) -> Any:
    """The type of a case's key in its file."""
    of = Name if option.of is str else option.of
    return of if option.default is REQUIRED else NotRequired[of]


if TYPE_CHECKING:
    _CaseModel = dict[str, Any]
else:
    _keys = {option.name: _key(option) for option in CASE}
    _CaseModel = mapping_type(
        "CaseModel",
        "What to plan and replay, on which machine, and how much may change.",
        {**_keys, "tolerance": NotRequired[Tolerance]},
    )


Names = Annotated[list[Name], Field(min_length=1)]


@with_config(STRICT)
class MatrixModel(TypedDict):
    """Cases by their workloads, machines, policies and budgets: all combinations, or pairwise
    coverage.
    """

    workloads: Names
    hardware: Names
    policies: Names
    budgets: NotRequired[Names]
    rescale: NotRequired[bool]
    cover: NotRequired[Literal["all", "pairs"]]
    tolerance: NotRequired[Tolerance]


@with_config(STRICT)
class CasesModel(TypedDict):
    """Everything that a gate checks. ``format`` may be omitted, because the file's location implies
    it.
    """

    format: Literal["hosim.cases/1"]
    baselines: NotRequired[Name]
    tolerance: NotRequired[Tolerance]
    cases: NotRequired[dict[Name, _CaseModel]]
    matrix: NotRequired[dict[Name, MatrixModel]]


FORMAT = Format("cases", lambda: TypeAdapter(CasesModel))


def load_cases(path: str | os.PathLike[str]) -> CasesModel:
    """Return the checked cases in a file; in a ``pyproject.toml``, those of its table
    ``tool.hosim``.

    Raises :class:`InputError`, which names the file and the path inside it.
    """
    source = os.fspath(path)
    data: Any = read_toml(source)
    if Path(source).name == "pyproject.toml":
        data = data.get("tool", {}).get("hosim")
        if data is None:
            raise InputError("no table [tool.hosim]; add one, or write a hosim.toml", source=source)
    _refuse_served_matrix(data, source)
    return FORMAT.check({"format": format_of("cases"), **data}, source)


def _refuse_served_matrix(data: Any, source: str) -> None:
    """Raise :class:`InputError` for a matrix with ``serve``; otherwise the error would be its
    missing workloads.
    """
    matrices = data.get("matrix") if isinstance(data, dict) else None
    for name, matrix in matrices.items() if isinstance(matrices, dict) else ():
        if isinstance(matrix, dict) and "serve" in matrix:
            said = (
                "a matrix plans single steps and cannot serve requests: write a table "
                "[cases.NAME] for each case that serves"
            )
            raise InputError(said, source=source, where=f"matrix.{name}.serve")


def read_toml(source: str) -> dict[str, Any]:
    """Return the data in a TOML file. Raises :class:`InputError`."""
    raw = read_bytes(source)
    check_lines(raw, source)
    text = decode(raw, source)
    within(
        "nesting_depth",
        max(
            (key[0].count(".") for line in text.splitlines() if (key := _DOTTED.match(line))),
            default=0,
        ),
        source=source,
    )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = next(
            (n for n, line in enumerate(text.splitlines(), 1) if line.startswith("<<<<<<< ")), 0
        )
        if line:
            said = (
                "a merge conflict: settle it by hand; of a baseline, 'hosim baseline update' "
                "writes the file again"
            )
            raise InputError(f"line {line}: {said}", source=source) from None
        raise InputError(f"broken TOML: {error}", source=source) from None
    except RecursionError:
        raise refusal("nesting_depth", source=source) from None
    except ValueError as error:
        raise InputError(f"broken TOML: {error}", source=source) from None
