"""A policy's decisions about the cache: :class:`KvRules` evicts what was used least recently;
others have another order.
"""

from collections.abc import Hashable, Iterable, Sequence

from hosim.serving.eviction_order import Rank


class KvRules:
    """The decisions of a policy.

    ``keeps`` says whether blocks that are evicted go to the tier below. ``through`` says whether a
    block is copied to the first tier below as soon as it is full, so that it can be evicted without
    a copy. Of so many requests at the head of the queue as ``prefetches`` says, blocks come up
    before the request is admitted. ``watches_queue`` says that :meth:`queued` and :meth:`admitted`
    want to be called.
    """

    watches_queue = False

    def __init__(self, keeps: bool = True, through: bool = False, prefetches: int = 0) -> None:
        self.keeps = keeps
        self.through = through
        self.prefetches = prefetches

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
