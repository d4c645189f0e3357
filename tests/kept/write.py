"""Write kept tables anew, after a change that is meant to alter them: ``python tests/kept/write.py
kept_plans kept_bounds``.

The difference to the tables before then shows what has become better and what worse.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tables",
        nargs="+",
        choices=sorted(file.stem for file in HERE.glob("*.csv")),
        metavar="TABLE",
    )
    for name in parser.parse_args().tables:
        import_module(name).TABLE.write()


if __name__ == "__main__":
    main()
