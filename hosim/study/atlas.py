"""The time of a token of each model on each card and context length: with everything in the card's
memory, with weights offloaded to the host, and with experts computed on the host.
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
"""The policy that offloads weights: a rule of existing runtimes, which plans fast."""


@dataclass(frozen=True, slots=True)
class TokenTime:
    """The time of a token in nanoseconds, with the ends of its 90 % interval."""

    ns: int
    low_ns: int | None = None
    high_ns: int | None = None


@dataclass(frozen=True, slots=True)
class AtlasCell:
    """One model on one card at one context length.

    It needs ``needed_bytes`` of the card's ``capacity_bytes``. ``resident`` is the time of a token
    with everything in the card's memory, ``below`` with weights offloaded to the host, and
    ``experts`` with routed experts computed on the host. Each is ``None`` if it does not fit or
    the model has no experts. ``command`` gives the same answer at the shell.
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
        """True if the model fits with everything in the card's memory."""
        return self.needed_bytes <= self.capacity_bytes

    @property
    def row(self) -> dict[str, Any]:
        """Return all fields as JSON data."""
        return asdict(self) | {"fits": self.fits}


def atlas(
    models: Sequence[str],
    cards: Sequence[Hardware],
    contexts: Sequence[int],
    progress: Callable[[str], None] = lambda doing: None,
) -> Iterator[AtlasCell]:
    """Yield a cell for each model, card and context length, in this order. ``progress`` gets the
    name of each step as it starts. Raises :class:`InputError` for a model that cannot decode.
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
    """Return the workload with routed experts computed on the host; ``None`` for a model without
    experts.
    """
    try:
        return load_named(f"{asked}:experts_on=ddr")
    except InputError:
        return None


def _took(question: Question) -> TokenTime | None:
    """Return the time of the question's replay; ``None`` if it does not fit, or the card has no
    processor or channel for it.
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
