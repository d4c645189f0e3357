# The types with which the five files of the loop are compiled (hosim/engine/loop_cells.py). Views are of 32 or of 64 bits; products take 128.
# cython: language_level=3
cimport cython

cdef extern from *:
    ctypedef long long wide "__int128"

cdef long long NEVER, LOW
cdef int ABSENT, PENDING, VALID, READS, WRITES, OUTPUT, FREE, LATENT, FLOWING
cdef int RUNNING, ENDED, LATE, STOPPED, STUCK, ILLEGAL, ASYMMETRIC, RATES, SPEED, INSPECTS, DECIDES, ROOM
cdef int DEPENDENCY, TRANSFER, CAPACITY, RUNTIME


cdef class LoopCells:
    cdef readonly int ops, tensors, streams, main, kinds, tiers, device, channels, slots, engines, classes, paces, detailed
    cdef readonly int elsewhere, deciding, planned, at
    cdef readonly int due_count, recent_count, issue_count, dirty, unsettled, status, wanted, culprit
    cdef public int recording, decided
    cdef public long long instants
    cdef long long limit
    cdef unsigned char[::1] here, ended, released, moving, changed
    cdef int[::1] where, send_class, slot_class, next_volume, volume, move_from, move_after, move_arrives, latest, links, copies, queue_from, queue, stream_of, place, wait_from, wait_stream, wait_count, use_from, use_op
    cdef int[::1] use_tensor, use_flags, user_from, user, survives, kind, slot_from, pooled, pace_of, joined
    cdef int[::1] move_tensor, move_source, move_target, move_channel, move_class, issue_head, issue_next, need_from
    cdef int[::1] need_to, done, running, users_left, users_ended, pending_head, pending_tail
    cdef int[::1] pending_next, queue_head, queue_tail, queue_next, busy, slot_move, slot_phase, blamed
    cdef int[::1] paced, flowing, op_cause, due, recent, issues, blocked
    cdef long long[::1] marks, size, workspace, duration, rest, capacity, part, latency, pin, launch, whole_high, whole_low
    cdef long long[::1] rate_of, speed_high, speed_low, move_order, move_high, move_low, move_best, send_high, send_low, scalars, held, pinned
    cdef long long[::1] most_pinned, inspected_at, op_end, began, free_since, dependency_met, residency_met, work_since, work_high
    cdef long long[::1] work_low, until, started, flows_from, flow_since, left_high, left_low, rate, sequence, issued_at
    cdef long long[::1] peak, peak_at, by_kind, peak_by_kind, stalls, slowed, channel_figures, op_idle, op_held
    cdef long long[::1] op_over, move_begun, move_over, move_shared

    cdef wide two(self, wide high, wide low) noexcept


cdef class LoopMemory(LoopCells):
    cdef void hold(self, int r, int t) noexcept
    cdef void give_back(self, int r, int t) noexcept
    @cython.locals(kind=int)
    cdef void mark_peak(self, int r) noexcept
    @cython.locals(r=int)
    cdef void die(self, int t) noexcept
    @cython.locals(k=int, j=int)
    cdef void collect(self, int at) noexcept
    @cython.locals(k=int, j=int)
    cdef void issue_all(self) noexcept
    @cython.locals(t=int, c=int)
    cpdef void issue(self, int k) noexcept
    cdef void append_queue(self, int c, int k) noexcept
    cdef void append_pending(self, int t, int k) noexcept
    @cython.locals(k=int, j=int, t=int)
    cdef void detach_due(self) noexcept
    cdef void detach(self, int t, int r) noexcept
    @cython.locals(user=int, other=int, elsewhere=int, reads=int, k=int)
    cdef bint may_go(self, int t, int r) noexcept
    @cython.locals(s=int, u=int)
    cdef bint in_use(self, int r, int t) noexcept
    @cython.locals(first=int, count=int, v=int, u=int, i=int)
    cdef int next_user(self, int t) noexcept


cdef class LoopTransfers(LoopMemory):
    @cython.locals(c=int, first=int)
    cdef void start_transfers(self) noexcept
    @cython.locals(t=int, now="long long", begins="long long", r=int, z=int)
    cdef bint start_transfer(self, int c, int k) noexcept
    @cython.locals(ns="long long")
    cdef long long pinning(self, int r, int t) noexcept
    cdef void flow_move(self, int z, int k, long long now) noexcept
    cdef void flow(self, int z, int f, long long high, long long low, long long now) noexcept
    @cython.locals(z=int, k=int)
    cdef void end_transfers(self, long long now) noexcept
    @cython.locals(t=int, c=int)
    cdef void end_transfer(self, int z, int k, long long now) noexcept
    @cython.locals(volume=wide, ns="long long")
    cdef long long alone(self, int k) noexcept
    @cython.locals(s=int, i=int, u=int)
    cdef void interrupted(self, int t) noexcept
    @cython.locals(combination=int, f=int, _=int, after=int, now="long long", z=int, rate="long long", s=int, i=int)
    cdef int set_rates(self) noexcept
    @cython.locals(left=wide, passed=wide)
    cdef void set_rate(self, int z, long long rate, long long now) noexcept
    cdef void put_work(self, int s, wide work) noexcept
    @cython.locals(before=int, work=wide, speed=wide)
    cdef void set_speed(self, int s, int pace, int combination, long long now) noexcept


cdef class LoopOps(LoopTransfers):
    @cython.locals(now="long long", i=int, j=int)
    cdef void try_op(self, int s) noexcept
    cdef void ask(self, int status, int s) noexcept
    @cython.locals(r=int, u=int, wanted="long long")
    cdef void try_to_start(self, int s, int i, long long now) noexcept
    @cython.locals(u=int, t=int, k=int)
    cdef bint resident(self, int i) noexcept
    @cython.locals(k=int)
    cdef bint decided_on(self, int t) noexcept
    @cython.locals(found=int, j=int, k=int, u=int, waited_for=int)
    cdef int blame(self, int i) noexcept
    @cython.locals(there=int, u=int, pace=int)
    cdef void start_op(self, int s, int i, long long now) noexcept
    @cython.locals(r=int)
    cdef void write(self, int there, int t) noexcept
    @cython.locals(begin="long long", inspected="long long", dependency="long long", residency="long long")
    cdef void divide(self, int s, int i, long long now) noexcept
    @cython.locals(s=int, i=int, u=int, t=int, there=int)
    cdef void end_ops(self, long long now) noexcept
    cpdef void begin(self) noexcept
    cpdef void go_on(self) noexcept
    cdef void settle(self) noexcept
    cdef void start(self) noexcept
    @cython.locals(s=int, c=int, busy=int)
    cdef bint idle(self) noexcept
    cpdef void again(self) noexcept
    @cython.locals(at="long long", s=int, z=int)
    cdef long long next_instant(self) noexcept
    @cython.locals(c=int)
    cdef int outcome(self) noexcept
    @cython.locals(at="long long")
    cpdef int run(self, long long limit, long long stop) noexcept
    @cython.locals(s=int)
    cdef void end_inspections(self, long long now) noexcept


cdef class Loop(LoopOps):
    @cython.locals(count=int, z=int, c=int, k=int, end=int, begin=int, j=int, first=int)
    cpdef int note(self) noexcept
    @cython.locals(j=int)
    cdef int note_transfer(self, int count, int k) noexcept
    @cython.locals(z=int, c=int)
    cpdef void forget(self) noexcept
    @cython.locals(count=int, end=int, j=int, k=int)
    cpdef void recall(self) noexcept
    @cython.locals(noted=int, j=int, m=int, r=int, s=int, z=int)
    cpdef int mark(self) noexcept
    cdef int note_number(self, int m, long long number) noexcept
    @cython.locals(i=int, now="long long", pace=int, work=wide, speed=wide)
    cdef int mark_op(self, int m, int s) noexcept
    @cython.locals(now="long long", left=wide, passed=wide)
    cdef int mark_transfer(self, int m, int z) noexcept
    @cython.locals(k=int, j=int, t=int)
    cpdef void plan(self, int count) noexcept
    @cython.locals(r=int, passed=int, written=int, v=int, u=int, i=int)
    cdef void await_moves(self, int t) noexcept
    @cython.locals(order="long long", before=int, after=int)
    cpdef void link(self, int k, int at) noexcept
    @cython.locals(before=int)
    cpdef void unlink(self, int k, int at) noexcept
