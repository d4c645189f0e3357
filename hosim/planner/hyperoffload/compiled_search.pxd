# The types with which the kernels of the planner's search are compiled; hatch_build.py adds the arrays that their classes declare.
# cython: language_level=3
cimport cython
from hosim.engine.compiled_loop cimport ENDED, LATE, MOVES, NEVER, ROW, SAME, STOPPED, STUCK, Loop

cdef extern from *:
    ctypedef long long wide "__int128"

cdef int UNSET, AWAY, RETURN, STORE, LEAVE, TURN, STORE_TURN, TIER, FIELDS, START, BELOW_IN, SAVE, SAVE_TURN, WHOLE, STAYS
cdef int AT_HOME, WITH_COPY, STARTS_BELOW, IS_STORE, IS_DETACH, IS_PREFETCH, NO_OP, OF_A_JUDGEMENT, OF_A_CHANGE, PUT_BACK, SEED
cdef int OF_RETURN, OF_STORE, OF_SAVE, DROPPED, AWAY_AGAIN, BELOW_AT_FIRST, HOME_AT_FIRST, COPY_AT_BOTH, HOME_AT_BOTH, STARTED
cdef int CLEARED, MOVED, SHIFT, SHIFT_ALL, SAVED, TAKE, GIVE, EXCHANGE, OTHER_TIER, DECISION, KINDS, ALONE, SOME, ALL, SCOPES
cdef int REMEMBERED, DAMPING, ORDER, WHOLE_RUN, DRAWS, STALE, REFUSED, LEADING, HAS_LOOKED, DIFFERING, BEST_LEFT, BEST_NS, BEST_BYTES
cdef int FLOOR_NS, LOST, STUCK_AFTER, AWAY_BY, WORSE, OF_A_DRAW
cdef int BEGIN, NO_RETURN, PRESENT, NONE, TRIED, OF_TIER, BEST, LOOKED, SHARE, PARTS, STALL_WEIGHT, FAR
cdef int READS, WRITES


cdef int above(long long[::1] cells, int low, int high, long long at) noexcept


cdef class LoweredChoices:
    cdef readonly int moves, copied, initial
    cdef int first, followed, here, below, returns, wrote, last, awaits, saved, served
    cdef int of_slot(self, int field, int s) noexcept
    cdef int of_tensor(self, int field, int t) noexcept
    cpdef void list_all(self) noexcept
    cdef void list_moves(self, int t) noexcept
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
    cdef bint ended_by(self, int earlier, int op) noexcept
    cdef int first_after(self, int wanted) noexcept
    cdef int first_known(self, int q, int op, int wanted, int low) noexcept
    cdef int last_before(self, int op, int wanted) noexcept


cdef class GapJudging:
    cdef readonly long long horizon, waiting
    cdef readonly int judged, compared

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


cdef class RerunWalk:
    cdef readonly int places, reruns, drops
    cdef readonly long long kept
    cdef int stamp

    cdef void find_until(self) noexcept
    cpdef void walk(self, int drops) noexcept
    cdef void make(self, int t, int at) noexcept
    cdef int maker(self, int t, int at) noexcept
    cdef void run_again(self, int f, int at) noexcept
    cdef void run(self, int i) noexcept
    cdef void touch(self, int t, int place) noexcept
    cdef void end_copy(self, int t) noexcept
    cdef void hold(self, int t, int first, int last) noexcept
    cpdef int fill(self, int gap, int at, int most, int again) noexcept
    cdef bint dead(self, int t, int at) noexcept
    cdef int uses_before(self, int t, int at) noexcept
    cdef int last_maker(self, int t, int end, int at) noexcept


cdef class JudgedChoices(LoweredChoices):
    cdef readonly Loop loop
    cdef readonly object table
    cdef readonly int stride, changes, inserted, stalls
    cdef int logged
    cdef object start_state
    cdef list kept_states
    cdef public long long work
    cdef readonly long long cost_left, cost_ns, cost_bytes, found_left, found_ns, found_bytes
    cpdef tuple cost(self)
    cpdef tuple found(self)
    cpdef void touch(self, int t) noexcept
    cpdef void put(self, int t, int cell, int value) noexcept
    cpdef void put_slot(self, int field, int s, int value) noexcept
    cpdef void put_tensor(self, int field, int t, int value) noexcept
    cpdef void clear(self, int t) noexcept
    cdef void put_below(self, int t, int tier) noexcept
    cdef int absences(self, int t) noexcept
    cpdef void settle(self) noexcept
    cdef void end_changes(self) noexcept
    cpdef bint insert(self, int judged) except -1
    cpdef int lower(self, int t) noexcept
    cdef void put_rows_in(self, int t, int count, int judged)
    cpdef void take_back(self)
    @cython.locals(limit="long long", status=int)
    cpdef void judge(self, long long limit_ns)
    cpdef void accept(self)
    cpdef bint load(self) except -1
    cdef bint restore(self, int passed) except -1
    @cython.locals(stop="long long", status=int)
    cdef void keep(self, int passed)
    cdef bint asks(self, int status) except -1
    cdef void read_cost(self, int status, long long limit_ns) noexcept
    @cython.locals(last="long long")
    cdef long long last_op_ns(self) noexcept
    cdef void list_stalls(self, int status) noexcept
    cdef void list_stall(self, int op, long long ns, int cause) noexcept
    cpdef void drop(self, int t, int nearest, long long least_ns, long long most)
    cdef void take_if_free(self, int saved, long long least_ns)


cdef class DrawnChanges(JudgedChoices):
    cdef int options
    @cython.locals(x="long long")
    cdef long long bits(self) noexcept
    @cython.locals(x="long long")
    cpdef int below_of(self, int count) noexcept
    @cython.locals(x="long long")
    cdef long long below_sum(self, long long total) noexcept
    cdef int step_aside(self) noexcept
    cdef bint starts_in(self, int s) noexcept
    cdef int stored_at(self, int s) noexcept
    cdef int saved_at(self, int t) noexcept
    cdef void put_return(self, int s, int position) noexcept
    cdef void put_store(self, int s, int position) noexcept
    cpdef void decide(self, int s, int other) noexcept
    cdef void offer(self, int kind, int where, int value) noexcept
    cdef void offer_around(self, int cell, int at, int first, int last) noexcept
    cdef void list_elsewhere(self, int t, int s) noexcept
    cdef void list_turns(self, int t, int cell, int own, int at, bint returns) noexcept
    cdef void change_places(self, int one, int other) noexcept
    cdef void change_from(self, int one, int other) noexcept
    cdef void begin_choice(self, int t, int tier) noexcept
    cdef void put_away(self, int s, int back) noexcept
    cdef void list_decisions(self, int t, int s) noexcept
    cdef void list_returns(self, int kind, int s) noexcept
    cdef void list_starts(self, int t) noexcept
    cdef void take_decision(self, int t, int kind, int where, int back) noexcept


cdef class StallChanges(DrawnChanges):
    cdef readonly int waits, idle, arm, owns
    @cython.locals(total="long long")
    cpdef void look(self) noexcept
    cdef void count_issues(self, bint listed) noexcept
    cdef void issue(self, int at, int s, int kind, bint listed) noexcept
    @cython.locals(ns="long long")
    cdef int focus(self) noexcept
    cdef int chosen(self, int op, int blamed, int reach) noexcept
    cdef void same_slots(self, int s) noexcept
    cpdef void draw(self) noexcept
    cdef void change(self, int kind, int s, int op) noexcept
    @cython.locals(total="long long", share="long long")
    cdef int next_arm(self) noexcept
    cpdef void learn(self, long long gain, long long work) noexcept
    cdef int over(self, int op) noexcept
    cdef int around(self, int t, int op) noexcept
    cdef int distance(self) noexcept
    cdef void shift(self, int s, int by) noexcept
    cdef void shift_all(self, int op, int reach) noexcept
    cdef void shift_store(self, int s, int by, int at_end) noexcept
    cdef void drop_own(self) noexcept
    cdef void change_tier(self, int s) noexcept
    cdef int times(self) noexcept
    @cython.locals(ns="long long", horizon="long long")
    cdef void return_in_time(self, int s, int tier, int times) noexcept
    cdef void exchange(self, int s, int op) noexcept
    cpdef int fullest(self, int after, int before) noexcept
    cdef void give(self, int op, int instead) noexcept
    cdef void give_all(self, int s) noexcept
    @cython.locals(span="long long")
    cdef void let_go(self, int s, int tier, int ahead, bint clean) noexcept


cdef class ChoiceSearch(StallChanges):
    cdef long long usual_ns
    cdef bint improved
    cpdef void begin(self, long long seed, long long floor_ns, long long whole) noexcept
    cdef void note_best(self) noexcept
    cdef void copy_tensor(self, int t, bint back) noexcept
    cdef void copy_cell(self, int t, int k, bint back) noexcept
    cdef void go_back(self)
    cdef void take_over(self)
    cdef bint is_better(self) noexcept
    cpdef bint at_end(self) noexcept
    cpdef bint resume(self) except -1
    cpdef bint go_on(self, long long until) except -1
    @cython.locals(begun="long long", most="long long", gain="long long")
    cdef void try_one(self)
    cdef long long share_of(self, long long saved_ns) noexcept


cdef class ReturnsAhead:
    cdef long long budget

    cpdef void run(self) noexcept
