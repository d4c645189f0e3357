"""The rates of flows, and the speeds of ops beside them, as whole numbers in tables that grow as
combinations of flows come up.

Rules 6, 11, 13, 14, 19, 20 and 22 of docs/contract.md, by :mod:`hosim.analysis.costmodel.transfers` and
:mod:`hosim.analysis.costmodel`. A rate is so many 1/``scale`` bytes per second: max-min rates of at most K
flows are whole in parts of 1/s, where s is the product over the primes p <= K of p^(K div p), so
that volumes are exact in integers. The work of an op is in parts of a nanosecond of its own, one
number an op.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm, prod

from hosim.analysis.costmodel import MemoryUse
from hosim.engine.cells import Cells, ints, longs
from hosim.engine.loop_cells import LOW
from hosim.engine.transfer_rates import TransferRates

_RATE_BITS, WORK_BITS = 62, 122
"""The bits of a rate, and of an op's work or a volume: 64 and 128, less signs and sums."""

_UNKNOWN = -1


class UncoveredError(Exception):
    """Something that the loop does not cover, or not exactly: the reference does. It says what."""


TOO_LARGE = "figures beyond 128 bits"
FOR_SOME = "room in a shared tier that some of several devices have only"


def smooth(flows: int) -> int:
    """Return the number of which max-min rates of at most so many flows are whole parts."""
    primes = [p for p in range(2, flows + 1) if all(p % q for q in range(2, p))]
    return prod(p ** (flows // p) for p in primes)


class FlowTable:
    """The tables ``joined``, ``rate_of``, ``speed_high`` and ``speed_low`` of a loop, and the rows
    that it asks for.

    ``rates`` are those of the machine, with the flow classes that its transfers can be of; ``uses``
    are the ops that copies slow down, and ``where`` has the tier in which each op runs that does
    not run in the tier ``device``. Raises :class:`UncoveredError` where numbers become too large.
    """

    def __init__(
        self,
        rates: TransferRates,
        flows: int,
        uses: Mapping[int, MemoryUse],
        where: Mapping[int, str],
        device: str,
        durations: Sequence[int],
    ) -> None:
        self._rates = rates
        self.classes = max(1, len(rates.classes))
        whole: int = lcm(
            *[part.denominator for part in rates.parts],
            *[limit.denominator for _, limit in rates.classes if limit is not None],
        )
        most = max([Fraction(1), *rates.parts])
        self.scale = whole * next(
            (s for s in map(smooth, range(flows, 0, -1)) if most * whole * s < 1 << _RATE_BITS), 1
        )
        if most * self.scale >= 1 << _RATE_BITS:
            raise UncoveredError(TOO_LARGE)
        number: dict[tuple[MemoryUse, str], int] = {}
        self.pace_of = {
            i: number.setdefault((use, where.get(i, device)), len(number))
            for i, use in uses.items()
            if durations[i] > use.launch_ns
        }
        self._paced = list(number)
        self.uses = [use for use, _ in number]
        self.paces = max(1, len(number))
        self.wholes = [self._whole(use) for use in self.uses]
        for i, k in self.pace_of.items():
            if (durations[i] * self.wholes[k]).bit_length() > WORK_BITS:
                raise UncoveredError(TOO_LARGE)
        self._known: dict[tuple[int, ...], int] = {}
        self._rows: list[tuple[int, ...]] = []
        self._rates_of: list[list[Fraction]] = []
        self._room = 0
        self.cells: dict[str, Cells] = {}
        self._row(())

    def scaled(self, volume: int) -> tuple[int, int]:
        """A volume, in bytes times nanoseconds a second, as the loop has it: in two limbs."""
        scaled = volume * self.scale
        if scaled.bit_length() > WORK_BITS:
            raise UncoveredError(TOO_LARGE)
        return scaled >> 62, scaled & LOW

    def _whole(self, use: MemoryUse) -> int:
        """Return the number of parts in a nanosecond of an op's work: at any rate of copies it does
        a whole number of them in a nanosecond.
        """
        return use.reached.denominator * self.scale * use.used.numerator if use.used else 1

    def _row(self, flowing: tuple[int, ...]) -> int:
        """The combination of flows of these classes, ascending."""
        known = self._known.get(flowing)
        if known is not None:
            return known
        rates = self._rates.of(flowing)
        scaled = [rate * self.scale for rate in rates]
        # before it is known: a later replay must not find what this one could not finish
        if any([rate.denominator != 1 for rate in scaled]):
            raise UncoveredError(TOO_LARGE)
        row = self._known[flowing] = len(self._rows)
        self._rows.append(flowing)
        self._rates_of.append(rates)
        if row >= self._room:
            self._grow()
        for f, rate in zip(flowing, scaled, strict=True):
            self.cells["rate_of"][row * self.classes + f] = int(rate)
        return row

    def _grow(self) -> None:
        """Twice the room. Whoever has the cells has to take them again."""
        before, self._room = self._room, max(16, 2 * self._room)
        more = self._room - before
        for name, width, fill in (
            ("joined", self.classes, _UNKNOWN),
            ("rate_of", self.classes, 0),
            ("speed_high", self.paces, _UNKNOWN),
            ("speed_low", self.paces, 0),
        ):
            make = ints if name == "joined" else longs
            self.cells[name] = make(
                [*self.cells.get(name, ()), *[fill] * (more * width)][: self._room * width]
            )

    def add_rates(self, wanted: int) -> None:
        """Let a flow join a combination, as the loop asks for it."""
        row, f = divmod(wanted, self.classes)
        self.cells["joined"][wanted] = self._row(tuple(sorted((*self._rows[row], f))))

    def add_speed(self, wanted: int) -> None:
        """Say how fast an op goes beside a combination, as the loop asks for it."""
        row, k = divmod(wanted, self.paces)
        use, tier = self._paced[k]
        factor = use.slowdown(self._rates.taken(self._rows[row], self._rates_of[row], tier))
        speed = 0 if factor is None else self.wholes[k] * factor.denominator // factor.numerator
        if factor is not None and speed * factor.numerator != self.wholes[k] * factor.denominator:
            raise UncoveredError(TOO_LARGE)
        self.cells["speed_high"][wanted], self.cells["speed_low"][wanted] = speed >> 62, speed & LOW
