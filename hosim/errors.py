"""The error tree: everything hosim raises on purpose.

::

    HosimError                 exit code 2 at the shell
    ├── InputError             a file, a name or an argument is wrong (says where and what was expected)
    │   └── UnitError          a quantity without its unit, or with the wrong one
    ├── GraphError             a workload graph that contradicts itself
    ├── HardwareError          a hardware profile that contradicts itself
    ├── PlanError              a plan that breaks a rule of the replay (carries the verifier's findings)
    ├── ExecutionError         a plan could not be carried out on a real machine: a full disk, an op that failed
    └── InfeasibleError        nothing fits (exit code 3; carries the out-of-memory report)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from hosim.plain_text import one_line

T = TypeVar("T")

LONGEST = 400
"""Characters of an error's text, at most: what is longer loses its middle."""


class HosimError(Exception):
    """The base of every error that hosim raises on purpose; its text is one line that says what to
    do.

    Parameters
    ----------
    text
        What is wrong. Control characters become escapes, and more than 400 characters lose their
        middle.

    Attributes
    ----------
    exit_code
        What the command line ends with: 2, or 3 for :class:`InfeasibleError`.

    References
    ----------
    ``hosim --help`` lists the exit codes.

    Examples
    --------
    >>> HosimError.exit_code, InfeasibleError.exit_code
    (2, 3)
    """

    exit_code = 2

    def __init__(self, text: str = "") -> None:
        super().__init__(one_line(text, LONGEST))


class InputError(HosimError):
    """A file, a name or an argument is wrong.

    Parameters
    ----------
    message
        What was expected, and what was found.
    source
        The file or the argument.
    where
        The path inside it.

    References
    ----------
    ``docs/formats.md`` describes what files hold.

    Examples
    --------
    >>> str(
    ...     InputError(
    ...         "expected a size such as '80 GiB', got 80",
    ...         source="hw.yaml",
    ...         where="tiers.hbm.capacity",
    ...     )
    ... )
    "hw.yaml: tiers.hbm.capacity: expected a size such as '80 GiB', got 80"
    """

    def __init__(
        self, message: str, *, source: str | None = None, where: str | None = None
    ) -> None:
        self.message = message
        self.source = source
        self.where = where
        super().__init__(": ".join(part for part in (source, where, message) if part))


Rule = tuple[str, object, str]
"""The path of what a rule is about, whether it is broken, and what to say then."""


def refuse(rules: Iterable[Rule], error: Callable[..., HosimError] = InputError) -> None:
    """Raise :class:`InputError`, or another ``error``, for the first of ``rules`` that is broken.

    >>> refuse([("zero", 4 > 3, "expected a stage from 0 to 3, got 4")])
    Traceback (most recent call last):
    hosim.errors.InputError: zero: expected a stage from 0 to 3, got 4
    """
    for where, broken, why in rules:
        if broken:
            raise error(why, where=where)


def expect(
    value: Any,
    kind: type[T],
    what: str,
    where: str | None = None,
    source: str | None = None,
    *,
    when: Callable[[T], object] = lambda _: True,
) -> T:
    """Return a ``value`` that was read from a file. Raises :class:`InputError`, with ``what`` was
    expected, unless its type is exactly ``kind`` and ``when`` holds for it.

    >>> expect([], list, "a list of at least one op", "ops", when=bool)
    Traceback (most recent call last):
    hosim.errors.InputError: ops: expected a list of at least one op
    """
    if type(value) is not kind or not when(value):
        raise InputError(f"expected {what}", source=source, where=where)
    return value


class UnitError(InputError):
    """A quantity whose unit is missing, unknown, or of another dimension.

    Parameters
    ----------
    message
        What was expected, and what was found.
    source
        The file or the argument.
    where
        The path inside it.

    References
    ----------
    :mod:`hosim.units` lists the units.

    Examples
    --------
    >>> from hosim.units import parse_size
    >>> parse_size("80")
    Traceback (most recent call last):
    hosim.errors.UnitError: expected a size with its unit, such as '80 GiB', got '80'
    """


class GraphError(HosimError):
    """A workload graph that contradicts itself.

    Parameters
    ----------
    message
        What is wrong.
    where
        The path of the culprit, as in a workload file.

    References
    ----------
    ``docs/formats.md`` describes workloads.

    Examples
    --------
    >>> str(GraphError("unknown tensor 'w'", where="ops[0].inputs[0]"))
    "ops[0].inputs[0]: unknown tensor 'w'"
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        self.message = message
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


class HardwareError(HosimError):
    """A hardware profile that contradicts itself.

    Parameters
    ----------
    message
        What is wrong.
    where
        The path of the culprit, as in a hardware file.

    References
    ----------
    ``docs/formats.md`` describes hardware profiles.

    Examples
    --------
    >>> str(HardwareError("expected a capacity above 0 B", where="tiers.hbm.capacity"))
    'tiers.hbm.capacity: expected a capacity above 0 B'
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        self.message = message
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


class PlanError(HosimError):
    """A plan that breaks a rule of the contract.

    Parameters
    ----------
    message
        Which rule is broken, and where.
    where
        The path of the culprit, as in a plan file.
    findings
        Every line of the verifier, if it was the verifier that refused the plan.

    References
    ----------
    ``docs/contract.md`` has the rules.

    Examples
    --------
    >>> PlanError(
    ...     "policy mine made a plan that breaks a rule",
    ...     findings=["detach of 'w' drops its last copy"],
    ... ).findings
    ("detach of 'w' drops its last copy",)
    """

    def __init__(self, message: str, *, where: str = "", findings: Sequence[str] = ()) -> None:
        self.message = message
        self.where = where
        self.findings = tuple(findings)
        super().__init__(f"{where}: {message}" if where else message)


def illegal_plan(message: str, findings: Sequence[object]) -> PlanError:
    """The error for a plan that breaks rules: the first finding after ``message``, and how many
    more there are.

    >>> print(
    ...     illegal_plan(
    ...         "the plan breaks a rule", ["detach of 'w' drops its last copy", "op 'f' reads 'w'"]
    ...     )
    ... )
    the plan breaks a rule: detach of 'w' drops its last copy (and 1 more)
    """
    lines = [str(finding) for finding in findings]
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return PlanError(f"{message}: {lines[0]}{more}", findings=lines)


class ExecutionError(HosimError):
    """A plan could not be carried out on a real machine: a full disk, a file that vanished, an op
    that failed.

    What is neither lost nor left is where it was before.

    Parameters
    ----------
    message
        What failed.
    lost
        The tensors whose contents went with it.
    left
        Tensors that have no room where they belong: they stay where the plan has them until what
        holds them is closed again.
    for_host
        Those of ``left`` that belong in the host's memory; the others belong on the device.
    held
        What holds them, if the caller has nothing to close: ``held.close()`` tries again.

    References
    ----------
    ``docs/executor.md`` says what the executor does about failures.

    Examples
    --------
    >>> str(ExecutionError("store of 'w' from hbm to nvme: No space left on device", lost=["w"]))
    "store of 'w' from hbm to nvme: No space left on device; the contents of 'w' are lost"
    """

    def __init__(
        self,
        message: str,
        *,
        lost: Sequence[str] = (),
        left: Sequence[str] = (),
        for_host: Sequence[str] = (),
        held: Any = None,
    ) -> None:
        self.message = message
        self.lost = tuple(lost)
        self.left = tuple(left)
        self.for_host = tuple(for_host)
        self.held = held
        message += f"; the contents of {_some(self.lost)} are lost" if lost else ""
        again = "close again" if held is None else "call held.close() of this error"
        for place, names in (("device", set(left) - set(for_host)), ("host", set(for_host))):
            there = [name for name in left if name in names]
            message += (
                f"; the {place} has no room for {_some(there)}: free memory there and {again}"
                if there
                else ""
            )
        super().__init__(message)


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (
        f" and {len(names) - 5} more" if len(names) > 5 else ""
    )


class InfeasibleError(HosimError):
    """Nothing fits: no plan, or not this one, runs within the budget.

    Parameters
    ----------
    message
        What does not fit.
    report
        The out-of-memory report.

    References
    ----------
    ``docs/contract.md`` says when a replay is out of memory.

    Examples
    --------
    >>> str(InfeasibleError("out of memory: op 'f' needs 40 B"))
    "out of memory: op 'f' needs 40 B"
    """

    exit_code = 3

    def __init__(self, message: str, *, report: str = "") -> None:
        self.report = report
        super().__init__(message)


@contextmanager
def errors_of(source: str | None) -> Iterator[None]:
    """Make each error about data an :class:`InputError` that names ``source`` and the path inside
    it.
    """
    try:
        yield
    except (GraphError, HardwareError, InputError) as error:
        other = getattr(error, "source", None)  # a file that this one names
        message = f"{other}: {error.message}" if other not in (None, source) else error.message
        raise InputError(message, source=source, where=error.where) from None
