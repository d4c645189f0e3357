"""The blocks of a paged cache with tiers below the device: what goes down, what comes up, and who
has to wait for it.

A block of the device that nobody holds keeps its contents, as in :class:`BlockPool`, until it is
needed; then the policy says which one goes, and whether its contents are copied to the tier below.
What is found below comes up into blocks of the device; the copy below stays until its room is
needed. A block that is being copied can be taken, but not written before the copy is over.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial

from hosim.serving.blocks.block_copies import Awaited, BlockCopies
from hosim.serving.blocks.block_pool import BlockPool, BlockTier, Reach
from hosim.serving.blocks.kv_policies import EvictionOrder, KvRules
from hosim.serving.blocks.sparse_reading import SparseReads


class TieredPool(BlockPool):
    """``blocks`` blocks of the device and the tiers below it, from the first. ``wake`` is called
    when blocks have come up.

    Engines may share tiers: then what one has put there is found by the others, its rank is that of
    the engine that used it last, and ``ticks`` is one count of all of them. ``hits`` counts the
    blocks that requests found, of the device first, then by tier; ``dropped`` are contents that
    left the last tier.
    """

    def __init__(
        self,
        blocks: int,
        tiers: Sequence[BlockTier],
        copies: BlockCopies,
        rules: KvRules,
        ticks: Iterator[int],
    ) -> None:
        super().__init__(blocks)
        self.tiers = tiers
        self.rules = rules
        self.copies = copies
        self.wake: Callable[[], None] = lambda: None
        self.layers = 1
        """In how many parts blocks come up, if the layers of an iteration wait for them one by
        one.
        """
        self.gates: list[Awaited] = []
        self.hits = [0] * (1 + len(tiers))
        self.dropped = 0
        self.swapped_blocks = 0
        self.not_swapped = 0
        self.reads: SparseReads | None = None
        """The blocks of sequences that attention reads in each step, if others may be offloaded.
        """
        self.attention_layers = 1
        self.fetched_bytes = 0
        self._owed = Fraction(0)
        self._device = copies.machine.device_tier
        self._order: EvictionOrder[int] = EvictionOrder()
        self._tick = ticks
        self._busy: dict[int, Awaited] = {}  # blocks that a copy reads or writes
        self._arriving: dict[int, Awaited] = {}
        self._origin: dict[
            int, int
        ] = {}  # of blocks that came up before a request asked for them: from which tier
        self._filling: list[int] = []
        self._flights: deque[tuple[Awaited, list[int]]] = deque()
        self._swapped: dict[int, tuple[int, Awaited]] = {}

    @property
    def free(self) -> int:
        """Return the number of blocks of the device that nobody holds."""
        return self.count - len(self._holders) + len(self._order)

    # -- the device's blocks
    # ------------------------------------------------------------------------------------

    def hold(self, blocks: Iterable[int]) -> None:
        """Hold blocks of the device that were found."""
        for block in blocks:
            if self._holders[block] == 0:
                self._order.discard(block)
            self._holders[block] += 1

    def take(self, count: int) -> list[int]:
        """Hold ``count`` blocks whose contents go. The iteration that writes them waits for
        ``gates``.
        """
        taken, waits = self._take(count)
        self.gates += waits
        return taken

    def receive(self, count: int) -> tuple[list[int], list[Awaited]]:
        """Hold ``count`` blocks for contents from elsewhere: the blocks, and what has to be over
        before they can be written.
        """
        return self._take(count)

    def name(self, block: int, key: Hashable) -> None:
        """Say what a block holds once the iteration that is being scheduled has ended."""
        self.rules.used(key, self.copies.now_ns)
        if key not in self._block_of and block not in self._key_of:
            super().name(block, key)
            self._filling.append(block)

    def unname(self, block: int) -> None:
        """A block does not get the contents that :meth:`name` said."""
        super().unname(block)
        if block in self._filling:
            self._filling.remove(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Hold the blocks of a request no longer."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._order.add(
                    block,
                    self.rules.rank(self._key_of.get(block), next(self._tick), self.copies.now_ns),
                )

    # -- what is in some tier
    # -----------------------------------------------------------------------------------

    def reach(self, keys: Iterable[Hashable]) -> Reach:
        """Return the blocks of these that are in the device or below, up to the first that is
        nowhere.
        """
        slots: list[int] = []
        below: list[tuple[int, Hashable]] = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                place = self._tier_of(key)
                if place is None:
                    break
                block = -1 - len(below)
                below.append((place, key))
            slots.append(block)
        return Reach(slots, below)

    def claim(self, reach: Reach, hit: bool = True) -> tuple[list[int], list[Awaited]]:
        """Hold what was reached: the blocks, and what has to be over before they can be read.
        ``hit`` says that a request found them.
        """
        device = [slot for slot in reach.slots if slot >= 0]
        self.hold(device)
        waits = [self._arriving[block] for block in device if block in self._arriving]
        fresh = self._bring_up(reach.below, waits) if reach.below else []
        blocks = [slot if slot >= 0 else fresh[-1 - slot] for slot in reach.slots]
        if hit:
            for block in device:
                self.hits[self._origin.pop(block, 0)] += 1
            for place, _ in reach.below:
                self.hits[1 + place] += 1
        for key in (self._key_of.get(block) for block in blocks) if hit else ():
            if key is not None:
                self.rules.used(key, self.copies.now_ns)
        return blocks, list(dict.fromkeys(waits))

    def prefetch(self, keys: Iterable[Hashable]) -> bool:
        """Bring up what of a prompt is below, into blocks that nobody holds; False if there are too
        few.
        """
        reach = self.reach(keys)
        if not reach.below:
            return True
        if not self.has_room(reach, len(reach.slots)):
            return False
        blocks, _ = self.claim(reach, hit=False)
        for slot, block in zip(reach.slots, blocks, strict=True):
            if slot < 0:
                self._origin[block] = 1 + reach.below[-1 - slot][0]
        self.release(blocks)
        return True

    def queued(self, number: int, keys: Sequence[Hashable]) -> None:
        """A request arrives."""
        self._rank_again(self.rules.queued(number, keys))

    def admitted(self, number: int, keys: Sequence[Hashable]) -> None:
        """A request is admitted for the first time."""
        self._rank_again(self.rules.admitted(number, keys))

    # -- sequences whose attention reads few blocks
    # -------------------------------------------------------------

    def is_below(self, key: Hashable) -> bool:
        """Return whether the first tier below has these contents, or is getting them."""
        return bool(self.tiers) and key in self.tiers[0]

    def held_once(self, blocks: Iterable[int]) -> int:
        """Return the number of these blocks of the device that one sequence alone holds."""
        return sum(self._holders[block] == 1 for block in blocks)

    def pin(self, keys: Iterable[Hashable]) -> None:
        """These contents stay in the first tier below until :meth:`unpin`."""
        for key in keys:
            self.tiers[0].read(key)

    def unpin(self, keys: Iterable[Hashable]) -> None:
        """One who pinned contents is through."""
        for key in keys:
            self.tiers[0].has_read(key)

    def fetch(self, blocks: Fraction) -> Awaited | None:
        """Bring up so many blocks of what is pinned, in equal parts for the layers; what is left of
        a byte counts the next time.

        Unless the blocks are predicted, nothing is computed before all layers have theirs, as each
        is known when its layer begins.
        """
        assert self.reads is not None
        size, self._owed = divmod(blocks * self.copies.block_bytes + self._owed, 1)
        if not size:
            return None
        self.fetched_bytes += size
        return self.copies.fetch(
            self.tiers[0].name,
            self._device,
            size,
            self.attention_layers,
            together=not self.reads.predicted,
        )

    # -- preempted sequences
    # ------------------------------------------------------------------------------------

    def swap_out(self, number: int, blocks: Sequence[int]) -> bool:
        """Copy the blocks of a sequence to the first tier below, where nothing makes them go; False
        if there is no room for them.
        """
        if not self.tiers or self.tiers[0].could_free < len(blocks):
            self.not_swapped += 1
            return False
        waits = self._make_room(0, len(blocks))[1]
        tier = self.tiers[0]
        tier.reserve(len(blocks))
        waits += [self._busy[block] for block in blocks if block in self._busy]
        waits += [flight for flight, _ in self._flights if not flight.over]
        copy = self.copies.copy(self._device, tier.name, len(blocks), waits)
        self._occupy(blocks, copy)
        self._swapped[number] = len(blocks), copy
        self.swapped_blocks += len(blocks)
        return True

    def swap_in(self, number: int) -> tuple[list[int], list[Awaited]]:
        """Bring the blocks of a sequence back up: the blocks, and what has to be over before they
        can be read.
        """
        size, out = self._swapped.pop(number)
        fresh, waits = self._take(size)
        copy = self._up(0, size, [*waits, out])
        self._occupy(fresh, copy)
        copy.then(partial(self.tiers[0].reserve, -size))
        copy.then(lambda: self.wake())
        return fresh, [copy]

    def forget(self, number: int) -> None:
        """A sequence that may be swapped out has ended."""
        if number in self._swapped:
            size, out = self._swapped.pop(number)
            out.then(partial(self.tiers[0].reserve, -size))

    # -- iterations
    # ---------------------------------------------------------------------------------------------

    def begun(self) -> list[Awaited]:
        """An iteration has been scheduled: what has to be over before it begins."""
        self._flights.append((Awaited(), self._filling))
        self._filling = []
        gates, self.gates = list(dict.fromkeys(self.gates)), []
        return [gate for gate in gates if not gate.over]

    def ended(self) -> None:
        """The earliest iteration that has not ended does: the blocks that it filled can be
        copied.
        """
        flight, filled = self._flights.popleft()
        flight.end()
        if self.rules.through and filled:
            self._down([(block, self._key_of[block]) for block in filled if block in self._key_of])

    # -- copies
    # ----------------------------------------------------------------------------------------------

    def _take(self, count: int) -> tuple[list[int], list[Awaited]]:
        taken, leaving = self._taken(count)
        for block in taken:
            self._origin.pop(block, None)
            self._arriving.pop(block, None)
        waits = [self._busy[block] for block in taken if block in self._busy]
        if leaving and self.rules.keeps:
            self._down(leaving)
            waits += [self._busy[block] for block, _ in leaving if block in self._busy]
        return taken, waits

    def _next_idle(self) -> int:
        return self._order.pop()

    def _down(self, leaving: Sequence[tuple[int, Hashable]]) -> None:
        """Copy blocks of the device to the first tier below, unless their contents are in some tier
        already.
        """
        fresh = []
        for block, key in leaving:
            place = self._tier_of(key)
            if place is None:
                fresh.append((block, key))
            else:
                self.tiers[place].rank(key, self._rank(key))
        if not self.tiers or not fresh:
            return
        granted, waits = self._make_room(0, len(fresh))
        self.dropped += len(fresh) - granted
        if not granted:
            return
        going = fresh[:granted]
        in_flight = self._flights[-1] if self._flights else None
        if (
            in_flight is not None
            and not in_flight[0].over
            and not {block for block, _ in going}.isdisjoint(in_flight[1])
        ):
            waits.append(in_flight[0])
        waits += [self._busy[block] for block, _ in going if block in self._busy]
        copy = self.copies.copy(self._device, self.tiers[0].name, granted, waits)
        for _, key in going:
            self.tiers[0].add(key, copy, self._rank(key))
        self._occupy([block for block, _ in going], copy)

    def _make_room(self, place: int, wanted: int) -> tuple[int, list[Awaited]]:
        """Give up contents of a tier, which go further down: how many of ``wanted`` blocks have
        room, and what they wait for.
        """
        tier = self.tiers[place]
        gone = tier.give_up(min(wanted, tier.capacity))
        granted = min(wanted, tier.capacity - tier.held)
        waits: list[Awaited] = []
        further = [key for key in gone if key not in self._block_of and self._tier_of(key) is None]
        if further and place + 1 < len(self.tiers):
            below = self.tiers[place + 1]
            room, waits = self._make_room(place + 1, len(further))
            if room:
                copy = self.copies.copy(tier.name, below.name, room, waits)
                for key in further[:room]:
                    below.add(key, copy, self._rank(key))
                waits = [copy]
            further = further[room:]
        self.dropped += len(further)
        return granted, waits

    def _bring_up(self, below: Sequence[tuple[int, Hashable]], waits: list[Awaited]) -> list[int]:
        """Copy contents from the tiers below into blocks of the device; adds the copies to
        ``waits``.
        """
        for place, key in below:
            self.tiers[place].read(key)
        fresh, taking = self._take(len(below))
        for place in sorted({place for place, _ in below}):
            members = [
                (key, block) for (at, key), block in zip(below, fresh, strict=True) if at == place
            ]
            written = [self.tiers[place].written(key) for key, _ in members]
            copy = self._up(place, len(members), [*taking, *written])
            for key, block in members:
                super().name(block, key)
            self._occupy([block for _, block in members], copy)
            if not copy.over:
                self._arriving.update((block, copy) for _, block in members)
            copy.then(partial(self._arrived, copy, place, members))
            waits.append(copy)
        return fresh

    def _up(self, place: int, size: int, after: Sequence[Awaited]) -> Awaited:
        """From a tier to the device, tier by tier where no channel leads there."""
        copy: Awaited | None = None
        while True:
            name = self.tiers[place].name
            direct = (name, self._device) in self.copies.machine.channel_between
            if direct and self.layers > 1:
                return self.copies.copy_layers(name, self._device, size, self.layers, after)
            copy = self.copies.copy(
                name, self._device if direct else self.tiers[place - 1].name, size, after
            )
            if direct:
                return copy
            after, place = [copy], place - 1

    def _arrived(self, copy: Awaited, place: int, members: Sequence[tuple[Hashable, int]]) -> None:
        for key, block in members:
            if self._arriving.get(block) is copy:
                del self._arriving[block]
            self.tiers[place].rank(key, self._rank(key))
            self.tiers[place].has_read(key)
        self.wake()

    def _occupy(self, blocks: Sequence[int], copy: Awaited) -> None:
        """A copy reads or writes these blocks until it is over."""
        if copy.over:
            return
        self._busy.update((block, copy) for block in blocks)
        copy.then(partial(self._leave, blocks, copy))

    def _leave(self, blocks: Sequence[int], copy: Awaited) -> None:
        for block in blocks:
            if self._busy.get(block) is copy:
                del self._busy[block]

    def _tier_of(self, key: Hashable) -> int | None:
        return next((place for place, tier in enumerate(self.tiers) if key in tier), None)

    def _rank(self, key: Hashable) -> tuple[float, ...]:
        return self.rules.rank(key, next(self._tick), self.copies.now_ns)

    def _rank_again(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            block = self._block_of.get(key)
            if block is not None and block in self._order:
                self._order.add(block, self._rank(key))
            place = self._tier_of(key)
            if place is not None:
                self.tiers[place].rank(key, self._rank(key))
