"""Docstrings of the public names are in numpydoc form, and complete: every parameter, what comes
back, what is raised, where it is from.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import hosim

ORDER = ["Parameters", "Attributes", "Returns", "Raises", "Notes", "References", "Examples"]
"""The sections of numpydoc that are used here, in its order."""

ROOT = Path(__file__).parents[1]
NAMES = sorted(set(hosim.__all__) - {"__version__"})
SHOWN = re.findall(r"^::: hosim\.(\S+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
"""What the documentation shows: the public names, and what authors of policies and runtimes use
besides.
"""

WITHOUT_EXAMPLES = {
    "on_torch.lower.insert.barriers",
    "io.importers.torch_programs.torch_export.import_plan",
}
"""What an example of would need a traced program for."""


def sections(docstring: str) -> tuple[str, dict[str, str]]:
    """What stands before the sections of a docstring, and the text of each; an underline has to be
    as long as its title.
    """
    lines = docstring.split("\n")
    heads = [i for i, line in enumerate(lines[:-1]) if line and re.fullmatch("-+", lines[i + 1])]
    assert all(len(lines[i]) == len(lines[i + 1]) for i in heads), heads
    assert all(not lines[i - 1] for i in heads), "a blank line stands before each section"
    ends = [*heads[1:], len(lines)][: len(heads)]
    return "\n".join(lines[: heads[0]] if heads else lines).strip(), {
        lines[i]: "\n".join(lines[i + 2 : end]).strip() for i, end in zip(heads, ends, strict=True)
    }


def items(section: str) -> dict[str, str]:
    """The entries of a section: an entry's head is not indented, its description is."""
    found: dict[str, str] = {}
    head = ""
    for line in section.split("\n"):
        if line and not line.startswith(" "):
            head = line
            assert head not in found
            found[head] = ""
        elif line:
            found[head] = f"{found[head]} {line.strip()}".strip()
    return found


def parameters(of: Any) -> list[str]:
    """What a caller may give."""
    if inspect.isclass(of) and issubclass(of, tuple):
        return [*inspect.signature(of).parameters]
    if inspect.isclass(of) and is_dataclass(of):
        return [field.name for field in fields(of) if field.init]
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    listed = inspect.signature(of.__init__ if inspect.isclass(of) else of).parameters.values()
    return [stars.get(p.kind, "") + p.name for p in listed if p.name != "self"]


def check(of: Any, *, public: bool) -> None:
    """Raise :class:`AssertionError` unless the docstring of a function or class is in form;
    ``public`` ones have sources and examples.
    """
    before, found = sections(inspect.getdoc(of) or "")
    summary = before.partition("\n\n")[0]
    assert summary.endswith("."), summary
    assert len(summary.split("\n")) <= 2, "the summary is one line, or two"
    assert list(found) == [name for name in ORDER if name in found], "known sections, in order"
    wanted = (
        {}
        if inspect.isclass(of) and issubclass(of, Exception) and of.__init__ is Exception.__init__
        else dict.fromkeys(parameters(of))
    )
    described = items(found["Parameters"]) if wanted else {}
    assert list(described) == list(wanted)
    for section in set(found) & {"Parameters", "Attributes", "Returns", "Raises"}:
        assert all(text.endswith(".") for text in items(found[section]).values()), section
    if not inspect.isclass(of):
        returned = inspect.signature(of).return_annotation
        assert ("Returns" in found) == (returned not in (None, "None"))
    raised = {
        name
        for name in items(found.get("Raises", ""))
        if not issubclass(getattr(hosim, name), hosim.HosimError)
    }
    assert not raised
    if public:
        assert all(
            (ROOT / page).is_file() for page in re.findall(r"docs/\w+\.md", found["References"])
        )
        assert ">>>" in found["Examples"]


def shown(name: str) -> Any:
    """What the documentation shows by this name."""
    module, _, last = f"hosim.{name}".rpartition(".")
    if ".insert." in name or "torch_export" in name:
        pytest.importorskip("torch")
    return getattr(importlib.import_module(module), last)


@pytest.mark.parametrize("name", SHOWN)
def test_names_that_the_documentation_shows(name: str) -> None:
    check(shown(name), public=name not in WITHOUT_EXAMPLES)


def methods() -> Iterator[Any]:
    """Those of the classes shown that take something beyond the object, as the documentation shows
    them too.
    """
    for name in sorted(set(SHOWN) - WITHOUT_EXAMPLES):
        of = shown(name)
        for member in vars(of).values() if inspect.isclass(of) else ():
            if (
                inspect.isfunction(member)
                and member.__name__[0] != "_"
                and len(inspect.signature(member).parameters) > 1
            ):
                yield pytest.param(member, id=member.__qualname__)


@pytest.mark.parametrize("method", [*methods()])
def test_methods_of_public_classes(method: Any) -> None:
    check(method, public=False)


def test_the_documentation_shows_the_public_names() -> None:
    assert sorted(name for name in SHOWN if "." not in name) == NAMES


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Sum two numbers\n\nParameters\n----------\na\n    One.\n\nReturns\n-------\nint\n    "
            "Both.",
            "Sum two numbers",
        ),
        ("Sum two numbers.\nThat is all.\nReally.", "one line"),
        (
            "Sum.\n\nReturns\n-------\nint\n    Both.\n\nParameters\n----------\na\n    One.",
            "in order",
        ),
        ("Sum.\n\nParameters\n---\na\n    One.", "assert"),
        (
            "Sum.\n\nParameters\n----------\nb\n    One.\n\nReturns\n-------\nint\n    Both.",
            "assert",
        ),
        ("Sum.\n\nParameters\n----------\na\n    One.", "assert"),
        (
            "Sum.\n\nParameters\n----------\na\n    One\n\nReturns\n-------\nint\n    Both.",
            "Parameters",
        ),
    ],
)
def test_what_is_out_of_form_is_found(text: str, said: str) -> None:
    def sample(a: int) -> int:
        return a

    sample.__doc__ = text
    with pytest.raises((AssertionError, KeyError), match=re.escape(said)):
        check(sample, public=False)
