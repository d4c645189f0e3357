"""A request on an engine: the tokens that it has, and where its blocks are."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

from hosim.serving.blocks import Awaited
from hosim.serving.requests import Request


class HandedOver(Protocol):
    """A prompt that another engine computes, whose blocks can be fetched."""

    @property
    def is_computed(self) -> bool:
        """Return whether all of it has been computed."""

    def fetch(self, blocks: int, after: Sequence[Awaited]) -> Awaited:
        """Bring the contents of its last ``blocks`` blocks, once all of ``after`` are over."""


class EngineSequence:
    """A request that is waiting or running: the tokens that it has, those that are in the cache,
    and its blocks.
    """

    __slots__ = (
        "admitted",
        "blocks",
        "buffer",
        "computed",
        "gone",
        "handed",
        "latest",
        "loads",
        "named",
        "number",
        "prefetched",
        "request",
        "swapped",
        "tokens",
        "wanted",
    )

    def __init__(self, number: int, request: Request) -> None:
        self.number = number
        self.request = request
        self.tokens = request.prompt_tokens
        self.wanted = request.prompt_tokens + request.output_tokens
        self.computed = 0
        self.latest = 0  # tokens that the latest iteration with it computes
        self.admitted = False
        self.blocks: list[int] = []
        # so many of its first blocks are below alone; these are of the device and stand for them
        self.gone = 0
        self.buffer: list[int] = []
        self.named = 0
        self.loads: list[Awaited] = []
        self.prefetched = False
        self.swapped = False
        self.handed: HandedOver | None = None

    def key(self, block: int, block_tokens: int) -> Hashable:
        """The name of a block's contents; one of its own where no other request can have them."""
        return self.request.block_key(block, block_tokens) or (-1, self.number, block)

    def keys(self, block_tokens: int) -> Iterator[Hashable]:
        """The keys of the full blocks before its last token, which is always computed."""
        return (self.key(block, block_tokens) for block in range((self.tokens - 1) // block_tokens))

    @property
    def rank(self) -> tuple[int, int, int]:
        """By priority, and then by arrival."""
        return self.request.priority, self.request.arrival_ns, self.number

    @property
    def is_loading(self) -> bool:
        """Return whether its blocks are still on their way."""
        if self.loads:
            self.loads = [load for load in self.loads if not load.over]
        return bool(self.loads)

    @property
    def is_received(self) -> bool:
        """Return whether its blocks are still on their way from another engine: until then they
        cannot be given up.
        """
        return self.handed is not None and self.is_loading
