"""Options: the checks, the spelling and the documentation that follow from their declaration."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hosim
from hosim.errors import InputError
from hosim.io.gate_files import CASE
from hosim.io.options import OPTIONS, REQUIRED, Option, check_together, declared, is_given, keywords

ROOT = Path(__file__).parents[1]
PUBLIC = [name for name in hosim.__all__ if inspect.isfunction(getattr(hosim, name))]


@keywords(
    Option("much", of=int, default=2, least=1, about="How much."),
    Option("how", default="fast", known=lambda: ("fast", "slow"), needs=("much",), about="How."),
    Option("never", of=bool, default=False, excludes={"budget": "it is never"}, about="Never."),
    *declared("rescale"),
)
def sample(budget: str | None = None, **options: Any) -> dict[str, Any]:
    """Sample.

    Returns
    -------
    dict
        What is given.
    """
    return {"budget": budget, **options}


def test_what_is_left_out_has_its_default() -> None:
    assert sample() == {"budget": None, "much": 2, "how": "fast", "never": False, "rescale": False}
    assert sample("1 GB", much=3, how="slow")["how"] == "slow"
    assert list(inspect.signature(sample).parameters) == [
        "budget",
        "much",
        "how",
        "never",
        "rescale",
    ]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"mush": 3}, "sample: unknown option 'mush'; did you mean 'much'?"),
        ({"much": 0}, "much: expected a whole number of at least 1, got 0"),
        ({"much": True}, "much: expected a whole number of at least 1, got True"),
        ({"never": 1}, "never: expected true or false, got 1"),
        ({"how": "fas"}, "how: unknown how 'fas'; did you mean 'fast'?"),
        ({"how": ["fast"]}, "how: expected a text, got ['fast']"),
        ({"how": "slow"}, "sample: how requires much"),
        (
            {"budget": "1 GB", "never": True},
            "sample: never and budget exclude each other: it is never",
        ),
    ],
)
def test_what_is_wrong_is_one_clear_error(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        sample(**asked)
    assert str(refused.value) == said


def test_the_docstring_has_what_is_declared() -> None:
    said = inspect.getdoc(sample) or ""
    entries = dict(re.findall(r"^(\w+)\n((?:    .*\n)+)", said, re.MULTILINE))
    assert [name for name in entries if name != "dict"] == [*inspect.signature(sample).parameters]
    assert " ".join(entries["rescale"].split()) == OPTIONS["rescale"].about
    assert entries["much"] == "    How much.\n"


CHAIN = tuple(
    Option(name, of=int, default=0, needs=needs, excludes=excludes)
    for name, needs, excludes in (("a", (), {}), ("b", ("a", "c"), {}), ("c", (), {"a": ""}))
)


@given(st.fixed_dictionaries({name: st.integers(0, 2) for name in "abc"}))
def test_what_goes_together(values: dict[str, int]) -> None:
    """By hand: b needs a or c, and c excludes a."""
    a, b, c = (values[name] > 0 for name in "abc")
    fine = not (b and not a and not c) and not (a and c)
    try:
        check_together(CHAIN, values, "x")
    except InputError as error:
        assert not fine
        assert error.source == "x"
    else:
        assert fine


def test_the_shell_spells_options_its_own_way() -> None:
    with pytest.raises(InputError, match=r"^plan: --steps requires --routing$"):
        check_together(declared("routing steps"), {"steps": "1"}, "plan", at_shell=True)


def test_a_value_of_another_type_is_given() -> None:
    option = Option("seed", of=int, default=0)
    assert [is_given(option, value) for value in (0, 1, False, "0", None)] == [
        False,
        True,
        True,
        True,
        True,
    ]


def test_what_is_declared_fits_together() -> None:
    for name, option in OPTIONS.items():
        assert option.name == name
        assert option.default is REQUIRED or option.default == option.read(option.default)
        assert {*option.needs, *option.excludes} <= {*OPTIONS}
        assert not option.about or option.about.endswith(".")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("allocator", "ledger, caching, caching-expandable, static"),
        ("account", "time, program"),
        ("plan_against", "allocated, reserved"),
    ],
)
def test_a_name_that_there_is_not_is_refused_with_those_that_there_are(
    name: str, known: str
) -> None:
    with pytest.raises(InputError, match=rf"^{name}: unknown .* 'x' \(known: {known}\)$"):
        OPTIONS[name].read("x")


def test_public_functions_have_at_most_ten_parameters() -> None:
    """More are options, which one table declares."""
    long = {}
    for name in PUBLIC:
        function = inspect.unwrap(getattr(hosim, name))
        node = ast.parse(inspect.getsource(function)).body[0]
        assert isinstance(node, ast.FunctionDef)
        long[name] = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
    assert {name: count for name, count in long.items() if count > 10} == {}


def test_the_page_of_formats_has_the_keys_of_a_case() -> None:
    told = re.findall(
        r"^\| `cases\.NAME\.(\w+)` \| (.+?) \|", (ROOT / "docs/formats.md").read_text(), re.M
    )
    keys = {option.name: option.default for option in CASE}
    also = {
        re.search(r"or `(\w+)`", line)[1]
        for line in (ROOT / "docs/formats.md").read_text().splitlines()
        if line.startswith("| `cases.NAME.policy`")
    }
    assert {name for name, _ in told} - {"tolerance"} | also == {*keys}
    flags = {name: default for name, default in told if name in ("strict", "rescale", "hardware")}
    assert flags == {"hardware": "required", "strict": "`false`", "rescale": "`false`"}
