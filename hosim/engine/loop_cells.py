"""The arrays of the event loop, and its constants.

Four files are the loop, each a class on the one before: this one,
:mod:`~hosim.engine.loop_transfers`, :mod:`~hosim.engine.loop_ops`, :mod:`~hosim.engine.loop`. It is
docs/contract.md over the arrays of a program table (:mod:`hosim.engine.program_table`), one device,
nothing looked up; :mod:`~hosim.engine.loop_graph` makes those of a graph. With a compiler they
become the extension ``compiled_loop``: of arrays with the types that the classes declare, of all
else with those of ``compiled_loop.pxd``. Without one they run as they are, with the same results.
They import nothing else.

Arrays are indexed by op, tensor, stream, tier, channel, slot (an engine of a channel), move (a
cache op), use (an op and a tensor that it uses), flow class and combination of flows; what is by
two of them is row after row. Products of rates and times take up to 126 bits: these are computed in
128, and kept as two limbs of 62.
"""

from __future__ import annotations

from typing import Any

from hosim.engine.cells import Flags, Int, Ints, Longs, made, state

NOWHERE = -2
"""After which op a move is issued that is not there."""
NEVER = 1 << 62
"""Later than anything, in nanoseconds; also the place of the upper limb of a number of two."""

LOW = NEVER - 1
"""The lower limb of a number of two."""

ABSENT, PENDING, VALID = 0, 1, 2
"""A copy of a tensor in a tier: no bytes held; bytes held that are being written; valid."""

READS, WRITES, OUTPUT = 1, 2, 4
"""What an op does with a tensor: flags of a use."""

FREE, LATENT, FLOWING = 0, 1, 2
"""A slot: nothing under way; latency, and pinning before it; bytes flow."""

RUNNING, ENDED, LATE, STOPPED, STUCK, ILLEGAL, ASYMMETRIC = 0, 1, 2, 3, 4, 5, 6
"""What a run came to: all has ended; it takes longer than the limit; it has done the ops asked for;
nothing can proceed; a detach of ``culprit`` is illegal; there is room for some of several devices
only.
"""

RATES, SPEED, INSPECTS, DECIDES, ROOM = 7, 8, 9, 10, 11
"""What a run asks for before it goes on: the rates of ``wanted``, or the speed there, which are not
in the table yet; how long a runtime policy inspects the next op of stream ``wanted``, if that is
not the same for all; what it decides before that op; what it decides where nothing is under way (rule 16).
"""

SAME = 12
"""What a run came to that goes on like one that is kept."""

ROW, MOVES = 9, 4
"""How many figures of a move are put in a place; and how many moves of a tensor have a place
between two of its uses, where it may be stored, leave, come back and be written back.
"""

DEPENDENCY, TRANSFER, CAPACITY, RUNTIME = 0, 1, 2, 3
"""The causes of a stall, in the order of :data:`hosim.result.STALL_CAUSES`."""


class LoopCells:
    """The table: every array, with its type and, unless it is given, its size. ``hatch_build.py``
    declares them in the extension.
    """

    # -- the graph and its durations
    # -----------------------------------------------------------------------------
    ops: Int
    tensors: Int
    streams: Int
    main: Int
    kinds: Int
    queue_from: Ints
    queue: Ints
    stream_of: Ints
    place: Ints
    wait_from: Ints
    wait_stream: Ints
    wait_count: Ints
    use_from: Ints
    use_op: Ints
    use_tensor: Ints
    use_flags: Flags
    user_from: Ints
    user: Ints
    survives: Flags
    kind: Flags
    size: Longs
    workspace: Longs
    duration: Longs

    # -- the machine, and how copies and ops share it
    # ------------------------------------------------------------
    tiers: Int
    device: Int
    elsewhere: Int
    deciding: Int
    planned: Int
    channels: Int
    slots: Int
    engines: Int
    classes: Int
    best: Longs
    paces: Int
    detailed: Int
    where: Ints
    capacity: Longs
    part: Longs
    slot_from: Ints
    queue_of: Ints
    latency: Longs
    pin: Longs
    pooled: Ints
    send_class: Ints
    send_high: Longs
    send_low: Longs
    pace_of: Ints
    launch: Longs
    whole_high: Longs
    whole_low: Longs
    joined: Ints
    rate_of: Longs
    speed_high: Longs
    speed_low: Longs

    # -- the host: so many ops are called one by one (0: all are at once)
    # ------------------------------------------------------------------------
    hosted: Int
    host_ns: Longs
    host_copies: Longs
    host_blocks: Flags
    host_await_from: Ints
    host_await: Ints
    host_wait_from: Ints
    host_wait: Ints

    # -- the plan
    # ----------------------------------------------------------------------------------------------
    move_from: Ints
    copies: Ints = made("moves")
    move_tensor: Ints = made("moves")
    move_source: Ints = made("moves")
    move_target: Ints = made("moves")
    move_channel: Ints = made("moves")
    move_class: Ints = made("moves")
    move_after: Ints = made("moves", NOWHERE)
    move_arrives: Ints = made("moves")
    move_order: Longs = made("moves")
    move_high: Longs = made("moves")
    move_low: Longs = made("moves")
    volume: Ints
    route: Ints = made("moves", -1)
    next_volume: Ints = made("tensors")
    issue_head: Ints = made("ops+1", -1)
    issue_next: Ints = made("moves")
    need_from: Ints = made("uses")
    need_to: Ints = made("uses")

    # -- the chunks of routes of several channels, hop by hop: each is a move of its own from
    # ``chunks_from`` on (rule 7); ``route`` has the first one of a cache op
    # ------------------------------------------------------------------------------------------
    chunks_from: Int
    chunk_move: Ints
    chunk_bytes: Longs
    onward: Ints
    first_on_hop: Ints

    # -- the state of a run; scalars: now, ops ended, transfers issued, the last transfer's end and
    # its tensor -------
    scalars: Longs = state("5")
    host_at: Ints = state("2")
    host_over: Longs = state("1", -1)
    inspect_ns: Longs = made("1", -1)
    called_at: Longs = state("hosted", -1)
    done: Ints = state("streams")
    running: Ints = state("streams", -1)
    here: Flags = state("tiers*tensors")
    users_left: Ints = state("tensors")
    users_ended: Ints = state("tensors")
    released: Flags = state("tensors")
    moving: Flags = state("tensors")
    ended: Flags = state("moves")
    crossing: Flags = state("chunks")
    chunks_left: Ints = state("chunks")
    busy: Ints = state("channels")
    slot_move: Ints = state("slots")
    slot_phase: Ints = state("slots")
    slot_class: Ints = state("slots")
    blamed: Ints = state("streams", -1)
    paced: Ints = state("streams", -1)
    held: Longs = state("tiers")
    pinned: Longs = state("tiers")
    most_pinned: Longs = state("tiers")
    op_end: Longs = state("streams", NEVER)
    began: Longs = state("streams")
    free_since: Longs = state("streams")
    inspected_at: Longs = state("streams", -1)
    dependency_met: Longs = state("streams", -1)
    residency_met: Longs = state("streams", -1)
    work_since: Longs = state("streams")
    work_high: Longs = state("streams")
    work_low: Longs = state("streams")
    until: Longs = state("slots", NEVER)
    started: Longs = state("slots")
    flows_from: Longs = state("slots")
    flow_since: Longs = state("slots")
    left_high: Longs = state("slots")
    left_low: Longs = state("slots")
    rate: Longs = state("slots")

    # -- what is issued and not over, of each tensor and of each channel: a snapshot has it as
    # Loop.note lists it -----
    pending_head: Ints = made("tensors", -1)
    pending_tail: Ints = made("tensors")
    pending_next: Ints = made("moves")
    queue_head: Ints = made("channels", -1)
    queue_tail: Ints = made("channels")
    queue_next: Ints = made("moves")
    sequence: Longs = made("moves")
    issued_at: Longs = made("moves")
    links: Ints = made("3*moves+3")
    changed: Flags = made("tensors")
    marks: Longs = made("3*moves+3+3*tiers+6*streams+5*slots")

    # -- the snapshots of a run, and the tensors that change beside it
    # ------------------------------------------------------------------------
    kept_done: Ints = made("kept*streams")
    kept_total: Longs = made("kept")
    kept_time: Longs = made("kept")

    # -- what a run tells
    # -----------------------------------------------------------------------------------------
    peak: Longs = made("tiers")
    peak_at: Longs = made("tiers")
    by_kind: Longs = made("tiers*kinds")
    peak_by_kind: Longs = made("tiers*kinds")
    stalls: Longs = made("4*streams")
    slowed: Longs = made("streams")
    channel_figures: Longs = made("8*channels")
    rest: Longs = made("ops")
    op_idle: Longs = made("ops")
    op_cause: Ints = made("ops")
    op_held: Longs = made("ops")
    op_begun: Longs = made("ops")
    op_over: Longs = made("ops")
    move_begun: Longs = made("moves")
    move_over: Longs = made("moves")
    move_shared: Longs = made("moves")

    # -- room for what is handled within an instant
    # ---------------------------------------------------------------
    due: Ints = made("moves")
    recent: Ints = made("moves")
    crossed: Ints = made("chunks")
    issues: Ints = made("moves")
    blocked: Ints = made("channels")
    latest: Ints = made("tiers")

    def __init__(self, cells: Any) -> None:
        self.take(cells)
        self.recording = 1 - self.detailed
        self.at = self.streams + 1
        self.decided = 0
        self.due_count = 0
        self.recent_count = 0
        self.crossed_count = 0
        self.issue_count = 0
        self.queued = 0
        self.dirty = 0
        self.unsettled = 0
        self.status = RUNNING
        self.wanted = 0
        self.culprit = -1
        self.instants = 0
        self.limit = NEVER
        self.snapshots = 0
        self.kept_marks: list[Any] = []
        self.kept_here: list[Any] = []
        self.met = 0
        self.further = 1
        self.first_changed = 0
        self.last_changed = -1

    def take(self, cells: Any) -> None:
        """Let the arrays be those of ``cells``."""
        for name in LoopCells.__annotations__:
            setattr(self, name, cells[name])

    def two(self, high: int, low: int) -> int:
        """A number of two limbs."""
        return (high << 62) + low
