"""The discrete-event engine: it replays a plan on a machine by the rules of docs/contract.md.

:func:`replay` and :func:`replay_stages` are the entry points. :mod:`~hosim.engine.reference`
implements the contract in plain SimPy: read it first. The loop (:mod:`~hosim.engine.loop_cells` and
the four files after it) implements the same rules over the arrays of a program table
(:mod:`~hosim.engine.program_table`) and is compiled where there is a compiler. It replays whole
plans (:mod:`~hosim.engine.replay_by_loop`) and evaluates changes of plans for the planner. The
reference replays what the loop does not cover, such as timelines and allocators.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.engine.arenas import make_arena, streams_of_tensors
    from hosim.engine.budget import MemoryBudget, read_budget
    from hosim.engine.drawn_replays import jittered_makespans, later_draws
    from hosim.engine.flow_table import UncoveredError
    from hosim.engine.hops import resolve_hop
    from hosim.engine.ledger import Ledger
    from hosim.engine.loop_cells import ENDED, LATE, MOVES, NEVER, ROW, SAME, STOPPED, STUCK
    from hosim.engine.program_account import program_account
    from hosim.engine.program_base import ProgramBase, one_for_all
    from hosim.engine.program_table import ProgramTable
    from hosim.engine.replay import replay, replay_stages, times_of, verdict
    from hosim.engine.resident_step import most_needed, resident_step, with_room
    from hosim.engine.slack import replayed_latitudes, with_slack
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "arenas": "make_arena streams_of_tensors",
            "budget": "MemoryBudget read_budget",
            "hops": "resolve_hop",
            "drawn_replays": "jittered_makespans later_draws",
            "flow_table": "UncoveredError",
            "ledger": "Ledger",
            "loop_cells": "ENDED LATE MOVES NEVER ROW SAME STOPPED STUCK",
            "program_account": "program_account",
            "program_base": "ProgramBase one_for_all",
            "program_table": "ProgramTable",
            "replay": "replay replay_stages times_of verdict",
            "resident_step": "most_needed resident_step with_room",
            "slack": "replayed_latitudes with_slack",
        },
    )

__all__ = [
    "ENDED", "LATE", "MOVES", "NEVER", "ROW", "SAME", "STOPPED", "STUCK",
    "Ledger", "MemoryBudget", "ProgramBase", "ProgramTable", "UncoveredError", "jittered_makespans", "later_draws",
    "make_arena", "most_needed", "one_for_all", "program_account", "read_budget", "replay",
    "replay_stages", "replayed_latitudes", "resident_step", "resolve_hop", "streams_of_tensors",
    "times_of", "verdict", "with_room", "with_slack",
]  # fmt: skip
