"""Requests: when each arrives, how long it is, and which blocks of its prompt others have as
well.
"""

from dataclasses import dataclass

from hosim.base.whole_numbers import keep_whole
from hosim.data.field_kinds import keep_kinds
from hosim.errors import InputError


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Parameters
    ----------
    arrival_ns
        When it arrives, in nanoseconds since time 0, or since the last token of the request that it
        follows.
    prompt_tokens
        Tokens of its prompt.
    output_tokens
        Tokens that it is answered with.
    prefix
        An id for each ``prefix_tokens`` tokens of the prompt, from its first: equal ids mean that
        the prompts are equal up to their end. Where there are more ids than the prompt has parts,
        they go on with the answer, which the prompt of a later turn begins with as well.
    prefix_tokens
        Tokens that an id stands for.
    priority
        How urgent it is where engines schedule by priority: the least value goes first.
    follows
        The number of the request of which it is the next turn; ``None``: it follows none.

    Raises
    ------
    InputError
        If a field has another type.

    References
    ----------
    ``docs/serving.md`` says how requests are served, ``docs/formats.md`` how a file has them.

    Examples
    --------
    >>> Request(0, 20, 3, prefix=(7,), prefix_tokens=16).block_key(0, 16)
    (0, 7, 0)
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    prefix_tokens: int = 16
    priority: int = 0
    follows: int | None = None

    def __post_init__(self) -> None:
        keep_kinds(self, InputError, "request")
        keep_whole(self, InputError, "request")

    def block_key(self, block: int, block_tokens: int) -> tuple[int, int, int] | None:
        """The key of the contents of a block of the cache and of all before it.

        These are the number and the id of the prompt's part in which the block ends, and where in
        it the block ends. Without the number, a part whose id stands twice would name two blocks.

        Parameters
        ----------
        block
            The number of the block.
        block_tokens
            Tokens of a block.

        Returns
        -------
        tuple
            The three numbers; ``None`` if no other request can have the same contents.
        """
        if not self.prefix:
            return None
        end = (block + 1) * block_tokens
        place, offset = divmod(end, self.prefix_tokens)
        if offset == 0:
            place -= 1
        return (
            (place, self.prefix[place], offset)
            if place < len(self.prefix)
            and (
                end <= self.prompt_tokens
                or len(self.prefix) * self.prefix_tokens >= self.prompt_tokens + self.prefix_tokens
            )
            else None
        )
