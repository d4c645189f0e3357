"""Notes: what a reader of figures has to know beside them, the same in tables, JSON, frames,
baselines and reports.

Of a graph and the machines that it is replayed on, :func:`notes` gives them. A result has these and
those of its plan (:attr:`hosim.result.Result.notes`). Whoever answers shows them all.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hosim.analysis.costmodel import base_line, guessed_attention_line, guessed_collectives_line
from hosim.data.expert_routing import META as ROUTING
from hosim.data.expert_routing import draw_spread_of
from hosim.data.unknown_ops import unknown_ops, untimed_line
from hosim.devices_of_graph import other_devices_line
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.measured_on import times_line

LEFT_OUT = "left_out"
"""The key of a graph's ``meta`` for what the graph does not have of its model, such as quantised
weights, a line each.
"""

ASSUMED = "assumed"
"""The key of a graph's ``meta`` for what its builder takes to be so and nobody said, a line
each.
"""

MISSING = "missing"
"""The key of a graph's ``meta`` for what the file that it is from does not say, a line each."""

_KNOWN = (
    "the static policies, lookahead and belady see what gates choose before they do; hybrid "
    "and on_demand do not"
)

KNEW = "knew"
"""The kind of a note about what a plan knew of the gates' choices, and when."""

CLAIRVOYANT = "what each gate chooses before it does (clairvoyant), which no run knows: a bound"
ON_DEMAND = "what a gate chooses once it has chosen (on demand)"

_LISTED = {LEFT_OUT: "not modelled", ASSUMED: "assumed", MISSING: "not in the file"}


class Note(NamedTuple):
    """One note: what it is about, in a word or two, and a line without a full stop.

    >>> str(Note("not modelled", "quantised weights"))
    'not modelled: quantised weights'
    """

    about: str
    line: str

    def __str__(self) -> str:
        return f"{self.about}: {self.line}"


def notes(graph: Graph, *machines: Hardware) -> tuple[Note, ...]:
    """Return the notes for readers of the workload's figures: on the graph, and on its times on
    each machine.
    """
    each = [(machine, graph.derived_on(machine, _on_machine)) for machine in machines]
    if len(machines) > 1:
        each = [
            (
                machine,
                tuple([Note(note.about, f"on {machine.name}, {note.line}") for note in found]),
            )
            for machine, found in each
        ]
    line = times_line(graph) if machines else None
    timed = () if line is None else (Note("durations", line),)
    return (*timed, *graph.derived(_of_graph), *[note for _, found in each for note in found])


def _of_graph(graph: Graph) -> tuple[Note, ...]:
    def found() -> Iterator[Note]:
        if (unknown := unknown_ops(graph)) is not None:
            yield Note("unknown", str(unknown))
        if (untimed := untimed_line(graph)) is not None:
            yield Note("untimed", untimed)
        if graph.meta.get(ROUTING):
            yield Note("routing", _KNOWN)
        if spread := draw_spread_of(graph):
            yield Note(
                "draws",
                f"other draws of the routing have {spread:.1%} more or fewer experts to move, "
                "which is in the interval",
            )
        for key, about in _LISTED.items():
            lines = graph.meta.get(key)
            yield from (
                Note(about, line)
                for line in (lines if isinstance(lines, list | tuple) else ())
                if isinstance(line, str)
            )

    return tuple(found())


def _on_machine(graph: Graph, machine: Hardware) -> tuple[Note, ...]:
    lines = (
        ("runtime", None if machine.software is None else machine.software.line),
        ("base", base_line(graph, machine)),
        ("devices", other_devices_line(graph, machine)),
        ("guessed", guessed_collectives_line(graph, machine)),
        ("guessed", guessed_attention_line(graph, machine)),
    )
    return tuple([Note(about, line) for about, line in lines if line is not None])


def sentence(line: str) -> str:
    """A note as a sentence.

    >>> sentence("not modelled: a LoRA")
    'Not modelled: a LoRA.'
    """
    return f"{line[:1].upper()}{line[1:]}."


def each_once(lines: Iterable[str | Note]) -> list[str]:
    """Notes of several answers as texts, each once, in order.

    >>> each_once(["a", Note("b", "c"), "a"])
    ['a', 'b: c']
    """
    return list(dict.fromkeys(map(str, lines)))
