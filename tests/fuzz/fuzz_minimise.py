"""A smaller input that breaks the contract in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fuzz_case import Case
from fuzz_server import Outcome, Server


def smaller(
    server: Server,
    case: Case,
    outcome: Outcome,
    tell: Callable[[Case, Outcome], object],
    tries: int,
) -> Case:
    """The smallest case that is found with so many tries; ``tell`` says which failures are the
    same.
    """
    wanted, left = tell(case, outcome), tries

    def holds(candidate: Case) -> bool:
        nonlocal left
        left -= 1
        (found,) = server.run([candidate])
        return tell(candidate, found) == wanted

    going = True
    while going and left > 0:
        going = False
        for candidate in _candidates(case):
            if left <= 0:
                break
            if holds(candidate):
                case, going = candidate, True
                break
    return case


def _candidates(case: Case) -> Iterator[Case]:
    """Less around it, fewer files, shorter files: large steps first."""
    for name in case.environment:
        yield replace(
            case, environment={key: text for key, text in case.environment.items() if key != name}
        )
    if case.streams != ("file", "file"):
        yield replace(case, streams=("file", "file"))
    for name in case.files:
        if not any(argument.endswith(name) for argument in case.arguments):
            yield replace(
                case, files={key: content for key, content in case.files.items() if key != name}
            )
    for pieces in (2, 4, 8, 16, 32):
        for name, content in case.files.items():
            length = len(content) // pieces
            if length:
                for at in range(0, len(content), length):
                    yield replace(
                        case, files={**case.files, name: content[:at] + content[at + length :]}
                    )
