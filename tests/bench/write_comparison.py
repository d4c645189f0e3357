"""``python tests/bench/write_comparison.py CELLS``: the tables of docs/comparison.md, from what
``tests/bench/grid.py --moves`` wrote.

The page names the command that makes the cells. A cell that is not there is an error: none is left
out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from grid import SHARES, Cell, known

from hosim.shipped import workloads

PAGE = Path(__file__).resolve().parents[2] / "docs" / "comparison.md"
MACHINE = "h100-80gb-sxm"
"""The machine of the page, of which there is one device; cells of others are left aside."""
EVEN = 0.01
"""Less is no advantage."""


def ahead(own_ns: int | None, rival_ns: int | None) -> str:
    """The part of the strongest rival's time that hyperoffload takes less."""
    if own_ns is None:
        return "nothing fits" if rival_ns is None else "only the rival fits"
    return "alone fits" if rival_ns is None else f"{1 - own_ns / rival_ns:+.1%}".replace("%", " %")


def no_advantage_from(
    times: Sequence[tuple[int | None, int | None]], shares: Sequence[str] = SHARES
) -> str:
    """The least share from which on the strongest rival is as good, of pairs of own and rival's
    times from the largest share down.
    """
    least = "none"
    for share, (own_ns, rival_ns) in zip(shares, times, strict=True):
        if own_ns is not None and (rival_ns is None or own_ns <= (1 - EVEN) * rival_ns):
            break
        if own_ns is not None:
            least = share
    return least


def tables(cells: Sequence[Cell], names: Sequence[str]) -> dict[str, str]:
    """The page's tables by their names."""
    by_key = {
        (cell.workload, cell.share): cell
        for cell in cells
        if (cell.machine, cell.devices) == (MACHINE, 1)
    }
    missing = [
        f"{name} at {share}" for name in names for share in SHARES if (name, share) not in by_key
    ]
    if missing:
        raise SystemExit(f"not among the cells: {', '.join(missing)}")
    rows = {name: [by_key[name, share] for share in SHARES] for name in names}

    def compared(own: Callable[[Cell], int | None]) -> str:
        times = {name: [(own(cell), cell.rival_ns) for cell in row] for name, row in rows.items()}
        return table(
            ["workload", "machine", *SHARES, "no advantage from"],
            [
                [
                    name,
                    rows[name][0].machine,
                    *(ahead(*pair) for pair in row),
                    no_advantage_from(row),
                ]
                for name, row in times.items()
            ],
        )

    return {
        "moves": compared(lambda cell: cell.moves_ns),
        "rivals": table(
            ["workload", *SHARES],
            [[name, *(cell.rival or "none fits" for cell in row)] for name, row in rows.items()],
        ),
        "whole": compared(lambda cell: cell.own_ns),
    }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


def main() -> None:
    """Runs the command."""
    text = PAGE.read_text()
    for name, lines in tables(known(Path(sys.argv[1])), workloads()).items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        assert text.count(begin) == 1, name
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{lines}\n\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
