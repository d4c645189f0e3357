# The types with which the kernels of the planner's search are compiled; hatch_build.py adds the arrays that their classes declare.
# cython: language_level=3
cimport cython

cdef int UNSET, AWAY, RETURN, STORE, LEAVE, TURN, STORE_TURN, TIER, FIELDS, START, BELOW_IN, SAVE, SAVE_TURN, WHOLE
cdef int STAYS, AT_HOME, WITH_COPY, STARTS_BELOW, IS_STORE, IS_DETACH, IS_PREFETCH, NO_OP, PLACES, FIGURES

cdef int READS, WRITES


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
