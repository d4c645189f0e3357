"""The pages of the documentation as tests see them: fenced blocks, links, headings and the commands
in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "changelog.d/README.md"])

LONG = "<!-- long -->\n"
"""What stands before a block that takes more than two seconds."""
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)(?: "
    r'title="(?P<title>[^"]+)")?\n(?P<text>.*?)^(?P=indent)```$',
    re.M | re.S,
)
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(?P<title>.+)$", re.M)
_ANCHOR = re.compile(r'<a id="(?P<name>[^"]+)"></a>')


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the file that it is (its title; empty if it is none), its
    text, and the line it begins in.

    It is ``long`` where a comment before it says so: then it is run by the long tests alone.
    """

    language: str
    title: str
    text: str
    line: int
    long: bool = False


@dataclass(frozen=True)
class Command:
    """One command of a ``console`` block, and what the page says that it prints (empty: nothing is
    said).
    """

    line: str
    shown: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = []
    for match in _FENCE.finditer(text):
        indent = len(match["indent"])
        body = "".join(
            line[indent:] if line.strip() else "\n"
            for line in match["text"].splitlines(keepends=True)
        )
        line, long = text.count("\n", 0, match.start()) + 1, text[: match.start()].endswith(LONG)
        found.append(Block(match["language"], match["title"] or "", body, line, long))
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a ``console`` block: lines that begin with ``$``, which a backslash
    continues, each with the lines after it.
    """
    found: list[tuple[str, list[str]]] = []
    continued = False
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif continued:
            found[-1] = (found[-1][0][:-1] + line.strip(), [])
        else:
            found[-1][1].append(line)
        continued = (line.startswith("$ ") or continued) and line.endswith("\\")
    return [Command(command, "\n".join(shown).strip("\n")) for command, shown in found]


def links(text: str) -> Iterator[str]:
    """The targets of the links and pictures of a page, outside fenced blocks, that are not on the
    web.
    """
    for match in _LINK.finditer(without_blocks(text)):
        if not re.match(r"[a-z]+:", match["target"]):
            yield match["target"]


def anchors(text: str) -> set[str]:
    """What a link into the page may name: its headings, as GitHub and MkDocs both write them, and
    its explicit anchors.
    """
    plain = without_blocks(text)
    slugs = {
        re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")
        for heading in _HEADING.findall(plain)
    }
    return slugs | set(_ANCHOR.findall(plain))


def without_blocks(text: str) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", text)


def inline_commands(text: str) -> list[str]:
    """Commands of hosim in the running text, between single backticks."""
    return re.findall(r"(?<!`)`(hosim [a-z][^`]*)`(?!`)", without_blocks(text))
