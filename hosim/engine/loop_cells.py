"""The arrays of the event loop, and its constants.

Five files are the loop, each a class on the one before: this one, :mod:`~hosim.engine.loop_memory`, :mod:`~hosim.engine.loop_transfers`,
:mod:`~hosim.engine.loop_ops`, :mod:`~hosim.engine.loop`. It is docs/contract.md over the arrays of a program table
(:mod:`hosim.engine.program_table`), one device, nothing looked up. With a compiler they become the extension ``compiled_loop``, with the
types that ``compiled_loop.pxd`` gives; without one they run as they are, with the same results. They import nothing else.

Arrays are indexed by op, tensor, stream, tier, channel, slot (an engine of a channel), move (a cache op), use (an op and a tensor that it
uses), flow class and combination of flows; what is by two of them is row after row. Products of rates and times take up to 126 bits:
these are computed in 128, and kept as two limbs of 62.
"""

from __future__ import annotations

from typing import Any

SOURCE = ""
"""Of the extension: the hash of the source from which it was compiled."""

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
"""What a run came to: all has ended; it takes longer than the limit; it has done the ops asked for; nothing can proceed; a detach of
``culprit`` is illegal; there is room for some of several devices only."""

RATES, SPEED, INSPECTS, DECIDES, ROOM = 7, 8, 9, 10, 11
"""What a run asks for before it goes on: the rates of ``wanted``, or the speed there, which are not in the table yet; how long a runtime
policy inspects the next op of stream ``wanted``; what it decides before that op; what it decides where nothing is under way (rule 16)."""

DEPENDENCY, TRANSFER, CAPACITY, RUNTIME = 0, 1, 2, 3
"""The causes of a stall, in the order of :data:`hosim.result.STALL_CAUSES`."""


class LoopCells:
    """The arrays of ``cells``: what no plan changes, what the plan says, the state, and what a run tells."""

    def __init__(self, cells: Any) -> None:
        self.take_graph(cells)
        self.take_machine(cells)
        self.take_plan(cells)
        self.take_state(cells)
        self.take_links(cells)
        self.take_figures(cells)

    def take_graph(self, cells: Any) -> None:
        """The arrays that depend on the graph and its durations alone."""
        self.ops = cells["ops"]
        self.tensors = cells["tensors"]
        self.streams = cells["streams"]
        self.main = cells["main"]
        self.kinds = cells["kinds"]
        self.queue_from = cells["queue_from"]
        self.queue = cells["queue"]
        self.stream_of = cells["stream_of"]
        self.place = cells["place"]
        self.wait_from = cells["wait_from"]
        self.wait_stream = cells["wait_stream"]
        self.wait_count = cells["wait_count"]
        self.use_from = cells["use_from"]
        self.use_op = cells["use_op"]
        self.use_tensor = cells["use_tensor"]
        self.use_flags = cells["use_flags"]
        self.user_from = cells["user_from"]
        self.user = cells["user"]
        self.survives = cells["survives"]
        self.kind = cells["kind"]
        self.size = cells["size"]
        self.workspace = cells["workspace"]
        self.duration = cells["duration"]
        self.rest = cells["rest"]

    def take_machine(self, cells: Any) -> None:
        """The arrays that depend on the machine, and on how copies and ops share it."""
        self.tiers = cells["tiers"]
        self.device = cells["device"]
        self.where = cells["where"]
        self.elsewhere = cells["elsewhere"]
        self.deciding = cells["deciding"]
        self.planned = cells["planned"]
        self.channels = cells["channels"]
        self.slots = cells["slots"]
        self.engines = cells["engines"]
        self.classes = cells["classes"]
        self.paces = cells["paces"]
        self.capacity = cells["capacity"]
        self.part = cells["part"]
        self.slot_from = cells["slot_from"]
        self.latency = cells["latency"]
        self.pin = cells["pin"]
        self.pooled = cells["pooled"]
        self.send_class = cells["send_class"]
        self.send_high = cells["send_high"]
        self.send_low = cells["send_low"]
        self.pace_of = cells["pace_of"]
        self.launch = cells["launch"]
        self.whole_high = cells["whole_high"]
        self.whole_low = cells["whole_low"]
        self.joined = cells["joined"]
        self.rate_of = cells["rate_of"]
        self.speed_high = cells["speed_high"]
        self.speed_low = cells["speed_low"]

    def take_plan(self, cells: Any) -> None:
        """The arrays that a plan fills."""
        self.copies = cells["copies"]
        self.move_tensor = cells["move_tensor"]
        self.move_source = cells["move_source"]
        self.move_target = cells["move_target"]
        self.move_channel = cells["move_channel"]
        self.move_class = cells["move_class"]
        self.move_order = cells["move_order"]
        self.move_from = cells["move_from"]
        self.move_after = cells["move_after"]
        self.move_arrives = cells["move_arrives"]
        self.move_high = cells["move_high"]
        self.move_low = cells["move_low"]
        self.move_best = cells["move_best"]
        self.next_volume = cells["next_volume"]
        self.volume = cells["volume"]
        self.issue_head = cells["issue_head"]
        self.issue_next = cells["issue_next"]
        self.need_from = cells["need_from"]
        self.need_to = cells["need_to"]

    def take_state(self, cells: Any) -> None:
        """The arrays that a run changes: ``scalars`` are now, ops ended, transfers issued, the last transfer's end and its tensor."""
        self.scalars = cells["scalars"]
        self.done = cells["done"]
        self.running = cells["running"]
        self.here = cells["here"]
        self.users_left = cells["users_left"]
        self.users_ended = cells["users_ended"]
        self.released = cells["released"]
        self.moving = cells["moving"]
        self.ended = cells["ended"]
        self.busy = cells["busy"]
        self.slot_move = cells["slot_move"]
        self.slot_phase = cells["slot_phase"]
        self.slot_class = cells["slot_class"]
        self.blamed = cells["blamed"]
        self.paced = cells["paced"]
        self.flowing = cells["flowing"]
        self.held = cells["held"]
        self.pinned = cells["pinned"]
        self.most_pinned = cells["most_pinned"]
        self.op_end = cells["op_end"]
        self.began = cells["began"]
        self.free_since = cells["free_since"]
        self.inspected_at = cells["inspected_at"]
        self.dependency_met = cells["dependency_met"]
        self.residency_met = cells["residency_met"]
        self.work_since = cells["work_since"]
        self.work_high = cells["work_high"]
        self.work_low = cells["work_low"]
        self.until = cells["until"]
        self.started = cells["started"]
        self.flows_from = cells["flows_from"]
        self.flow_since = cells["flow_since"]
        self.left_high = cells["left_high"]
        self.left_low = cells["left_low"]
        self.rate = cells["rate"]

    def take_links(self, cells: Any) -> None:
        """What is issued and not over: of each tensor, and of each channel. A snapshot keeps it as :meth:`note` lists it."""
        self.pending_head = cells["pending_head"]
        self.pending_tail = cells["pending_tail"]
        self.pending_next = cells["pending_next"]
        self.queue_head = cells["queue_head"]
        self.queue_tail = cells["queue_tail"]
        self.queue_next = cells["queue_next"]
        self.sequence = cells["sequence"]
        self.issued_at = cells["issued_at"]
        self.links = cells["links"]
        self.changed = cells["changed"]
        self.marks = cells["marks"]

    def take_figures(self, cells: Any) -> None:
        """What a run tells, and room for what is handled within an instant."""
        self.peak = cells["peak"]
        self.peak_at = cells["peak_at"]
        self.by_kind = cells["by_kind"]
        self.peak_by_kind = cells["peak_by_kind"]
        self.stalls = cells["stalls"]
        self.slowed = cells["slowed"]
        self.channel_figures = cells["channel_figures"]
        self.op_idle = cells["op_idle"]
        self.op_cause = cells["op_cause"]
        self.op_held = cells["op_held"]
        self.op_over = cells["op_over"]
        self.move_begun = cells["move_begun"]
        self.move_over = cells["move_over"]
        self.move_shared = cells["move_shared"]
        self.due = cells["due"]
        self.recent = cells["recent"]
        self.issues = cells["issues"]
        self.blocked = cells["blocked"]
        self.latest = cells["latest"]
        self.detailed = cells["detailed"]
        self.recording = 1
        self.at = self.streams + 1
        self.decided = 0
        self.due_count = 0
        self.recent_count = 0
        self.issue_count = 0
        self.dirty = 0
        self.unsettled = 0
        self.status = RUNNING
        self.wanted = 0
        self.culprit = -1
        self.instants = 0
        self.limit = NEVER

    def two(self, high: int, low: int) -> int:
        """A number of two limbs."""
        return (high << 62) + low
