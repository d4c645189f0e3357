"""The record of a measured case: its metrics, and enough else to explain a change."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hosim.data.draws import LaterDraws
from hosim.gate.judged_metrics import PEAK

SOURCE = "source"
"""The fingerprint of the file that a graph is from, if it is from one: the user's, unlike what
hosim reads from it.
"""

REQUESTS = "requests"
"""The fingerprint of the requests that are served, where a case serves some; its ``plan`` is that
of the engine and its cache.
"""

SHIPPED = "shipped"
"""The fingerprint of a workload that comes with hosim: what changes in it is hosim's."""


@dataclass(frozen=True, slots=True)
class Item:
    """``value`` (bytes or nanoseconds) of a tensor or an op ``name``; ``label`` is the kind of
    tensor, or the cause of a stall.

    For a resident tensor, ``since`` is the op after which its copy was issued, and ``until`` the op
    after which it is released; each is empty if there is none.
    """

    label: str
    name: str
    value: int
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Items, and the sum of the smallest ones, which are left out."""

    items: tuple[Item, ...] = ()
    others: int = 0
    others_value: int = 0

    @property
    def complete(self) -> bool:
        """Return whether nothing is left out."""
        return not self.others

    @property
    def count(self) -> int:
        """The number of items, including those left out."""
        return len(self.items) + self.others

    @property
    def least(self) -> int:
        """Every item above this value is listed: the smallest listed value if items are left out,
        else 0.
        """
        return 0 if self.complete else min((item.value for item in self.items), default=0)


@dataclass(frozen=True, slots=True)
class PeakRecord:
    """A tier at its peak.

    ``op`` is the op that runs then (``None``: none), ``composition`` the bytes by kind,
    ``residents`` the bytes held by tensor (by op for a ``workspace``), and ``away`` are the tensors
    that are needed later and not held.
    """

    op: str | None
    composition: Mapping[str, int]
    residents: Listing
    away: Listing = field(default_factory=Listing)


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """A graph as a baseline keeps it.

    ``tensors`` are bytes, by kind and home; ``workspaces`` (bytes), ``times`` (nanoseconds that the
    graph gives) and ``flops`` are those of ops, by their kind. ``shapes`` counts the ops that read
    and write the same roles (:mod:`hosim.gate.records.graph_record`); of those, ``others`` are left
    out.
    """

    tensors: Listing = Listing()
    workspaces: Listing = Listing()
    times: Listing = Listing()
    flops: Listing = Listing()
    shapes: Mapping[str, int] = field(default_factory=dict)
    others: int = 0
    again: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Record:
    """One measured case, as its baseline file has it.

    ``metrics`` are bytes and nanoseconds by name (:mod:`hosim.gate.judged_metrics.metrics`).
    ``machine`` is the hardware profile, flat, as text.
    ``moved`` are bytes by tensor of each channel, ``stalls`` nanoseconds by cause and op,
    ``durations`` those of ops alone, by kind and op. ``curve`` is the most that the device tier
    holds in each of equal parts of the makespan. ``graph`` is what was asked about, without what
    the planner makes of it. ``versions`` are those of
    :data:`hosim.data.versions.VERSIONS` when it was measured. ``notes`` are those of the result,
    and ``draws`` few ones of its plan; a line of a matrix keeps neither.
    """

    case: str
    asked: Mapping[str, str]
    fingerprints: Mapping[str, str]
    metrics: Mapping[str, int]
    machine: Mapping[str, str]
    peaks: Mapping[str, PeakRecord]
    moved: Mapping[str, Listing]
    stalls: Listing
    durations: Listing
    curve: tuple[int, ...]
    hosim: str
    versions: Mapping[str, int]
    notes: tuple[str, ...] = ()
    graph: GraphRecord = GraphRecord()
    draws: LaterDraws | None = field(default=None, compare=False, repr=False)

    @property
    def device_peak(self) -> str:
        """The name of the metric that has the peak of the device tier."""
        return f"{PEAK}.{self.machine.get('device_tier', '')}"

    @property
    def ceiling(self) -> int:
        """Bytes that the device tier holds at most in 9 of 10 draws of what is uncertain: at least
        its peak.
        """
        peak = self.metrics.get(self.device_peak, 0)
        drawn = None if self.draws is None else self.draws()
        ends = None if drawn is None else drawn.peak_interval
        return peak if ends is None else max(peak, ends[1])

    @property
    def computed(self) -> Mapping[str, str]:
        """The fingerprints of what was replayed, without that of the file it was read from."""
        return {key: value for key, value in self.fingerprints.items() if key != SOURCE}


@dataclass(frozen=True, slots=True)
class Stay:
    """The reason that a tensor is in a tier at its peak.

    ``used`` is the last op that uses it and has started by then, ``until`` the first that uses it
    and has not; ``fetched_after`` is the op after which its copy was issued. Each is ``None`` if
    there is none; ``fetched`` tells a copy issued at time 0 from no copy.
    """

    used: str | None
    until: str | None
    fetched: bool
    fetched_after: str | None


@dataclass(frozen=True)
class Measured:
    """A record and details that are not saved. If nothing fits, there is an ``error`` instead, and
    in ``wanted`` a record without figures.

    ``stays`` are by tier and tensor, ``positions`` are those of ops by name, and ``waits_for`` has,
    by op, the tensor whose copy ended a stall of cause ``transfer``. ``shapes`` are the names of
    the ops of each shape of the graph, ``again`` those of ops that compute what an earlier one has,
    and ``reads`` the tensors that each uses, those that are there for longest first.
    """

    record: Record | None
    error: str | None = None
    stays: Mapping[tuple[str, str], Stay] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)
    tensors: frozenset[str] = frozenset()
    waits_for: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    again: Mapping[str, Sequence[str]] = field(default_factory=dict)
    reads: Mapping[str, Sequence[str]] = field(default_factory=dict)
    wanted: Record | None = None


def source_digest(path: Path, begun: str = "") -> str:
    """A digest of a file, or of all files in a folder, with their names; after the text ``begun``.
    Raises :class:`OSError`.
    """
    found = hashlib.sha256(begun.encode())
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        # the name goes into the graph of some formats
        found.update(f"\0{file.relative_to(path.parent)}\0".encode())
        with file.open("rb") as content:
            found.update(hashlib.file_digest(content, "sha256").digest())
    return found.hexdigest()[:32]
