"""The event loop: docs/contract.md over the arrays of a program table (:mod:`hosim.engine.program_table`), one device, nothing looked up.

With a compiler this file becomes the extension ``compiled_loop``, with the types that ``compiled_loop.pxd`` gives; without one it runs as
it is, with the same results. It imports nothing. Arrays are indexed by op, tensor, stream, tier, channel, slot (an engine of a channel),
move (a cache op), use (an op and a tensor that it uses), flow class and combination of flows; what is by two of them is row after row.
Products of rates and times take up to 126 bits: these are computed in 128, and kept as two limbs of 62.
"""

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

RUNNING, ENDED, LATE, STOPPED, STUCK, RATES, SPEED, ILLEGAL, ASYMMETRIC = 0, 1, 2, 3, 4, 5, 6, 7, 8
"""What a run came to: all has ended; it takes longer than the limit; it has done the ops asked for; nothing can proceed; the rates of
``wanted``, or the speed there, are not in the table yet; a detach of ``culprit`` is illegal; there is room for some of several devices only."""


class Loop:
    """One device over the arrays of ``cells``: what no plan changes, what the plan says, and the state, which :meth:`run` advances."""

    def __init__(self, cells):
        self.take_graph(cells)
        self.take_machine(cells)
        self.take_plan(cells)
        self.take_state(cells)
        self.take_links(cells)
        self.take_figures(cells)

    def take_graph(self, cells):
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

    def take_machine(self, cells):
        """The arrays that depend on the machine, and on how copies and ops share it."""
        self.tiers = cells["tiers"]
        self.device = cells["device"]
        self.channels = cells["channels"]
        self.slots = cells["slots"]
        self.classes = cells["classes"]
        self.paces = cells["paces"]
        self.capacity = cells["capacity"]
        self.part = cells["part"]
        self.slot_from = cells["slot_from"]
        self.latency = cells["latency"]
        self.pin = cells["pin"]
        self.pooled = cells["pooled"]
        self.pace_of = cells["pace_of"]
        self.launch = cells["launch"]
        self.whole_high = cells["whole_high"]
        self.whole_low = cells["whole_low"]
        self.joined = cells["joined"]
        self.rate_of = cells["rate_of"]
        self.speed_high = cells["speed_high"]
        self.speed_low = cells["speed_low"]

    def take_plan(self, cells):
        """The arrays that a plan fills."""
        self.copies = cells["copies"]
        self.move_tensor = cells["move_tensor"]
        self.move_source = cells["move_source"]
        self.move_target = cells["move_target"]
        self.move_channel = cells["move_channel"]
        self.move_class = cells["move_class"]
        self.move_order = cells["move_order"]
        self.move_high = cells["move_high"]
        self.move_low = cells["move_low"]
        self.move_alone = cells["move_alone"]
        self.issue_head = cells["issue_head"]
        self.issue_next = cells["issue_next"]
        self.need_from = cells["need_from"]
        self.need_to = cells["need_to"]

    def take_state(self, cells):
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
        self.blamed = cells["blamed"]
        self.paced = cells["paced"]
        self.flowing = cells["flowing"]
        self.held = cells["held"]
        self.pinned = cells["pinned"]
        self.most_pinned = cells["most_pinned"]
        self.op_end = cells["op_end"]
        self.began = cells["began"]
        self.free_since = cells["free_since"]
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

    def take_links(self, cells):
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

    def take_figures(self, cells):
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
        self.due = cells["due"]
        self.recent = cells["recent"]
        self.issues = cells["issues"]
        self.blocked = cells["blocked"]
        self.detailed = cells["detailed"]
        self.recording = 1
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

    # -- instants (rule 0) -------------------------------------------------------------------------------------

    def begin(self):
        """Time 0: whatever is issued before any op is."""
        self.due_count = 0
        self.recent_count = 0
        self.issue_count = 0
        self.status = RUNNING
        self.collect(0)
        self.unsettled = 1
        self.dirty = 0

    def go_on(self):
        """A snapshot has been put back, which lies between two instants."""
        self.due_count = 0
        self.recent_count = 0
        self.issue_count = 0
        self.status = RUNNING
        self.unsettled = 0
        self.dirty = 0

    def run(self, limit, stop):
        """Go on until all has ended, or no event is left, or ``stop`` ops have ended, or time has passed ``limit``; says which."""
        self.limit = limit
        while True:
            if self.unsettled:
                self.settle()
            if self.status == ILLEGAL or self.status == ASYMMETRIC or self.status == LATE:
                return self.status
            if self.dirty:
                self.status = self.set_rates()
                if self.status != RUNNING:
                    return self.status
            at = self.next_instant()
            if at > self.scalars[0]:
                if at == NEVER:
                    return self.outcome()
                if self.scalars[1] >= stop:
                    return STOPPED
                if at > limit:
                    return LATE
                self.scalars[0] = at
                self.recent_count = 0
            self.instants += 1
            self.end_transfers(at)
            self.end_ops(at)

    def next_instant(self):
        """When the next op or phase of a transfer ends."""
        at = NEVER
        for s in range(self.streams):
            if self.op_end[s] < at:
                at = self.op_end[s]
        for z in range(self.slots):
            if self.until[z] < at:
                at = self.until[z]
        return at

    def outcome(self):
        """Nothing is under way: whether all has ended."""
        if self.scalars[1] < self.ops:
            return STUCK
        for c in range(self.channels):
            if self.queue_head[c] >= 0:
                return STUCK
        return ENDED

    def settle(self):
        """All has ended that ends now: detaches that were behind it, issues, ops, transfers."""
        self.unsettled = 0
        if self.due_count:
            self.detach_due()
        if self.issue_count:
            self.issue_all()
        for s in range(self.streams):
            if self.running[s] < 0 and self.done[s] < self.queue_from[s + 1] - self.queue_from[s]:
                self.try_op(s)
        self.start_transfers()

    # -- ends ----------------------------------------------------------------------------------------------------

    def end_ops(self, now):
        """Ops end: what they held for themselves, what nobody uses any more, what they issue."""
        for s in range(self.streams):
            if self.op_end[s] != now or self.running[s] < 0:
                continue
            i = self.running[s]
            self.running[s] = -1
            self.op_end[s] = NEVER
            self.free_since[s] = now
            self.dependency_met[s] = -1
            self.residency_met[s] = -1
            self.blamed[s] = -1
            self.done[s] += 1
            self.scalars[1] += 1
            self.slowed[s] += now - self.began[s] - self.duration[i]
            self.held[self.device] -= self.workspace[i]
            if self.detailed:
                self.by_kind[self.device * self.kinds + self.kinds - 1] -= self.workspace[i]
            for u in range(self.use_from[i], self.use_from[i + 1]):
                t = self.use_tensor[u]
                if self.use_flags[u] & WRITES:
                    self.here[self.device * self.tensors + t] = VALID
                self.users_left[t] -= 1
                if self.users_left[t] == 0 and not self.survives[t]:
                    self.die(t)
            self.collect(i + 1)
            self.unsettled = 1

    def end_transfers(self, now):
        """Latencies and transfers end."""
        for z in range(self.slots):
            if self.until[z] != now:
                continue
            k = self.slot_move[z]
            self.dirty = 1
            if self.slot_phase[z] == LATENT:
                self.slot_phase[z] = FLOWING
                self.flow(z, k, now)
                continue
            self.slot_phase[z] = FREE
            self.until[z] = NEVER
            self.flowing[self.move_class[k]] -= 1
            self.end_transfer(z, k, now)

    def flow(self, z, k, now):
        """The bytes of a transfer begin to flow, at a rate that is not set yet."""
        self.flowing[self.move_class[k]] += 1
        self.left_high[z] = self.move_high[k]
        self.left_low[z] = self.move_low[k]
        self.rate[z] = 0
        self.flow_since[z] = now
        self.until[z] = NEVER
        self.dirty = 1

    def end_transfer(self, z, k, now):
        """The copy is valid, and the tensor's next cache ops may take effect."""
        t = self.move_tensor[k]
        c = self.move_channel[k]
        self.unsettled = 1
        self.scalars[3] = now
        self.scalars[4] = t
        self.busy[c] -= 1
        if self.detailed:
            if self.busy[c] == 0:
                self.channel_figures[7 * c + 2] += now - self.channel_figures[7 * c + 5]
            self.channel_figures[7 * c + 4] += now - self.flows_from[z] - self.move_alone[k]
        self.here[self.move_target[k] * self.tensors + t] = VALID
        self.ended[k] = 1
        self.moving[t] = 0
        self.recent[self.recent_count] = k
        self.recent_count += 1
        self.pending_head[t] = self.pending_next[k]
        if self.pending_head[t] >= 0:
            self.due[self.due_count] = t
            self.due_count += 1
        elif self.released[t]:
            self.die(t)
        if self.started[z] < now:
            self.interrupted(t)

    def interrupted(self, t):
        """While a transfer read a tensor, an op that writes it was not free to start, even if it had been before."""
        for s in range(self.streams):
            if self.running[s] < 0 and self.residency_met[s] >= 0:
                i = self.queue[self.queue_from[s] + self.done[s]]
                for u in range(self.use_from[i], self.use_from[i + 1]):
                    if self.use_tensor[u] == t and self.use_flags[u] & WRITES:
                        self.residency_met[s] = -1

    def die(self, t):
        """The last user of a tensor has ended: it is released on all tiers, once its issued cache ops have taken effect."""
        self.released[t] = 1
        if self.pending_head[t] < 0:
            for r in range(self.tiers):
                if self.here[r * self.tensors + t] != ABSENT:
                    self.give_back(r, t)

    def give_back(self, r, t):
        """The bytes of a tensor in a tier are free again."""
        self.here[r * self.tensors + t] = ABSENT
        self.held[r] -= self.size[t]
        if self.detailed:
            self.by_kind[r * self.kinds + self.kind[t]] -= self.size[t]
        if r != self.device and self.pin[r * self.kinds + self.kind[t]]:
            self.pinned[r] -= self.size[t]

    def hold(self, r, t):
        """A tensor takes its bytes in a tier."""
        self.here[r * self.tensors + t] = PENDING
        self.held[r] += self.size[t]
        if self.detailed:
            self.by_kind[r * self.kinds + self.kind[t]] += self.size[t]

    def mark_peak(self, r):
        """Rule 9: what a tier holds now, if that is more than ever."""
        if self.held[r] > self.peak[r]:
            self.peak[r] = self.held[r]
            self.peak_at[r] = self.scalars[0]
            if self.detailed:
                for kind in range(self.kinds):
                    self.peak_by_kind[r * self.kinds + kind] = self.by_kind[r * self.kinds + kind]

    # -- cache ops (rules 3 and 5) -----------------------------------------------------------------------------

    def collect(self, at):
        """What the end of an op issues, in the plan's order among what else is issued at this instant."""
        k = self.issue_head[at]
        while k >= 0:
            j = self.issue_count
            while j > 0 and self.move_order[self.issues[j - 1]] > self.move_order[k]:
                self.issues[j] = self.issues[j - 1]
                j -= 1
            self.issues[j] = k
            self.issue_count += 1
            k = self.issue_next[k]

    def issue_all(self):
        """Issue cache ops. One of a tensor that has been released does nothing."""
        for j in range(self.issue_count):
            k = self.issues[j]
            t = self.move_tensor[k]
            if self.released[t]:
                continue
            c = self.move_channel[k]
            if c < 0 and self.pending_head[t] < 0:
                self.detach(t, self.move_source[k])
                continue
            if c >= 0:
                self.sequence[k] = self.scalars[2]
                self.scalars[2] += 1
                self.issued_at[k] = self.scalars[0]
                self.append_queue(c, k)
            self.append_pending(t, k)
        self.issue_count = 0

    def append_queue(self, c, k):
        """A transfer waits on its channel."""
        self.queue_next[k] = -1
        if self.queue_head[c] < 0:
            self.queue_head[c] = k
        else:
            self.queue_next[self.queue_tail[c]] = k
        self.queue_tail[c] = k

    def append_pending(self, t, k):
        """A cache op of a tensor is issued behind its others."""
        self.pending_next[k] = -1
        if self.pending_head[t] < 0:
            self.pending_head[t] = k
        else:
            self.pending_next[self.pending_tail[t]] = k
        self.pending_tail[t] = k

    def detach_due(self):
        """Detaches take effect that stood behind transfers which have ended; a copy that has become stale since is no longer there."""
        for j in range(self.due_count):
            t = self.due[j]
            k = self.pending_head[t]
            while k >= 0 and self.move_channel[k] < 0:
                if self.here[self.move_source[k] * self.tensors + t] != ABSENT:
                    self.detach(t, self.move_source[k])
                k = self.pending_next[k]
            self.pending_head[t] = k
            if k < 0 and self.released[t]:
                self.die(t)
        self.due_count = 0

    def detach(self, t, r):
        """Release a copy, if that is legal."""
        if self.here[r * self.tensors + t] == ABSENT or not self.may_go(t, r):
            self.status = ILLEGAL
            self.culprit = t
        else:
            self.give_back(r, t)

    def may_go(self, t, r):
        """Rule 5: whether the copy of a tensor in a tier, which is there, may be dropped."""
        user = self.next_user(t)
        if r == self.device and self.in_use(t):
            return False
        elsewhere = 0
        for other in range(self.tiers):
            if other != r and self.here[other * self.tensors + t] == VALID:
                elsewhere = 1
        reads = self.use_flags[user] & READS if user >= 0 else self.survives[t]
        if not elsewhere and reads:
            return False
        if user < 0 or r != self.device or not reads:
            return True
        for k in range(self.need_from[user], self.need_to[user]):
            if self.copies[k] and not self.ended[k] and self.move_target[k] == self.device:
                return True
        return False

    def in_use(self, t):
        """Whether an op runs that uses a tensor."""
        for s in range(self.streams):
            if self.running[s] >= 0:
                for u in range(self.use_from[self.running[s]], self.use_from[self.running[s] + 1]):
                    if self.use_tensor[u] == t:
                        return True
        return False

    def next_user(self, t):
        """The use of a tensor by the first op listed that has not ended; -1 if there is none."""
        first = self.user_from[t]
        count = self.user_from[t + 1] - first
        v = self.users_ended[t]
        while v < count:
            u = self.user[first + v]
            i = self.use_op[u]
            if self.place[i] >= self.done[self.stream_of[i]]:
                self.users_ended[t] = v
                return u
            v += 1
        self.users_ended[t] = v
        return -1

    # -- ops (rules 1 and 8) -----------------------------------------------------------------------------------

    def try_op(self, s):
        """Start the next op of a stream, if it can."""
        now = self.scalars[0]
        i = self.queue[self.queue_from[s] + self.done[s]]
        if self.dependency_met[s] < 0:
            for j in range(self.wait_from[i], self.wait_from[i + 1]):
                if self.done[self.wait_stream[j]] < self.wait_count[j]:
                    return
            self.dependency_met[s] = now
        if not self.resident(i):
            self.residency_met[s] = -1
            return
        if self.residency_met[s] < 0:
            self.residency_met[s] = now
            if now > self.dependency_met[s] and now > self.free_since[s]:
                self.blamed[s] = self.blame(i)
        wanted = self.workspace[i]
        for u in range(self.use_from[i], self.use_from[i + 1]):
            if self.use_flags[u] & OUTPUT and self.here[self.device * self.tensors + self.use_tensor[u]] == ABSENT:
                wanted += self.size[self.use_tensor[u]]
        if self.held[self.device] + wanted <= self.capacity[self.device]:
            self.start_op(s, i, now)
            if now + self.rest[i] > self.limit:
                self.status = LATE

    def resident(self, i):
        """Rule 1: what an op reads is there and valid, and the transfers of what it writes that are before it have ended."""
        for u in range(self.use_from[i], self.use_from[i + 1]):
            t = self.use_tensor[u]
            if self.use_flags[u] & READS and self.here[self.device * self.tensors + t] != VALID:
                return False
            if self.use_flags[u] & WRITES and self.moving[t]:
                return False
            for k in range(self.need_from[u], self.need_to[u]):
                if self.copies[k] and not self.ended[k]:
                    return False
        return True

    def blame(self, i):
        """Rule 8: the transfer that an op waited for and that ended last; all those of this instant did, and the last issued counts."""
        found = -1
        for j in range(self.recent_count):
            k = self.recent[j]
            for u in range(self.use_from[i], self.use_from[i + 1]):
                if self.use_tensor[u] != self.move_tensor[k]:
                    continue
                if self.use_flags[u] & WRITES or self.move_target[k] == self.device:
                    if found < 0 or self.sequence[k] > self.sequence[found]:
                        found = k
        return found

    def start_op(self, s, i, now):
        """An op takes its room, makes other copies of what it writes stale, and runs."""
        device = self.device
        self.held[device] += self.workspace[i]
        if self.detailed:
            self.by_kind[device * self.kinds + self.kinds - 1] += self.workspace[i]
        for u in range(self.use_from[i], self.use_from[i + 1]):
            if not self.use_flags[u] & WRITES:
                continue
            t = self.use_tensor[u]
            if self.use_flags[u] & OUTPUT and self.here[device * self.tensors + t] == ABSENT:
                self.hold(device, t)
            self.here[device * self.tensors + t] = PENDING
            for r in range(self.tiers):
                if r != device and self.here[r * self.tensors + t] != ABSENT:
                    self.give_back(r, t)
        self.mark_peak(device)
        self.divide(s, i, now)
        self.running[s] = i
        self.began[s] = now
        pace = self.pace_of[i]
        if pace < 0:
            self.op_end[s] = now + self.duration[i]
            return
        self.paced[s] = -1
        self.dirty = 1
        self.work_since[s] = now + self.launch[pace]
        self.put_work(s, (self.duration[i] - self.launch[pace]) * self.two(self.whole_high[pace], self.whole_low[pace]))

    def two(self, high, low):
        """A number of two limbs."""
        return (high << 62) + low

    def put_work(self, s, work):
        """Keep what is left of the op that a stream runs."""
        self.work_high[s] = work >> 62
        self.work_low[s] = work & LOW

    def divide(self, s, i, now):
        """Rule 8: divide the idle time before an op, which starts now."""
        begin = self.free_since[s]
        dependency = max(self.dependency_met[s], begin)
        residency = max(self.residency_met[s], dependency)
        self.stalls[3 * s] += dependency - begin
        self.stalls[3 * s + 1] += residency - dependency
        self.stalls[3 * s + 2] += now - residency
        if s == self.main and self.blamed[s] >= 0:
            self.channel_figures[7 * self.move_channel[self.blamed[s]]] += residency - dependency
        if self.recording:
            self.op_idle[i] = now - begin
            self.op_held[i] = self.held[self.device]
            if now > residency:
                self.op_cause[i] = -1
            elif residency > dependency and self.blamed[s] >= 0:
                self.op_cause[i] = self.move_tensor[self.blamed[s]]
            else:
                self.op_cause[i] = -2

    # -- transfers (rules 3, 4 and 6) --------------------------------------------------------------------------

    def start_transfers(self):
        """In order of issue; one that cannot start holds back those behind it on its channel."""
        for c in range(self.channels):
            self.blocked[c] = self.queue_head[c] < 0 or self.busy[c] == self.slot_from[c + 1] - self.slot_from[c]
        while True:
            first = -1
            for c in range(self.channels):
                if not self.blocked[c]:
                    if first < 0 or self.sequence[self.queue_head[c]] < self.sequence[self.queue_head[first]]:
                        first = c
            if first < 0:
                return
            c = first
            if not self.start_transfer(c, self.queue_head[c]) or self.queue_head[c] < 0:
                self.blocked[c] = 1
            elif self.busy[c] == self.slot_from[c + 1] - self.slot_from[c]:
                self.blocked[c] = 1

    def start_transfer(self, c, k):
        """Start the transfer at the head of a channel's queue: its turn among its tensor's cache ops, its source valid, room for it."""
        t = self.move_tensor[k]
        now = self.scalars[0]
        if self.pending_head[t] != k or self.here[self.move_source[k] * self.tensors + t] != VALID:
            return False
        begins = now + self.latency[c]
        r = self.move_target[k]
        if self.here[r * self.tensors + t] == ABSENT:
            if self.held[r] + self.size[t] > self.capacity[r]:
                return False
            if self.held[r] + self.size[t] > self.part[r]:
                self.status = ASYMMETRIC
                return False
            self.hold(r, t)
            self.mark_peak(r)
            begins += self.pinning(r, t)
        self.moving[t] = 1
        self.queue_head[c] = self.queue_next[k]
        z = self.slot_from[c]
        while self.slot_phase[z] != FREE:
            z += 1
        if self.detailed:
            if self.busy[c] == 0:
                self.channel_figures[7 * c + 5] = now
            self.channel_figures[7 * c + 1] += 1
            self.channel_figures[7 * c + 6] += self.size[t]
            self.channel_figures[7 * c + 3] += now - self.issued_at[k]
        self.busy[c] += 1
        self.slot_move[z] = k
        self.started[z] = now
        self.flows_from[z] = begins
        if begins > now:
            self.slot_phase[z] = LATENT
            self.until[z] = begins
        else:
            self.slot_phase[z] = FLOWING
            self.flow(z, k, now)
        return True

    def pinning(self, r, t):
        """Rule 14: nanoseconds to pin the bytes of a tensor that comes into a tier."""
        ns = self.pin[r * self.kinds + self.kind[t]]
        if r == self.device or ns == 0 or self.size[t] == 0:
            return 0
        self.pinned[r] += self.size[t]
        if self.pooled[r] and self.pinned[r] <= self.most_pinned[r]:
            return 0
        if self.pinned[r] > self.most_pinned[r]:
            self.most_pinned[r] = self.pinned[r]
        return ns

    def set_rates(self):
        """Rules 6 and 13: the rates of all that flows, and the ends of ops that copies slow down. Can be asked again where a rate is wanted."""
        combination = 0
        for f in range(self.classes):
            for _ in range(self.flowing[f]):
                after = self.joined[combination * self.classes + f]
                if after < 0:
                    self.wanted = combination * self.classes + f
                    return RATES
                combination = after
        now = self.scalars[0]
        for z in range(self.slots):
            if self.slot_phase[z] == FLOWING:
                rate = self.rate_of[combination * self.classes + self.move_class[self.slot_move[z]]]
                if rate != self.rate[z]:
                    self.set_rate(z, rate, now)
        for s in range(self.streams):
            i = self.running[s]
            if i >= 0 and self.pace_of[i] >= 0 and self.paced[s] != combination:
                if self.speed_high[combination * self.paces + self.pace_of[i]] < 0:
                    self.wanted = combination * self.paces + self.pace_of[i]
                    return SPEED
                self.set_speed(s, self.pace_of[i], combination, now)
        self.dirty = 0
        return RUNNING

    def set_rate(self, z, rate, now):
        """A transfer flows at another rate from now on."""
        left = self.two(self.left_high[z], self.left_low[z])
        passed = now - self.flow_since[z]
        left -= passed * self.rate[z]
        self.left_high[z] = left >> 62
        self.left_low[z] = left & LOW
        self.rate[z] = rate
        self.flow_since[z] = now
        self.until[z] = now + (left + rate - 1) // rate if left > 0 else now

    def set_speed(self, s, pace, combination, now):
        """The op of a stream goes on at another speed: note what it has done, and when it ends."""
        before = self.paced[s]
        work = self.two(self.work_high[s], self.work_low[s])
        speed = work
        if before >= 0 and now > self.work_since[s]:
            speed = self.two(self.speed_high[before * self.paces + pace], self.speed_low[before * self.paces + pace])
            work -= (now - self.work_since[s]) * speed
            self.put_work(s, work)
            self.work_since[s] = now
        self.paced[s] = combination
        speed = self.two(self.speed_high[combination * self.paces + pace], self.speed_low[combination * self.paces + pace])
        if work <= 0:
            self.op_end[s] = now
        elif speed == 0:
            self.op_end[s] = NEVER
        else:
            self.op_end[s] = self.work_since[s] + (work + speed - 1) // speed

    # -- snapshots ---------------------------------------------------------------------------------------------

    def note(self):
        """List what is issued and not over, between two instants: transfers in order of issue, then the cache ops of each of their tensors,
        a count before each list. How many numbers these are."""
        count = 0
        for z in range(self.slots):
            if self.slot_phase[z] != FREE:
                count = self.note_transfer(count, self.slot_move[z])
        for c in range(self.channels):
            k = self.queue_head[c]
            while k >= 0:
                count = self.note_transfer(count, k)
                k = self.queue_next[k]
        self.links[0] = count
        end = count + 1
        for j in range(1, count + 1):
            k = self.pending_head[self.move_tensor[self.links[j]]]
            first = k
            while self.move_channel[first] < 0:
                first = self.pending_next[first]
            if first == self.links[j]:
                begin = end
                end += 1
                while k >= 0:
                    self.links[end] = k
                    end += 1
                    k = self.pending_next[k]
                self.links[begin] = end - begin - 1
        self.links[end] = 0
        return end + 1

    def mark(self):
        """Write down, between two instants, what the rest of the run depends on beside which copies are where, with times from now on.

        How many numbers these are; -1 where a tensor of ``changed`` moves.
        """
        noted = self.note()
        for j in range(1, self.links[0] + 1):
            if self.changed[self.move_tensor[self.links[j]]]:
                return -1
        m = 0
        for r in range(self.tiers):
            m = self.write(m, self.held[r])
            m = self.write(m, self.pinned[r])
            m = self.write(m, self.most_pinned[r])
        for s in range(self.streams):
            m = self.mark_op(m, s)
        for z in range(self.slots):
            m = self.mark_transfer(m, z)
        for j in range(noted):
            m = self.write(m, self.links[j])
        return m

    def write(self, m, number):
        """Write one number down."""
        self.marks[m] = number
        return m + 1

    def mark_op(self, m, s):
        """The op that a stream runs: when it ends, and what is left of one that copies slow down."""
        i = self.running[s]
        m = self.write(m, i)
        if i < 0:
            return m
        now = self.scalars[0]
        m = self.write(m, self.op_end[s] - now)
        pace = self.pace_of[i]
        if pace < 0:
            return m
        work = self.two(self.work_high[s], self.work_low[s])
        speed = self.two(self.speed_high[self.paced[s] * self.paces + pace], self.speed_low[self.paced[s] * self.paces + pace])
        if now > self.work_since[s]:
            work -= (now - self.work_since[s]) * speed
        m = self.write(m, max(0, self.work_since[s] - now))
        m = self.write(m, self.paced[s])
        m = self.write(m, work >> 62)
        return self.write(m, work & LOW)

    def mark_transfer(self, m, z):
        """The transfer of a slot: when its phase ends, and what is left of it."""
        m = self.write(m, self.slot_phase[z])
        if self.slot_phase[z] == FREE:
            return m
        now = self.scalars[0]
        m = self.write(m, self.slot_move[z])
        m = self.write(m, self.until[z] - now)
        if self.slot_phase[z] == LATENT:
            return m
        left = self.two(self.left_high[z], self.left_low[z])
        passed = now - self.flow_since[z]
        left -= passed * self.rate[z]
        m = self.write(m, left >> 62)
        return self.write(m, left & LOW)

    def note_transfer(self, count, k):
        """Put a transfer in its place among those listed."""
        j = count
        while j > 0 and self.sequence[self.links[j]] > self.sequence[k]:
            self.links[j + 1] = self.links[j]
            j -= 1
        self.links[j + 1] = k
        return count + 1

    def forget(self):
        """Nothing is issued any more: another state is to be put back."""
        for z in range(self.slots):
            if self.slot_phase[z] != FREE:
                self.pending_head[self.move_tensor[self.slot_move[z]]] = -1
        for c in range(self.channels):
            while self.queue_head[c] >= 0:
                self.pending_head[self.move_tensor[self.queue_head[c]]] = -1
                self.queue_head[c] = self.queue_next[self.queue_head[c]]

    def recall(self):
        """Issue what :meth:`note` has listed, after :meth:`forget`, where the state is that of then."""
        count = self.links[0]
        end = count + 1
        while self.links[end] > 0:
            for j in range(end + 1, end + self.links[end] + 1):
                self.append_pending(self.move_tensor[self.links[j]], self.links[j])
            end += self.links[end] + 1
        for j in range(1, count + 1):
            k = self.links[j]
            self.sequence[k] = self.scalars[2] - count + j - 1
            if not self.moving[self.move_tensor[k]] or self.pending_head[self.move_tensor[k]] != k:
                self.append_queue(self.move_channel[k], k)

    # -- changes of a plan -------------------------------------------------------------------------------------

    def link(self, k, at):
        """Let a place issue a move, in order."""
        order = self.move_order[k]
        before = -1
        after = self.issue_head[at]
        while after >= 0 and self.move_order[after] < order:
            before = after
            after = self.issue_next[after]
        self.issue_next[k] = after
        if before < 0:
            self.issue_head[at] = k
        else:
            self.issue_next[before] = k

    def unlink(self, k, at):
        """Let a place no longer issue a move."""
        before = self.issue_head[at]
        if before == k:
            self.issue_head[at] = self.issue_next[k]
            return
        while self.issue_next[before] != k:
            before = self.issue_next[before]
        self.issue_next[before] = self.issue_next[k]
