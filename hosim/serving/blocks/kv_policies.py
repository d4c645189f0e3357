"""Policies for the cache of keys and values in several tiers, by name: ``name:parameter=value``
chooses one. A policy's parameters make its :class:`KvRules`, which rank what is given up.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf, log2
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from hosim.base.files import did_you_mean
from hosim.errors import InputError
from hosim.policies import Parameter, unknown_policy, written_settings

# -- the order in which things are given up --------------------------------------------------------


Item = TypeVar("Item", bound=Hashable)
Rank = tuple[float, ...]


@dataclass(eq=False)
class EvictionOrder(Generic[Item]):
    """Things by rank. To add, discard and pop takes a time that grows with the logarithm of their
    number.
    """

    _live: dict[Item, int] = field(default_factory=dict)
    _heap: list[tuple[Rank, int, Item]] = field(default_factory=list)
    _serial: Iterator[int] = field(default_factory=count)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: Item) -> bool:
        return item in self._live

    def add(self, item: Item, rank: Rank) -> None:
        """Add an item, or give it another rank."""
        if (
            len(self._heap) > 2 * len(self._live) + 1000
        ):  # of those that were discarded there are more
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
            heapify(self._heap)
        serial = self._live[item] = next(self._serial)
        heappush(self._heap, (rank, serial, item))

    def discard(self, item: Item) -> None:
        """Remove an item, if it is there."""
        self._live.pop(item, None)

    def pop(self) -> Item:
        """Remove the first one; there has to be one."""
        while True:
            _, serial, item = heappop(self._heap)
            if self._live.get(item) == serial:
                del self._live[item]
                return item


# -- a policy's decisions --------------------------------------------------------------------------


@dataclass(eq=False)
class KvRules:
    """The decisions of a policy.

    ``keeps`` says whether blocks that are evicted go to the tier below. ``through`` says whether a
    block is copied to the first tier below as soon as it is full, so that it can be evicted without
    a copy. Of so many requests at the head of the queue as ``prefetches`` says, blocks come up
    before the request is admitted. ``watches_queue`` says that :meth:`queued` and :meth:`admitted`
    want to be called.
    """

    watches_queue: ClassVar[bool] = False
    keeps: bool = True
    through: bool = False
    prefetches: int = 0

    def rank(self, key: Hashable | None, tick: int, now_ns: int) -> Rank:
        """Return whether a block goes before others, which is asked when nobody holds it any
        longer: the least rank goes first.

        ``key`` names its contents, if it has a name. ``tick`` counts what was asked.
        """
        return (tick,)

    def used(self, key: Hashable, now_ns: int) -> None:
        """A request has found these contents, or made them."""

    def queued(self, number: int, keys: Sequence[Hashable]) -> Iterable[Hashable]:
        """A request arrives, whose prompt has these blocks. Returns those whose rank changes."""
        return ()

    def admitted(self, number: int, keys: Sequence[Hashable]) -> Iterable[Hashable]:
        """A request is admitted. Returns those whose rank changes."""
        return ()


# -- the policies ----------------------------------------------------------------------------------


_TIERS = Parameter(
    None,
    "str",
    "tiers below, from the first: ddr/nvme, with sizes ddr=500GiB/nvme; none: the device's "
    "neighbour and on while channels lead",
)
LOADING = ("requests", "layers")
"""What waits for blocks to come up: a request until it is taken into an iteration, or each layer of
the iteration.
"""

_LOADING = Parameter(
    "requests",
    "str",
    "what waits for blocks to come up: requests, or layers of the iteration that reads them",
)
_TTL = Parameter(
    None,
    "float",
    "seconds without use after which blocks are gone from tiers below; none: they stay",
)
_REQUESTS = Parameter(8, "int", "how many requests at the head of the queue blocks come up for")


@dataclass(frozen=True)
class KvPolicy:
    """A policy for the cache: its name, a line, what makes its rules, and its parameters beside
    ``tiers``, ``loading`` and ``ttl``.
    """

    name: str
    summary: str
    made_by: Callable[..., KvRules]
    own: Mapping[str, Parameter] = field(default_factory=dict)
    models: str = ""
    leaves_out: str = ""

    @property
    def settings(self) -> Mapping[str, Parameter]:
        """Its parameters by name."""
        return {"tiers": _TIERS, "loading": _LOADING, "ttl": _TTL, **self.own}

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The default of each parameter."""
        return MappingProxyType(
            {key: parameter.default for key, parameter in self.settings.items()}
        )

    def rules(self, parameters: Mapping[str, Any]) -> KvRules:
        """Return the rules that it decides by with these parameters."""
        return self.made_by(**{key: parameters[key] for key in self.own})


class _Pinned(KvRules):
    """The first ``blocks`` of each prompt go last, and of each kind the least recently used first.

    A system prompt and the documents that many prompts begin with stay in the device that way,
    whatever else goes through it.
    """

    watches_queue = True

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self._blocks = blocks
        self._pinned: set[Hashable] = set()

    def rank(self, key: Hashable | None, tick: int, now_ns: int) -> Rank:
        return (key in self._pinned, tick)

    def queued(self, number: int, keys: Sequence[Hashable]) -> Iterable[Hashable]:
        self._pinned.update(keys[: self._blocks])
        return ()


class _ExpectedReuse(KvRules):
    """Blocks go first that are least expected to be used again, by how often and how lately they
    were used.

    Each use counts half as much after ``half_life`` seconds (LRFU; Lee et al., IEEE TC 2001). The
    order of two blocks does not change while neither is used, so a rank holds until then.
    """

    def __init__(self, half_life: float) -> None:
        super().__init__(through=True)
        self._half_life_ns = max(half_life, 1e-9) * 1e9
        self._score: dict[Hashable, float] = {}

    def used(self, key: Hashable, now_ns: int) -> None:
        now = now_ns / self._half_life_ns
        before = self._score.get(key)
        # the logarithm of the sum of 2 ** (time of use), which grows for ever
        self._score[key] = (
            now if before is None else now + log2(1 + 2 ** max(before - now, -1000.0))
        )

    def rank(self, key: Hashable | None, tick: int, now_ns: int) -> Rank:
        return (self._score.get(key, -inf), tick)


class _Lookahead(KvRules):
    """HyperOffload's idea on the known queue: evict what waiting requests need last, and bring up
    what the next ``requests`` need.

    Blocks that no waiting request needs go first, the least recently used of them first; then those
    that are needed last.
    """

    watches_queue = True

    def __init__(self, requests: int) -> None:
        super().__init__(through=True, prefetches=requests)
        self._needed_by: dict[Hashable, dict[int, None]] = {}  # in the order of arrival

    def rank(self, key: Hashable | None, tick: int, now_ns: int) -> Rank:
        needed = self._needed_by.get(key)
        return (-next(iter(needed)) if needed else -inf, tick)

    def queued(self, number: int, keys: Sequence[Hashable]) -> Iterable[Hashable]:
        first = [key for key in keys if key not in self._needed_by]
        for key in keys:
            self._needed_by.setdefault(key, {})[number] = None
        return first

    def admitted(self, number: int, keys: Sequence[Hashable]) -> Iterable[Hashable]:
        for key in keys:
            needed = self._needed_by.get(key)
            if needed is not None:
                needed.pop(number, None)
                if not needed:
                    del self._needed_by[key]
        return keys


KV_POLICIES = (
    KvPolicy(
        "lru",
        "what is evicted goes to the tier below and comes back on a hit",
        KvRules,
        models="a cache of several levels",
    ),
    KvPolicy(
        "pinned",
        "lru, and the first blocks of prompts go last",
        _Pinned,
        {
            "blocks": Parameter(
                2, "int", "how many blocks of each prompt are pinned, from its first"
            )
        },
        models="retention by priority, as TensorRT-LLM has it",
        leaves_out="priorities that requests ask for",
    ),
    KvPolicy(
        "write_through",
        "full blocks are copied below at once, so that evictions wait for no copy",
        partial(KvRules, through=True),
        models="vLLM's OffloadingConnector, LMCache, Mooncake's store",
        leaves_out="chunks of 256 tokens",
    ),
    KvPolicy(
        "prefetch_queued",
        "write_through, and blocks come up while requests wait",
        lambda requests: KvRules(through=True, prefetches=requests),
        {"requests": _REQUESTS},
        models="SGLang's hierarchical cache, which prefetches for what is queued",
        leaves_out="prefetching from storage to host memory alone",
    ),
    KvPolicy(
        "lookahead",
        "prefetch_queued, and what the known queue needs last is evicted first (HyperOffload's "
        "idea)",
        _Lookahead,
        {"requests": _REQUESTS},
        models="HyperOffload (arXiv 2602.00748) with the queue as the known schedule",
        leaves_out="its own way with serving is not published",
    ),
    KvPolicy(
        "expected_reuse",
        "write_through, and what was used least often and lately is evicted first",
        _ExpectedReuse,
        {"half_life": Parameter(600.0, "float", "seconds after which a use counts half")},
        models="LRFU (IEEE TC 2001)",
    ),
    KvPolicy(
        "sparse",
        "write_through, and blocks that attention does not choose are below alone where blocks of "
        "the device lack",
        lambda **_: KvRules(through=True),  # blocks/sparse_reading.py reads the parameters
        {
            "hit": Parameter(
                None,
                "float",
                "assumed share of the chosen blocks that is in the device; none: by change",
            ),
            "change": Parameter(
                None,
                "float",
                "assumed share of the chosen blocks that was not chosen in the step before, "
                "evenly drawn",
            ),
            "resident": Parameter(
                None,
                "int",
                "tokens of each sequence that the device has room for; none: those that a step "
                "reads",
            ),
            "predicted": Parameter(
                False,
                "bool",
                "whether a layer's blocks are known before the iteration, and come up meanwhile",
            ),
        },
        models="ESS (arXiv 2512.10576) and SGLang's hierarchical sparse attention, for models "
        "that read few blocks (kv_block)",
        leaves_out="selecting tokens by an indexer of its own (DeepSeek-V3.2); copies of single "
        "tokens",
    ),
    KvPolicy(
        "swap_only",
        "nothing goes below but sequences that are preempted",
        partial(KvRules, keeps=False),
        models="vLLM's swap space (version 0)",
    ),
)
"""Every policy for the cache, in display order."""


def kv_policy(text: str) -> tuple[KvPolicy, dict[str, Any]]:
    """The policy and all of its parameters, from ``name`` or
    ``name:parameter=value:parameter=value``. Raises :class:`InputError`.

    >>> kv_policy("prefetch_queued:requests=4")[1]
    {'tiers': None, 'loading': 'requests', 'ttl': None, 'requests': 4}
    """
    name, *settings = text.strip().split(":")
    names = [policy.name for policy in KV_POLICIES]
    if name not in names:
        raise InputError(unknown_policy(name, names), source="kv")
    policy = KV_POLICIES[names.index(name)]
    given: dict[str, Any] = {}
    for key, value in written_settings(settings, f"kv {name}"):
        if key not in policy.settings:
            known = ", ".join(policy.settings)
            raise InputError(
                f"no parameter {key!r}{did_you_mean(key, policy.settings)} (parameters: {known})",
                source=f"kv {name}",
            )
        given[key] = policy.settings[key].read(value, f"kv {name}: {key}")
    return policy, {**policy.parameters, **given}
