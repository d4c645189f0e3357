"""The event loop: the host that calls ops and cache ops one by one (docs/contract.md, rule 23)."""

from __future__ import annotations

from hosim.engine.loop_transfers import LoopTransfers


class LoopHost(LoopTransfers):
    """Calls, in the order of the program.

    ``host_at`` is the number of the call that the host makes or waits after, even for the cache ops
    of a place and odd for an op, and how many places have their cache ops called. ``host_over`` is
    when a call is over that has begun (-1: none has).
    """

    def make_calls(self) -> None:
        """Make calls until one takes time or the host has to wait; collect what is issued by it."""
        now = self.scalars[0]
        while self.host_at[0] < 2 * self.hosted + 1:
            number = self.host_at[0]
            place = (number + 1) // 2
            by_op = number % 2
            if self.host_over[0] < 0:
                if by_op and not self.may_call(place - 1):
                    return
                self.host_over[0] = now + (self.host_ns[0] if by_op else self.host_copies[place])
            if now < self.host_over[0]:
                return
            if by_op:
                if self.called_at[place - 1] < 0:
                    self.called_at[place - 1] = self.host_over[0]
                if self.host_blocks[place - 1] and not self.has_ended(place - 1):
                    return
            else:
                if self.host_at[1] <= place:
                    self.host_at[1] = place + 1
                    if place == 0 or self.has_ended(place - 1):
                        self.collect(place)
                if not self.copied(place):
                    return
            self.host_at[0] = number + 1
            self.host_over[0] = -1

    def has_ended(self, i: int) -> bool:
        """Whether an op has ended."""
        found: bool = self.place[i] < self.done[self.stream_of[i]]
        return found

    def may_call(self, i: int) -> bool:
        """Whether all ops have ended that the call of one awaits."""
        for j in range(self.host_await_from[i], self.host_await_from[i + 1]):  # noqa: SIM110
            if not self.has_ended(self.host_await[j]):
                return False
        return True

    def copied(self, place: int) -> bool:
        """Whether the copies of a place have ended that the host waits for; one of a tensor that
        was released before it was issued does nothing.
        """
        for j in range(self.host_wait_from[place], self.host_wait_from[place + 1]):
            k = self.host_wait[j]
            if not self.ended[k] and (not self.released[self.move_tensor[k]] or self.is_pending(k)):
                return False
        return True

    def is_pending(self, k: int) -> bool:
        """Whether a cache op is issued and not over."""
        j = self.pending_head[self.move_tensor[k]]
        while j >= 0 and j != k:
            j = self.pending_next[j]
        found: bool = j == k
        return found
