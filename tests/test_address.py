"""The repository's address stands in ``project.urls`` alone. What names it says the same, or says
that there is none.
"""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ADDRESS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"].get("Repository")
NAMING = (
    "CONTRIBUTING.md",
    "docs/ci.md",
    "docs/first-policy.md",
    "docs/index.md",
    "docs/questions.md",
    ".github/actions/check/action.yml",
)
NONE_YET = "no public address yet"


@pytest.mark.parametrize("name", NAMING)
def test_a_page_names_the_address_or_says_that_there_is_none(name: str) -> None:
    text = " ".join((ROOT / name).read_text().replace("# ", "").split())
    if ADDRESS is None:
        assert NONE_YET in text
    else:
        assert NONE_YET not in text
        assert ADDRESS.removeprefix("https://github.com/") in text


def test_no_page_has_a_placeholder_for_it() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".github/**/*.yml")]
    placeholders = ("OWNER/", "git+URL", "clone URL", "@REVISION")
    found = [(p.name, word) for p in pages for word in placeholders if word in p.read_text()]
    assert found == []
