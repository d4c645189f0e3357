"""A runtime: what the software that people run adds to a machine in time and in memory, as frozen
figures.

A machine says how fast a kernel is and how much memory there is. The software around it decides how
many kernels a step has, how fast a whole step of them is, what a host thread takes to issue one,
and what lies in the device's memory beside tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from math import exp
from typing import Any

from hosim.data.field_kinds import keep_kinds
from hosim.errors import HardwareError, Rule, refuse
from hosim.plain_text import named
from hosim.units import human_size

DEVIATIONS = 1.6449
"""So many standard deviations to either side have 90 % of a normal distribution."""

COPIES = ("prefetch", "store")
"""The cache ops that copy, as :mod:`hosim.cache_plan` names them."""


@dataclass(frozen=True, slots=True)
class RuntimeFigure:
    """A figure of a runtime, and how sure it is.

    ``spread`` is the standard deviation of the logarithm of what others saw over ``value``: 0.1 is
    about 10 %. ``one_row``: it rests on a single measurement, so that its spread is an assumption.

    >>> [round(end, 2) for end in RuntimeFigure(2.0, 0.1).ends]
    [1.7, 2.36]
    """

    value: float
    spread: float = 0.0
    source: str = field(default="", compare=False)
    one_row: bool = False

    def __post_init__(self) -> None:
        keep_kinds(self, HardwareError, "a figure of a runtime")
        if not 0 <= self.value < 1e18 or not 0 <= self.spread <= 10:
            raise HardwareError(
                f"expected a value from 0 to 10^18 and a spread from 0 to 10, got {self.value:g} "
                f"and {self.spread:g}"
            )

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of its 90 % interval."""
        return self.value / exp(DEVIATIONS * self.spread), self.value * exp(
            DEVIATIONS * self.spread
        )


ONE, NONE = RuntimeFigure(1.0), RuntimeFigure(0.0)


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime of one version.

    Parameters
    ----------
    name
        Its name; ``software`` says which versions of what it is.
    runs
        Which steps it runs: ``train`` and ``inference``.
    options
        Parameters of a builder that it sets, such as ``fused``; what a user gives wins.
    speed
        What a whole step sustains of the speed that its kernels have alone on the device.
    row_rate
        Bytes per second that one multiprocessor reads at most in a product of one row in 16 bits;
        0: as many as it gets.
    mixture
        Nanoseconds that the kernels of a mixture of experts take beside their products: sorting,
        launches, adding up; 0: what the measured kernels take.
    exposed
        For so many times the time for which collectives run beside them, on streams of their own,
        other ops stand still, spread over the step; 0: they run beside each other as if alone.
    host
        Nanoseconds that a call of the host thread takes: of an op, or of a copy (docs/contract.md,
        rule 23).
    host_copy
        Nanoseconds that the call of a copy takes beyond that.
    segments
        Whether one call launches the ops between two cache ops, as it does a captured graph.
    ahead, gathers
        So many ops, and gathers whose results are in use, the host is ahead of the device at most;
        0: without end.
    stores
        So many copies down of activations are under way when the host goes on at most; 0: without
        end.
    blocks
        After whose call the host waits for the end: kinds of ops, and ``prefetch`` and ``store``.
    pins, pin, pin_rate
        For which of ``prefetch`` and ``store`` the host pins the tensor's host memory, each time,
        and what that takes: nanoseconds each, and bytes per second (0: bytes take no time).
    pins_once
        Whether it pins a tensor's host memory the first time alone: a step that repeats finds it
        pinned.
    cache_copy, copy_time
        A cache of keys and values moves in copies of so many bytes at most (0: at once), each of
        which takes so many nanoseconds beside its bytes.
    copy_buffers
        So many buffers for what comes up lie on the device, each of the size of the largest tensor
        of its kinds.
    request
        Nanoseconds that a server takes for a request beside iterations: tokenizing, admission, looking
        up its prefix, and its way to the engine and back.
    connector
        Nanoseconds that an iteration of a server takes longer where a connector keeps a cache below
        the device, or sends it to other engines.
    graph_sizes
        The tokens, in ascending order, for which a server has captured graphs of an iteration: one of
        fewer tokens takes as long as the next size. Above the last, and without any, it is not padded.
    cpu_optimizer
        The share of host memory's bandwidth that an optimizer on the CPU reaches; 0: what the
        profile says.
    buffers
        Bytes that its allocator hands out beside the tensors of the program: buckets, parameters
        gathered ahead, workspaces of libraries.
    allocated, reserved
        The bytes that its allocator hands out at most, over the peak of a replay (``buffers``
        beside); and all that it holds, over those.
    iteration
        What an inference engine measures for the largest iteration before it makes its cache, over
        what hosim computes for it.
    recorded
        The share of what the collectives of that iteration read and write that the allocator still
        holds when it ends: torch's ``record_stream`` under a host that is ahead of the device.
    sampling
        How many times the fp32 logits of all its sequences it holds to choose the next tokens.
    counted
        Bytes outside its allocator that such an engine counts then; 0: all of ``context``,
        ``collectives`` and ``graphs``.
    tokens, sequences
        What an iteration has at most unless told, on a device of 70 GiB and more; 0: as elsewhere.
    pads
        Of what the sizes of experts in mxfp4 are multiples: ``hidden`` and ``intermediate``.
    context, collectives, graphs
        Bytes of the device beside the allocator's: modules and context, buffers of collectives
        where several devices run, captured graphs.
    pageable
        Bytes per second of copies from and to host memory that is not pinned; 0: it is pinned.
    source
        Where the figures are from as a whole.

    Raises
    ------
    HardwareError
        If a figure is none.

    References
    ----------
    ``docs/runtimes.md`` says how the shipped ones were fitted.

    Examples
    --------
    >>> Runtime("mine", speed=RuntimeFigure(0.8, 0.1)).speed.value
    0.8
    """

    name: str
    software: str = field(default="", compare=False)
    source: str = field(default="", compare=False)
    runs: tuple[str, ...] = ()
    options: Mapping[str, bool | int | str] = field(default_factory=dict)
    speed: RuntimeFigure = ONE
    row_rate: RuntimeFigure = NONE
    mixture: RuntimeFigure = NONE
    exposed: RuntimeFigure = NONE
    host: RuntimeFigure = NONE
    host_copy: RuntimeFigure = NONE
    segments: bool = False
    ahead: RuntimeFigure = NONE
    gathers: RuntimeFigure = NONE
    stores: RuntimeFigure = NONE
    blocks: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    pin: RuntimeFigure = NONE
    pin_rate: RuntimeFigure = NONE
    pins_once: bool = False
    cache_copy: RuntimeFigure = NONE
    copy_time: RuntimeFigure = NONE
    copy_buffers: RuntimeFigure = NONE
    request: RuntimeFigure = NONE
    connector: RuntimeFigure = NONE
    graph_sizes: tuple[int, ...] = ()
    cpu_optimizer: RuntimeFigure = NONE
    pageable: RuntimeFigure = NONE
    buffers: RuntimeFigure = NONE
    allocated: RuntimeFigure = ONE
    reserved: RuntimeFigure = ONE
    iteration: RuntimeFigure = ONE
    recorded: RuntimeFigure = NONE
    sampling: RuntimeFigure = NONE
    counted: RuntimeFigure = NONE
    tokens: RuntimeFigure = NONE
    sequences: RuntimeFigure = NONE
    pads: Mapping[str, int] = field(default_factory=dict)
    context: RuntimeFigure = NONE
    collectives: RuntimeFigure = NONE
    graphs: RuntimeFigure = NONE

    def __post_init__(self) -> None:
        keep_kinds(self, HardwareError, f"runtime {named(self.name)}")
        refuse(self._rules(), HardwareError)

    def _rules(self) -> Sequence[Rule]:
        pads, sizes = self.pads, (0, *self.graph_sizes)
        return (
            *[
                (f"{name}.value", getattr(self, name).value <= 0, "expected a value above 0")
                for name in ("speed", "allocated", "reserved", "iteration")
            ],
            *[
                (f"{name}.value", getattr(self, name).value % 1, "expected a whole number")
                for name in ("ahead", "gathers", "stores", "copy_buffers", "tokens", "sequences")
            ],
            (
                "pads",
                pads
                and (
                    set(pads) != {"hidden", "intermediate"}
                    or not all([type(each) is int and 0 < each <= 2**20 for each in pads.values()])
                ),
                "expected hidden and intermediate, from 1 to 2^20",
            ),
            (
                "graph_sizes",
                not all([type(size) is int and size <= 2**20 for size in sizes])
                or any([size <= before for before, size in pairwise(sizes)]),
                "expected whole numbers from 1 to 2^20, in ascending order",
            ),
            ("pins", set(self.pins) - set(COPIES), f"expected {' and '.join(COPIES)} alone"),
            (
                "pins_once",
                self.pins_once and not self.pins,
                "expected pins beside it, which say what is pinned",
            ),
            (
                "segments",
                self.segments and not self.host.value,
                "expected host beside it, which says what a call takes",
            ),
            (
                "copy_time",
                self.copy_time.value and not self.cache_copy.value,
                "expected cache_copy beside it",
            ),
            *[
                (f"{name}.value", getattr(self, name).value > 1, "expected at most 1: a share")
                for name in ("cpu_optimizer", "recorded")
            ],
        )

    @property
    def _limits(self) -> tuple[tuple[RuntimeFigure, str], ...]:
        return (self.ahead, "ops"), (self.gathers, "gathers")

    @property
    def has_host(self) -> bool:
        """Return whether the host is a process of a replay: it takes time for calls or pinning, is
        ahead by a limit or waits.
        """
        return bool(self.host.value or self.host_copy.value or self.pins_each_time or self.waits)

    @property
    def pins_each_time(self) -> tuple[str, ...]:
        """Return the cache ops for which it pins memory in a step that repeats."""
        return () if self.pins_once else self.pins

    @property
    def waits(self) -> bool:
        """Return whether the host waits for the device."""
        return bool(self.ahead.value or self.gathers.value or self.stores.value or self.blocks)

    @property
    def known(self) -> Mapping[str, RuntimeFigure]:
        """The figures that it has, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.type is RuntimeFigure}
        return {name: value for name, value in found.items() if value not in (ONE, NONE)}

    @property
    def line(self) -> str:
        """Return a note on it for readers of the figures, in one line."""
        said = (
            [f"kernels at {self.speed.value:.2f} of the speed that they have alone"]
            if self.speed.value != 1
            else []
        )
        if self.row_rate.value:
            rate = f"{self.row_rate.value / 1e9:g} GB/s"
            said.append(f"a multiprocessor reads {rate} at most in products of one row")
        if self.mixture.value:
            said.append(f"{self.mixture.value / 1000:g} us of a mixture beside its products")
        if self.exposed.value:
            said.append(f"{self.exposed.value:g} times the time of collectives is exposed")
        said += (
            [f"{self.host.value / 1000:g} us of the host for each call"] if self.host.value else []
        )
        said += (
            [f"{self.host_copy.value / 1000:g} us more for each copy"]
            if self.host_copy.value
            else []
        )
        said += ["ops between cache ops are one call"] if self.segments else []
        said += [
            f"the host is {figure.value:g} {what} ahead at most"
            for figure, what in self._limits
            if figure.value
        ]
        said += (
            [f"{self.stores.value:g} copies down of activations are under way at most"]
            if self.stores.value
            else []
        )
        said += [f"the host waits for each {', '.join(self.blocks)}"] if self.blocks else []
        if self.pins:
            often = "once, before this step" if self.pins_once else "each time"
            said.append(f"the host pins memory for {', '.join(self.pins)} {often}")
        if self.cache_copy.value:
            said.append(f"a cache moves in copies of {human_size(round(self.cache_copy.value))}")
        if self.copy_buffers.value:
            said.append(
                f"{self.copy_buffers.value:g} buffers of the largest tensor of what comes up"
            )
        one = [name for name, figure in self.known.items() if figure.one_row]
        rests = (
            f"; {', '.join(one)} rest{'s' if len(one) == 1 else ''} on one measurement"
            if one
            else ""
        )
        return f"{self.name}: {', '.join(said) or 'kernels as fast as alone'}{rests}"


RUNTIME = "runtime"
"""The key of a graph's ``meta``, and the parameter of a builder, that has the runtime of a workload
as plain data.
"""


def as_data(runtime: Runtime) -> dict[str, Any]:
    """A runtime as texts, numbers and mappings, which :func:`from_data` reads."""
    return asdict(runtime)


def from_data(data: object) -> Runtime:
    """The runtime of :func:`as_data`. Raises :class:`HardwareError` for anything else."""
    names = {f.name for f in fields(Runtime)}
    if not isinstance(data, Mapping) or not set(data) <= names or "name" not in data:
        raise HardwareError("expected a runtime: its name, options and figures", where=RUNTIME)
    figures, keys = (
        {f.name for f in fields(Runtime) if f.type is RuntimeFigure},
        {f.name for f in fields(RuntimeFigure)},
    )
    read: dict[str, Any] = {}
    for name, value in data.items():
        if name in figures and not (isinstance(value, Mapping) and {"value"} <= set(value) <= keys):
            raise HardwareError(
                "expected a figure: its value and spread", where=f"{RUNTIME}.{name}"
            )
        read[name] = RuntimeFigure(**value) if name in figures else value
    return Runtime(**read)
