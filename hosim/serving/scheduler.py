"""The work of each iteration of an engine: continuous batching with chunked prefills, as vLLM's
scheduler decides (version 1, 0.19).

Running sequences go first, in the order in which they were admitted, each with one token or with
the rest of its prompt as far as the budget of tokens goes. If blocks lack, the sequence that was
admitted last is preempted: it gives up its blocks and will compute its tokens again. Then waiting
ones are admitted, first come first served, while the budget, the number of sequences and the free
blocks allow: a sequence is admitted only if all blocks of what it has to compute are free. Prompts
take over blocks that hold the same contents.

With priorities, waiting sequences are admitted by their priority, the least value first, and then
by arrival; preempted is the running one that is last in this order, even if it has its place in the
iteration already. Nobody is preempted for one that waits.

With tiers below the device (:class:`~hosim.serving.blocks.TieredPool`) a sequence that was admitted
computes nothing until its blocks have come up; others go on. Preempted sequences may be swapped out
instead of computed again. Where attention reads few blocks, sequences are thinned before any is
preempted (:class:`~hosim.serving.engine_sequence.Thinned`).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, takewhile
from typing import Generic, TypeVar

from hosim.serving.blocks import Awaited, BlockPool, Reach, TieredPool, when_over
from hosim.serving.engine_sequence import EngineSequence, HandedOver, Thinned
from hosim.serving.requests import Request

# -- the queue -------------------------------------------------------------------------------------


Item = TypeVar("Item")


class WaitingByPriority(Generic[Item]):
    """A queue with what a ``deque`` offers a scheduler, in the order of ``key``: whatever comes in,
    at either end, goes to its place.
    """

    def __init__(self, key: Callable[[Item], tuple[int, ...]]) -> None:
        self._key: Callable[[Item], tuple[int, ...]] = lambda item: tuple(
            [-part for part in key(item)]
        )
        self._items: list[Item] = []  # the first one last, so that it is taken at once

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return reversed(self._items)

    def __getitem__(self, place: int) -> Item:
        return self._items[-1 - place]

    def append(self, item: Item) -> None:
        """Add an item."""
        self._items.insert(bisect_left(self._items, self._key(item), key=self._key), item)

    appendleft = append

    def popleft(self) -> Item:
        """Remove the first one."""
        return self._items.pop()

    def remove(self, item: Item) -> None:
        """Remove an item; keys are never equal."""
        del self._items[bisect_left(self._items, self._key(item), key=self._key)]


_NOTHING = Fraction(0)

# -- the scheduler ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Of one iteration: ``token_budget`` tokens of all sequences, and ``max_sequences`` sequences.
    A block has ``block_tokens`` tokens.

    ``by_priority`` says that requests go by their priorities, and not by arrival alone.
    """

    token_budget: int = 2048
    max_sequences: int = 256
    block_tokens: int = 16
    by_priority: bool = False


@dataclass(frozen=True, slots=True)
class Iteration:
    """The work of an iteration: of each prefill the new tokens and those before them, and the
    decoding sequences with all keys.

    ``emits`` are the requests, by position, that get a token at its end. ``missed`` are blocks that
    attention reads and that are below.
    """

    prefills: tuple[tuple[int, int], ...]
    decodes: int
    decode_keys: int
    emits: tuple[int, ...]
    missed: Fraction = _NOTHING

    @property
    def tokens(self) -> int:
        """Tokens that it computes."""
        return self.decodes + sum(new for new, _ in self.prefills)

    @property
    def sequences(self) -> int:
        """Sequences of which it computes tokens."""
        return self.decodes + len(self.prefills)


class Scheduler:
    """The state between iterations. :meth:`add` and :meth:`finish` change who is there,
    :meth:`schedule` decides on an iteration.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        limits: EngineLimits,
        blocks: int,
        tiers: TieredPool | None = None,
        swap: bool = False,
        prefills: bool = False,
        whole_prompts: bool = False,
    ) -> None:
        self._prefills = prefills
        self._whole_prompts = whole_prompts
        """Whether a sequence has blocks for all of its prompt when it is admitted, so that it is
        not preempted before that is computed.
        """
        self.requests = requests
        self._limits, self._size = limits, limits.block_tokens
        self.pool = BlockPool(blocks) if tiers is None else tiers
        self._tiers = tiers
        self._swap = swap
        self.thinned: Thinned | None = None
        if tiers is not None and tiers.reads is not None and not prefills:
            self.thinned = Thinned(tiers, tiers.reads, limits.block_tokens)
        self.swaps = 0
        self.waiting: deque[EngineSequence] | WaitingByPriority[EngineSequence] = deque()
        if limits.by_priority:
            self.waiting = WaitingByPriority(lambda sequence: sequence.rank)
        self.running: list[EngineSequence] = []
        self._there: dict[int, EngineSequence] = {}
        self.preemptions = 0
        self.hit_tokens = 0
        self.admitted: list[int] = []
        """The requests that the last iteration admitted."""
        self.gates: list[Awaited] = []
        """The transfers that have to end before the last iteration can begin."""
        self.parts: list[tuple[int, int, int]] = []
        """Of an engine that prefills: the requests of the last iteration, and the tokens they have
        before and after it.
        """
        self.reads: list[Awaited] = []
        """Copies by layers that the last iteration reads from, each layer as it comes."""
        self.load_waits_ns: list[int] = []
        """The time for which sequences waited for their blocks."""

    def fits(self, request: Request) -> bool:
        """Return whether the request can ever be finished: the whole cache has room for all of its
        tokens but the last, or for its prompt.
        """
        return (
            self._blocks(
                request.prompt_tokens + (0 if self._prefills else request.output_tokens - 1)
            )
            <= self.pool.count
        )

    def held_below(self) -> tuple[int, ...]:
        """Blocks that are taken in the tiers below the device, from the first."""
        return () if self._tiers is None else tuple(tier.held for tier in self._tiers.tiers)

    def tokens_ahead(self) -> int:
        """Tokens that the requests here have still to compute before each gets its next one."""
        return sum(
            sequence.tokens - sequence.computed
            for there in (self.running, self.waiting)
            for sequence in there
        )

    def cached(self, request: Request) -> int:
        """Tokens of a prompt that the cache holds now, in the device or below, of which the last
        one is computed anyway.
        """
        size = self._limits.block_tokens
        keys = (
            request.block_key(block, size) for block in range((request.prompt_tokens - 1) // size)
        )
        return size * len(self.pool.reach(key for key in takewhile(bool, keys)).slots)

    def add(self, number: int, handed: HandedOver | None = None) -> None:
        """A request arrives; its prompt has been computed elsewhere if it was ``handed`` over."""
        self._there[number] = sequence = EngineSequence(number, self.requests[number])
        sequence.handed, sequence.prefetched = handed, handed is not None
        if self._prefills:
            sequence.wanted = sequence.tokens + 1
        self.waiting.append(sequence)
        if self._tiers is not None and self._tiers.rules.watches_queue and handed is None:
            self._tiers.queued(number, list(sequence.keys(self._limits.block_tokens)))

    def finish(self, number: int) -> None:
        """A request has all of its tokens: its blocks are free."""
        sequence = self._there.pop(number)
        if sequence.blocks:
            self.running.remove(sequence)
        else:  # it was preempted while its last token was computed
            self.waiting.remove(sequence)
        self._release(sequence)
        if sequence.swapped and self._tiers is not None:
            self._tiers.forget(number)

    def prefilled(self, number: int) -> list[int] | None:
        """A request's prompt has been computed, and goes on elsewhere: its blocks, which stay held.

        ``None`` if they were given up meanwhile: then they are computed again, or the last token if
        they were swapped out.
        """
        sequence = self._there[number]
        if not sequence.blocks:
            sequence.tokens -= 1
            sequence.computed = min(sequence.computed, sequence.tokens - 1)
            return None
        del self._there[number]
        self.running.remove(sequence)
        return sequence.blocks

    @property
    def waits_for(self) -> str | None:
        """Return the cause for which those that run wait if nothing is computed: blocks from
        another engine, or from a tier below.
        """
        received = [sequence.handed for sequence in self.running if sequence.is_received]
        if any(handed is not None and handed.is_computed for handed in received):
            return "kv_transfer"
        return "loads" if len(received) < len(self.running) else None

    def schedule(self) -> Iteration | None:
        """The next iteration; ``None`` if there is nothing to compute."""
        budget = self._limits.token_budget
        batch: dict[int, tuple[EngineSequence, int]] = {}
        before = self.preemptions
        self.admitted = []
        self.reads = []
        size = self._size
        for sequence in list(self.running):
            if budget == 0:
                break
            if not sequence.blocks or (
                sequence.loads and self._has_to_wait(sequence)
            ):  # without blocks: it was preempted
                continue
            new = sequence.tokens - sequence.computed
            new = new if new < budget else budget
            if not new or sequence.tokens >= sequence.wanted:
                continue
            computed = sequence.computed + new
            if computed <= size * (sequence.gone + len(sequence.blocks)):
                sequence.computed = computed
                sequence.latest = new
                if computed // size != sequence.named:
                    self._name(sequence)
                batch[sequence.number] = sequence, new
                budget -= new
            elif self._make_room(sequence, new, batch):
                if (
                    self._limits.by_priority and self.preemptions > before
                ):  # of those that had their place already, too
                    budget = self._limits.token_budget - sum(taken for _, taken in batch.values())
                self._extend(sequence, new)
                batch[sequence.number] = sequence, new
                budget -= new
        if self.preemptions == before:
            for sequence, new in self._admit(budget):
                batch[sequence.number] = sequence, new
        if self._tiers is not None and self._tiers.rules.prefetches:
            self._prefetch(self._tiers)
        if self._tiers is not None and batch:
            self.gates = self._tiers.begun()
        return self._iteration(batch) if batch else None

    def on_load(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever blocks have come up."""
        if self._tiers is not None:
            self._tiers.wake = wake

    def fetch(self, iteration: Iteration) -> list[Awaited]:
        """An iteration begins: what brings up the blocks that it reads and that are below, if there
        are some.
        """
        copy = (
            None
            if self._tiers is None or not iteration.missed
            else self._tiers.fetch(iteration.missed)
        )
        return [] if copy is None else [copy]

    def ended(self) -> None:
        """The earliest of the iterations that have not ended does."""
        if self._tiers is not None:
            self._tiers.ended()

    def _prefetch(self, tiers: TieredPool) -> None:
        """Bring up the blocks of the requests at the head of the queue while there is room."""
        for sequence in islice(self.waiting, tiers.rules.prefetches):
            if not sequence.prefetched and not sequence.swapped:
                sequence.prefetched = tiers.prefetch(sequence.keys(self._limits.block_tokens))
                if not sequence.prefetched:
                    break

    def _make_room(
        self, sequence: EngineSequence, new: int, batch: dict[int, tuple[EngineSequence, int]]
    ) -> bool:
        """Preempt others until there are blocks for ``new`` tokens more; whether the sequence
        itself is still running.
        """
        while (wanted := self._lacking(sequence, new)) > self.pool.free:
            if self.thinned is not None and self.thinned.spare(self.running, wanted):
                break
            last = self._last()
            self.running.remove(last)
            if last.number in batch:
                self._take_back(last, batch.pop(last.number)[1])
            last.swapped = (
                self._swap
                and self._tiers is not None
                and not last.is_loading
                and self._tiers.swap_out(last.number, last.blocks)
            )
            self._release(last)
            last.blocks, last.loads = [], []
            last.named, last.prefetched, last.handed = 0, False, None
            if last.swapped:
                self.swaps += 1
            else:
                last.computed = 0
            self.waiting.appendleft(last)
            self.preemptions += 1
            if last is sequence:
                return False
        return True

    def _last(self) -> EngineSequence:
        """Return the sequence that goes if blocks lack."""
        if self._limits.by_priority:
            return max(
                (one for one in self.running if not one.is_received), key=lambda one: one.rank
            )
        return next(one for one in reversed(self.running) if not one.is_received)

    def _take_back(self, sequence: EngineSequence, new: int) -> None:
        """The iteration that is being scheduled will not compute these tokens."""
        size = self._limits.block_tokens
        for block in range((sequence.computed - new) // size, sequence.computed // size):
            self.pool.unname(sequence.blocks[block - sequence.gone])
        sequence.computed -= new

    def _admit(self, budget: int) -> Iterator[tuple[EngineSequence, int]]:
        while self.waiting and budget and len(self.running) < self._limits.max_sequences:
            sequence = self.waiting[0]
            size = self._limits.block_tokens
            if sequence.tokens >= sequence.wanted:
                break  # preempted while its last token was computed: it is about to be finished
            if sequence.swapped and self._tiers is not None:
                if self._blocks(sequence.tokens) > self.pool.free:
                    break
                sequence.blocks, sequence.loads = self._tiers.swap_in(sequence.number)
                sequence.swapped = False
            elif sequence.handed is not None:
                if not self._receive(sequence, sequence.handed):
                    break
            else:
                reach = self.pool.reach(sequence.keys(size))
                if not self.pool.has_room(reach, self._blocks(sequence.tokens)):
                    if not self._thin_for(sequence, reach):
                        break
                    reach = self.pool.reach(sequence.keys(size))
                if (
                    self._tiers is not None
                    and not sequence.admitted
                    and self._tiers.rules.watches_queue
                ):
                    self._tiers.admitted(sequence.number, list(sequence.keys(size)))
                # computing again after a preemption, it finds its own blocks
                sequence.blocks, sequence.loads = self.pool.claim(reach, not sequence.admitted)
                sequence.named, sequence.computed = (
                    len(sequence.blocks),
                    len(sequence.blocks) * size,
                )
                if not sequence.admitted:
                    self.hit_tokens += sequence.computed
                if self._whole_prompts:
                    sequence.blocks = sequence.blocks + self.pool.take(
                        self._blocks(sequence.tokens) - len(sequence.blocks)
                    )
            self.waiting.popleft()
            sequence.admitted = True
            self.running.append(sequence)
            self.admitted.append(sequence.number)
            if sequence.loads and self._has_to_wait(sequence):
                if sequence.handed is None:
                    self._time_load(sequence)
                continue
            new = min(sequence.tokens - sequence.computed, budget)
            self._extend(sequence, new)
            budget -= new
            yield sequence, new

    def _receive(self, sequence: EngineSequence, handed: HandedOver) -> bool:
        """Fetch the blocks of a prompt but those that the device has; False if there is no room.
        Its last token is computed here again.
        """
        reach = Reach(self.pool.found(sequence.keys(self._limits.block_tokens)), [])
        count = self._blocks(sequence.tokens)
        if not self.pool.has_room(reach, count):
            if not self._thin_for(sequence, reach, below=False):
                return False
            reach = Reach(self.pool.found(sequence.keys(self._limits.block_tokens)), [])
        sequence.blocks, sequence.loads = self.pool.claim(reach, hit=False)
        sequence.named, sequence.computed = len(sequence.blocks), sequence.tokens - 1
        fresh, waits = self.pool.receive(count - len(sequence.blocks))
        sequence.blocks = sequence.blocks + fresh
        sequence.loads.append(handed.fetch(len(fresh), waits))
        return True

    def _thin_for(self, sequence: EngineSequence, reach: Reach, below: bool = True) -> bool:
        """Thin running sequences for one that waits, of which the cache has ``reach``; whether
        there is room for it now.
        """
        count = self._blocks(sequence.tokens)
        if self.thinned is None or not self.thinned.spare(
            self.running, count - len(reach.slots) + self.pool.not_held(reach)
        ):
            return False
        keys = sequence.keys(
            self._limits.block_tokens
        )  # of what was found before some may have gone
        return self.pool.has_room(
            self.pool.reach(keys) if below else Reach(self.pool.found(keys), []), count
        )

    def _release(self, sequence: EngineSequence) -> None:
        """A sequence holds its blocks no longer."""
        self.pool.release(sequence.blocks)
        if sequence.gone and self.thinned is not None:
            self.thinned.give_back(sequence)

    def _has_to_wait(self, sequence: EngineSequence) -> bool:
        """Return whether a sequence computes nothing before all of its blocks are there; if its
        layers wait instead, the iteration reads them.
        """
        if not sequence.is_loading:
            return False
        if sequence.handed is not None or self._tiers is None or self._tiers.layers == 1:
            return True
        self.reads += sequence.loads
        return False

    def _time_load(self, sequence: EngineSequence) -> None:
        """Note how long a sequence waits for its blocks."""
        assert self._tiers is not None
        clock, since = self._tiers.copies, self._tiers.copies.now_ns
        when_over(sequence.loads, lambda: self.load_waits_ns.append(clock.now_ns - since))

    def _extend(self, sequence: EngineSequence, new: int) -> None:
        """Take blocks for so many tokens more, which are computed."""
        sequence.blocks += self.pool.take(self._lacking(sequence, new))
        sequence.computed += new
        sequence.latest = new
        self._name(sequence)

    def _name(self, sequence: EngineSequence) -> None:
        """Name its blocks that became full."""
        full = sequence.computed // self._size
        for block in range(sequence.named, full):
            self.pool.name(sequence.blocks[block - sequence.gone], sequence.key(block, self._size))
        sequence.named = full

    def _lacking(self, sequence: EngineSequence, new: int) -> int:
        """Blocks that a sequence needs for so many tokens more, less what it has; below 0 where it
        has more.
        """
        return -(-(sequence.computed + new) // self._size) - (sequence.gone + len(sequence.blocks))

    def _iteration(self, batch: dict[int, tuple[EngineSequence, int]]) -> Iteration:
        """The batch as an iteration. A sequence whose tokens are all computed gets one more."""
        prefills, emits = [], []
        if self._prefills:
            self.parts = [
                (number, sequence.computed - new, sequence.computed)
                for number, (sequence, new) in batch.items()
            ]
        decodes = keys = 0
        for number, (sequence, new) in batch.items():
            computed = sequence.computed
            if new == 1:
                decodes += 1
                keys += computed
            else:
                prefills.append((new, computed - new))
            if computed == sequence.tokens:
                sequence.tokens = computed + 1
                emits.append(number)
        missed = _NOTHING
        if self.thinned is not None and self.thinned.sequences:
            missed += sum(self.thinned.missed(sequence) for sequence, _ in batch.values())
        return Iteration(tuple(prefills), decodes, keys, tuple(emits), missed)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._size)
