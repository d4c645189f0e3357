"""The choices of a search as flat integers, which compiled code changes and takes back.

A tensor's life is a row of slots: the time before its first use, between two uses, and after the
last one. What it does there is a cell for each slot and each of :data:`AWAY` to :data:`TIER`; what
it does altogether is a cell for each of :data:`START` to :data:`SAVE_TURN`. They say what
:class:`~hosim.planner.hyperoffload.tensor_choices.choices.TensorChoice` says.

The files of this folder become one extension (``hatch_build.py``), with the types of
``compiled_search.pxd``; without a compiler they run as they are, with the same results. Each class
stands on the one before.
"""

from __future__ import annotations

from typing import Any

from hosim.engine.cells import Flags, Int, Ints, Longs, made, state

UNSET = -(1 << 30)
"""A cell that leaves it to the rule: no tier of its own, or no return at all."""

AWAY, RETURN, STORE, LEAVE, TURN, STORE_TURN, TIER, FIELDS = 0, 1, 2, 3, 4, 5, 6, 7
"""Cells of a slot: whether the tensor is away, and after which op it returns, is stored and leaves;
its place in the queue of those that return, and that are stored, after the same op; its tier.
"""

START, BELOW_IN, SAVE, SAVE_TURN, WHOLE = 0, 1, 2, 3, 4
"""Cells of a tensor: how it starts, the tier below, after which op what the step has written is
stored for the end, and its place in that queue.
"""

STAYS, AT_HOME, WITH_COPY, STARTS_BELOW = -1, 0, 1, 2
"""How a tensor starts; ``STAYS``: it has no choice."""


class ChoiceCells:
    """The cells of a problem's choices, and what they are chosen for.

    Slots of a tensor stand together, from ``first_slot`` on: between the ops ``slot_after`` and
    ``slot_before``, the use at whose end reads or writes it. ``gap_written`` is the op that wrote
    what it holds there (-1: none), where the search may use the slot (``gap``).
    """

    ops: Int
    tensors: Int
    streams: Int
    tiers: Int
    device: Int
    slots: Int
    first_slot: Ints
    slot_after: Ints
    slot_before: Ints
    slot_reads: Flags
    slot_writes: Flags
    last_write: Ints
    survives: Flags
    forced: Ints
    home_mask: Ints
    move_from: Ints
    channel_between: Ints
    flow_class: Ints
    flow_high: Longs
    flow_low: Longs
    size: Longs
    queue_from: Ints
    queue: Ints
    stream_of: Ints
    place: Ints
    clock: Ints

    cells: Ints = state("7*slots+4*tensors", UNSET)

    # -- of the loop: the state of a run, and what it tells
    # ----------------------------------------------------------------------------------------------
    scalars: Longs
    done: Ints
    free_since: Longs
    held: Longs
    part: Longs
    changed: Flags
    kept_time: Longs
    op_idle: Longs
    op_cause: Ints
    op_held: Longs

    # -- where a search may change them
    # ----------------------------------------------------------------------------------------------
    slot_tensor: Ints
    gap: Flags
    gap_written: Ints
    gap_returns: Flags
    gap_first: Flags
    persistent: Flags
    up_ns: Longs
    op_start: Longs
    below_tiers: Int
    below_tier: Ints
    candidates: Int
    candidate: Ints
    larges: Int
    large: Ints
    alike: Ints
    alike_from: Ints
    alike_to: Ints
    alike_at: Ints
    shares: Int
    share: Ints

    # -- the moves of one tensor
    # ----------------------------------------------------------------------------------------------
    follow: Ints = made("most_uses+5")
    move_source: Ints = made("4*most_uses+8")
    move_target: Ints = made("4*most_uses+8")
    move_at: Ints = made("4*most_uses+8")
    move_order: Longs = made("4*most_uses+8")
    rows: Longs = made("36*most_uses+72")

    # -- what is changed, and what it was; what the table has of each tensor
    # ----------------------------------------------------------------------------------------------
    log_cell: Ints = made("14*slots+8*tensors")
    log_value: Ints = made("14*slots+8*tensors")
    touched: Flags = made("tensors")
    touched_tensor: Ints = made("tensors")
    mask: Ints = made("tensors")
    mask_before: Ints = made("tensors")
    copies: Ints = made("tensors")
    copies_before: Ints = made("tensors")
    lowered: Flags = made("tensors")

    # -- where ops of the present run wait, and what is issued after each op
    # ----------------------------------------------------------------------------------------------
    stall_op: Ints = made("ops+1")
    stall_ns: Longs = made("ops+1")
    stall_cause: Ints = made("ops+1")
    wait: Ints = made("ops+1")
    wait_sum: Longs = made("ops+1")
    issue_from: Ints = made("ops+3")
    issue_slot: Ints = made("2*slots+tensors")
    issue_kind: Flags = made("2*slots+tensors")
    busy: Longs = made("tiers")
    own: Ints = made("tensors")
    option: Ints = made("48*most_uses+4*tiers+96")

    # -- the record of a search: its best choices, and what has paid
    # ----------------------------------------------------------------------------------------------
    best_cells: Ints = state("7*slots+4*tensors", UNSET)
    differs: Flags = state("tensors")
    differing: Ints = state("tensors")
    gained: Longs = state("24")
    spent: Longs = state("24")
    paid: Longs = state("24")
    search: Longs = state("12")

    def __init__(self, cells: Any) -> None:
        self.take(cells)

    def take(self, cells: Any) -> None:
        """Let the arrays be those of ``cells``."""
        for name in ChoiceCells.__annotations__:
            setattr(self, name, cells[name])

    def of_slot(self, field: int, s: int) -> int:
        """A cell of a slot."""
        return self.cells[field * self.slots + s]

    def of_tensor(self, field: int, t: int) -> int:
        """A cell of a tensor."""
        return self.cells[FIELDS * self.slots + field * self.tensors + t]
