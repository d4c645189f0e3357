"""``python tests/write_pages.py [PAGE...]``: writes what the commands of the documentation print
now.

Where ``...`` stands for left-out lines, each part that is shown becomes the most similar lines of
as many that are printed after the part before. The paragraph of seconds stays. Look at the
difference before committing it: a page may also say in its text what has changed.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from difflib import SequenceMatcher
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from doc_pages import PAGES, blocks, commands
from test_docs import ILLUSTRATIVE, TIMED, Session, agrees


def shown_now(shown: str, printed: str) -> str:
    """What a page shows of what is printed now, in the form of what it has shown."""
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    if "..." not in shown.splitlines():
        before = iter(re.findall(rf"^{TIMED}.*?(?:\n\n|\Z)", shown, re.M | re.S))
        return re.sub(
            rf"^{TIMED}.*?(?:\n\n|\Z)",
            lambda found: next(before, found[0]),
            "\n".join(lines),
            flags=re.M | re.S,
        )
    parts, begin = [], 0
    for part in re.split(r"^\.\.\.$", shown, flags=re.M):
        wanted = part.strip("\n").splitlines()
        places = range(begin, max(begin + 1, len(lines) - len(wanted) + 1))
        if wanted:
            best = max(
                places,
                key=lambda at: sum(
                    SequenceMatcher(None, a, b).ratio()
                    for a, b in zip(wanted, lines[at:], strict=False)
                ),
            )
            begin = best + len(wanted)
            parts.append("\n".join(lines[best:begin]))
        else:
            parts.append("")
    return "\n...\n".join(parts).strip("\n")


def rewrite(page: Path) -> int:
    """Bring a page up to date; returns how many commands print something else than it has shown."""
    text = page.read_text()
    session = Session(Path(tempfile.mkdtemp()))
    os.chdir(session.folder)
    sys.path.insert(0, str(session.folder))
    changed = 0
    for block in blocks(text):
        if block.language != "console" or block.title:
            session.run(block)
            continue
        for command in commands(block):
            if command.line in ILLUSTRATIVE:
                continue
            printed = session.printed(command.line)
            if command.shown and not agrees(command.shown, printed):
                now = shown_now(command.shown, printed)
                if command.shown not in text:
                    print(f"{page.name}: change it by hand: {command.line}")
                    continue
                text = text.replace(command.shown, now, 1)
                changed += 1
    sys.path.remove(str(session.folder))
    page.write_text(text)
    return changed


if __name__ == "__main__":
    asked = {Path(name).resolve() for name in sys.argv[1:]}
    for path in [page for page in PAGES if not asked or page in asked]:
        print(f"{path.name}: {rewrite(path)} commands", flush=True)
