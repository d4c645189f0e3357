# The types with which the files of the loop are compiled; hatch_build.py adds the arrays that its classes declare. Those of variables follow
# from what they are set to; what takes 128 bits says so.
# cython: language_level=3
cimport cython

cdef extern from *:
    ctypedef long long wide "__int128"

cdef long long NEVER, LOW
cdef int NOWHERE
cdef int ABSENT, PENDING, VALID, READS, WRITES, OUTPUT, FREE, LATENT, FLOWING
cdef int RUNNING, ENDED, LATE, STOPPED, STUCK, ILLEGAL, ASYMMETRIC, RATES, SPEED, INSPECTS, DECIDES, ROOM
cdef int SAME, ROW, MOVES
cdef int DEPENDENCY, TRANSFER, CAPACITY, RUNTIME


cdef class LoopCells:
    cdef readonly int at, due_count, recent_count, crossed_count, issue_count, queued, dirty, unsettled, status, wanted, culprit
    cdef public int recording, decided, snapshots, met, further, first_changed, last_changed
    cdef readonly list kept_marks, kept_here
    cdef public long long instants
    cdef long long limit

    cdef wide two(self, wide high, wide low) noexcept


cdef class LoopTransfers(LoopCells):
    cdef void hold(self, int r, int t) noexcept
    cpdef void begin_with(self, int r, int t, int there) noexcept
    cdef void give_back(self, int r, int t) noexcept
    cdef void mark_peak(self, int r) noexcept
    cdef void die(self, int t) noexcept
    cdef void collect(self, int at) noexcept
    cdef void issue_all(self) noexcept
    cpdef void issue(self, int k) noexcept
    cdef void join_queues(self, int k) noexcept
    cdef void number(self, int k) noexcept
    cdef void append_queue(self, int k) noexcept
    cdef void append_pending(self, int t, int k) noexcept
    cdef void detach_due(self) noexcept
    cdef void detach(self, int t, int r) noexcept
    cdef bint may_go(self, int t, int r) noexcept
    cdef bint in_use(self, int r, int t) noexcept
    cdef int mark_memory(self, int m) noexcept
    cdef int note_number(self, int m, long long number) noexcept
    cdef int next_user(self, int t) noexcept
    cdef void start_transfers(self) noexcept
    cdef bint start_transfer(self, int q, int k) noexcept
    cdef bint may_start(self, int k, int t) noexcept
    @cython.locals(size="long long")
    cdef long long take_room(self, int k, int t) noexcept
    @cython.locals(size="long long")
    cdef long long bytes_of(self, int k) noexcept
    cdef void stage(self, int r, int t, long long change) noexcept
    cdef long long pinning(self, int r, int t) noexcept
    cdef void flow_move(self, int z, int k, long long now) noexcept
    cdef void flow(self, int z, int f, long long high, long long low, long long now) noexcept
    cdef long long next_end(self) noexcept
    cdef void end_transfers(self, long long now) noexcept
    cdef void end_transfer(self, int z, int k, long long now) noexcept
    cdef bint passes_on(self, int k, int t) noexcept
    cdef bint is_before(self, int k, int other) noexcept
    cdef void chunks_go_on(self) noexcept
    cdef bint is_behind(self, int k) noexcept
    @cython.locals(volume=wide, best="long long", ns="long long")
    cdef long long alone(self, int k) noexcept
    cdef void interrupted(self, int t) noexcept
    cdef int set_rates(self) noexcept
    @cython.locals(left=wide, passed=wide)
    cdef void set_rate(self, int z, long long rate, long long now) noexcept
    cdef void put_work(self, int s, wide work) noexcept
    @cython.locals(before=int, work=wide, speed=wide)
    cdef void set_speed(self, int s, int pace, int combination, long long now) noexcept
    @cython.locals(now="long long", left=wide, passed=wide)
    cdef int mark_transfer(self, int m, int z) noexcept


cdef class LoopOps(LoopTransfers):
    cdef void make_calls(self) noexcept
    cdef bint has_ended(self, int i) noexcept
    cdef bint may_call(self, int i) noexcept
    cdef bint copied(self, int place) noexcept
    cdef bint is_pending(self, int k) noexcept
    cdef void try_op(self, int s) noexcept
    cdef void ask(self, int status, int s) noexcept
    cdef void try_to_start(self, int s, int i, long long now) noexcept
    cdef long long wants(self, int i) noexcept
    cdef bint decided_on(self, int t) noexcept
    cdef int blame(self, int i) noexcept
    cdef void start_op(self, int s, int i, long long now) noexcept
    cdef void write(self, int there, int t) noexcept
    cdef void divide(self, int s, int i, long long now) noexcept
    cdef void end_ops(self, long long now) noexcept
    cpdef void begin(self) noexcept
    cpdef void go_on(self) noexcept
    cdef void settle(self) noexcept
    cdef void start(self) noexcept
    cdef bint idle(self) noexcept
    cpdef void again(self) noexcept
    cdef long long next_instant(self) noexcept
    @cython.locals(i=int, now="long long", pace=int, work=wide, speed=wide)
    cdef int mark_op(self, int m, int s) noexcept
    cdef int outcome(self) noexcept
    cpdef int run(self, long long limit, long long stop) noexcept
    cdef void end_inspections(self, long long now) noexcept


cdef class Loop(LoopOps):
    cpdef int note(self) noexcept
    cdef int note_transfer(self, int count, int k) noexcept
    cpdef void forget(self) noexcept
    cpdef void recall(self) noexcept
    cpdef int mark(self) noexcept
    cpdef void plan(self, int count) noexcept
    cdef void await_moves(self, int t) noexcept
    cpdef void exchange(self, int t, const long long[::1] rows, int judged)
    cdef bint is_row(self, int k, const long long[::1] rows, int j) noexcept
    cdef void put(self, int k, int t, const long long[::1] rows, int j) noexcept
    cdef void write_changes(self, int t, int window) noexcept
    cdef void wait_changes(self, int i) noexcept
    cpdef void end_changes(self, int i) noexcept
    cpdef void keep(self) noexcept
    cpdef int follow(self, long long limit) noexcept
    @cython.locals(marks="const long long[::1]", here="const unsigned char[::1]")
    cdef bint is_kept(self, int j) noexcept
    cpdef void link(self, int k, int at) noexcept
    cpdef void unlink(self, int k, int at) noexcept


cdef class LoopGraph:
    cdef readonly int uses, waits
    cpdef void derive(self) noexcept
    cdef void list_queues(self) noexcept
    cdef void use(self, int i, int t, int flags) noexcept
    cdef void list_users(self) noexcept
    cdef void list_waits(self, int i) noexcept
    cdef void need(self, int s, int count) noexcept
    cdef void pass_on(self, int p, int i) noexcept
