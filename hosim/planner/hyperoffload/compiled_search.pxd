# The types with which the kernels of the planner's search are compiled; hatch_build.py adds the arrays that their classes declare.
# cython: language_level=3
cimport cython

cdef extern from *:
    ctypedef long long wide "__int128"

cdef int UNSET, AWAY, RETURN, STORE, LEAVE, TURN, STORE_TURN, TIER, FIELDS, START, BELOW_IN, SAVE, SAVE_TURN, WHOLE
cdef int STAYS, AT_HOME, WITH_COPY, STARTS_BELOW, IS_STORE, IS_DETACH, IS_PREFETCH, NO_OP, PLACES, FIGURES
cdef int BEGIN, NO_RETURN, PRESENT, NONE, TRIED, OF_TIER, BEST, LOOKED, SHARE, PARTS, STALL_WEIGHT, FAR


cdef class ChoiceCells:
    cdef int of_slot(self, int field, int s) noexcept
    cdef int of_tensor(self, int field, int t) noexcept


cdef class LoweredChoices(ChoiceCells):
    cdef readonly int moves, copied, initial
    cdef int followed, here, below, returns, wrote, last, awaits, served

    cpdef int lower(self, int t) noexcept
    cdef int initial_of(self, int t) noexcept
    cdef void walk(self, int t) noexcept
    cdef int position(self, int field, int s, int otherwise) noexcept
    cdef int tier_in(self, int t, int s) noexcept
    cdef void leave(self, int t, int s, int store, int release, int tier) noexcept
    cdef int release(self, int t, int s, int store, int wanted, int tier, int needed) noexcept
    cdef void follow_users(self, int t, int s) noexcept
    cdef void write_back(self, int t, int tier, int store) noexcept
    cdef int lowest(self, int mask) noexcept
    @cython.locals(order="long long")
    cdef void add(self, int kind, int t, int s, int source, int target, int at) noexcept
    cdef int put_rows(self, int t) noexcept
    cdef bint ended_by(self, int earlier, int op) noexcept
    cdef int first_after(self, int wanted) noexcept
    cdef int first_known(self, int q, int op, int wanted, int low) noexcept
    cdef int last_before(self, int op, int wanted) noexcept


cdef class GapJudging:
    cdef readonly long long horizon, waiting
    cdef readonly int judged, compared

    cdef int right(self, long long[::1] cells, int low, int high, long long at) noexcept
    cdef long long over_until(self, long long at) noexcept
    cdef void weigh_ops(self) noexcept
    cdef long long part(self, wide time, wide share) noexcept
    @cython.locals(left=bint, right=bint)
    cpdef void reserve(self, int c, long long start, long long length) noexcept
    cpdef long long earliest(self, int c, int trip, long long release) noexcept
    cdef void reserve_from(self, int c, int trip, long long release) noexcept
    cpdef long long latest(self, int c, int trip, long long deadline, long long release) noexcept
    cdef int last_span(self, int t) noexcept
    cdef bint fits(self, int t, int start, int tier) noexcept
    cdef void place(self, int t, int start, int tier) noexcept
    cdef void rank(self, int t) noexcept
    cdef bint sooner(self, int t, int tier, int other) noexcept
    @cython.locals(ranked=bint, found=bint)
    cdef bint judge(self, int g, int i) noexcept
    cdef int below_from(self, int g, int way) noexcept
    cdef void copy(self, int way, int other) noexcept
    cdef long long most(self, int g, int i, int trip) noexcept
    @cython.locals(again=bint, final_at="long long", final_late="long long")
    cdef void leave(self, int g, int i, int tier, int trip) noexcept
    cdef long long late(self, long long at, int trip, long long deadline) noexcept
    cdef bint is_clean(self, int g, int start) noexcept
    cdef void attempt(self, int g, int i, int trip, int start, long long store_at, long long final_at, long long late) noexcept
    @cython.locals(again=bint, free_at="long long")
    cdef void come_back(self, int g, int i, int trip, int way) noexcept


cdef class GapSweep(GapJudging):
    cdef readonly long long budget, moved, short, stall
    cdef readonly int chosen_count, heaped, serial, best, looked_count

    @cython.locals(i=int, k=int, g=int, back=int)
    cpdef void run(self) noexcept
    @cython.locals(g=int, t=int, first=int, trip=int, channel=int, back=int, at="long long")
    cdef void fetch_what_starts_below(self) noexcept
    cdef void return_at(self, int i, int g) noexcept
    @cython.locals(early="long long", i=int, g=int, t=int, first=int, until=int, over=int)
    cdef void list_openings(self) noexcept
    cdef void open_at(self, int i, int g, int fill) noexcept
    cdef void push(self, int item, long long score) noexcept
    cdef int pop(self) noexcept
    @cython.locals(mine="long long", other="long long")
    cdef bint better(self, long long score, int item, int serial, int k) noexcept
    cdef void put(self, int k, long long score, int item, int serial) noexcept
    cdef bint find_best(self, int i) noexcept
    cdef void find_candidates(self, int i) noexcept
    cdef long long late_score(self, int g) noexcept
    cdef long long up_ns(self, int g) noexcept
    cdef bint is_open(self, int g, int i) noexcept
    cdef void delay(self, int g) noexcept
    @cython.locals(tier=int, start=int, leaves_again=bint)
    cdef int take_gap(self, int g, int i) noexcept
    cdef int return_of(self, int g, int i) noexcept
    cdef void reserve_times(self, int g, int tier, int trip) noexcept


cdef class ReturnsAhead:
    cdef long long budget

    cpdef void run(self) noexcept
