"""How long the program and the package take to start."""

import doctest
import subprocess
import sys

from measures import cpu_of_children, cpu_seconds, least, measure

import hosim


def process(*arguments: str):
    return lambda: subprocess.run([sys.executable, *arguments], capture_output=True, check=True)


@measure("hosim --help, in imports of its argument parser", most=3)
def helping() -> float:
    help_, parsing = least(
        [
            process("-c", "from hosim.cli.main import main; main()", "--help"),
            process("-c", "import typer"),
        ],
        clock=cpu_of_children,
    )
    return help_ / parsing


@measure("import hosim, beyond what it needs of the standard library", most=0.15, unit="s")
def importing() -> float:
    own, standard = least(
        [process("-c", "import hosim"), process("-c", "import dataclasses, typing, inspect")],
        clock=cpu_of_children,
    )
    return own - standard


@measure("the slowest example in a docstring of hosim's public names", most=10, unit="s")
def examples() -> float:
    seconds = []
    for name in hosim.__all__:
        if name != "__version__":
            named = getattr(hosim, name)
            found = doctest.DocTestFinder(recurse=False).find(
                named, name, globs={**vars(sys.modules[named.__module__])}
            )
            seconds += [
                cpu_seconds(
                    lambda test=test: doctest.DocTestRunner(verbose=False).run(
                        test, out=lambda _: None
                    )
                )
                for test in found
            ]
    return max(seconds)
