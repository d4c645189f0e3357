"""The models that run on each card: a token of each model at each length of context, with everything
in the card's memory, with weights below it, and with experts computed where they lie.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hosim.engine import resident_step
from hosim.errors import HosimError, InputError
from hosim.hardware import Hardware
from hosim.io import load_named
from hosim.result import Result
from hosim.study.asked import parse_choice
from hosim.study.runs import Question

_BELOW = "static_split"
"""The policy that moves weights: a rule that runtimes have, which plans at once."""


@dataclass(frozen=True, slots=True)
class TokenTime:
    """The time of a token in nanoseconds, with the ends of its 90 % interval."""

    ns: int
    low_ns: int | None = None
    high_ns: int | None = None


@dataclass(frozen=True, slots=True)
class AtlasCell:
    """One model on one card at one length of context.

    It needs ``needed_bytes`` of the card's ``capacity_bytes``. ``resident`` is the time of a token
    if that fits, ``below`` with weights in the memory of the host, within the card's, and
    ``experts`` with routed experts computed there; ``None`` where it does not fit, or there are
    none. ``command`` asks the same.
    """

    model: str
    card: str
    context: int
    needed_bytes: int
    capacity_bytes: int
    command: str
    resident: TokenTime | None = None
    below: TokenTime | None = None
    experts: TokenTime | None = None

    @property
    def fits(self) -> bool:
        """True if it fits with everything in the card's memory."""
        return self.needed_bytes <= self.capacity_bytes

    @property
    def row(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return asdict(self) | {"fits": self.fits}


def atlas(
    models: Sequence[str],
    cards: Sequence[Hardware],
    contexts: Sequence[int],
    progress: Callable[[str], None] = lambda doing: None,
) -> Iterator[AtlasCell]:
    """Yield a cell for each model, card and length of context, in this order. ``progress`` is
    called with what begins. Raises :class:`InputError` for a model that cannot decode.
    """
    for model in models:
        for context in contexts:
            asked = f"{model}:phase=decode:context={context}"
            progress(asked)
            graph = load_named(asked)
            placed = _with_experts_below(asked)
            for card in cards:
                alone = resident_step(graph, card)
                fits = alone.peak_bytes <= card.device.capacity_bytes
                yield AtlasCell(
                    model,
                    card.name,
                    context,
                    alone.peak_bytes,
                    card.device.capacity_bytes,
                    f"hosim {asked} -H {card.name}",
                    _took(Question(graph, card, parse_choice("resident"))) if fits else None,
                    None if fits else _took(Question(graph, card, parse_choice(_BELOW))),
                    None
                    if fits or placed is None
                    else _took(Question(placed, card, parse_choice("resident"))),
                )


def _with_experts_below(asked: str) -> Any:
    """The same with routed experts computed on the host; ``None`` for a model without them."""
    try:
        return load_named(f"{asked}:experts_on=ddr")
    except InputError:
        return None


def _took(question: Question) -> TokenTime | None:
    """The time of the question's replay; ``None`` if it does not fit, or the card has no processor
    or channel for it.
    """
    try:
        result: Result = question.attempt()
    except HosimError:
        return None
    return (
        None
        if not result.feasible or result.makespan_ns is None
        else TokenTime(result.makespan_ns, result.makespan_low_ns, result.makespan_high_ns)
    )
