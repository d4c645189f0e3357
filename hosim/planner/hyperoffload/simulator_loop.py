"""The loop over the instants of a simulated step, in the order of rule 0 of docs/contract.md.

It knows what the engine knows of a replay that counts bytes, without its figures: streams and what they wait for, first-in
first-out channels with several engines, shared bandwidth, memory that copies take from ops, room in every tier, pinning. It does not know
runtime policies, allocators, jitter and routes over several channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.simulated_bandwidth import let_flow, share, slowdown
from hosim.planner.hyperoffload.simulated_bandwidth import op_end as op_ends_at
from hosim.planner.hyperoffload.simulated_moves import (
    COMING,
    ENDS,
    GONE,
    IN_PART,
    MAKES,
    MAY_END,
    READS,
    VALID_BELOW,
    WRITES,
    PlacedMove,
    SimulatedMoves,
    Touch,
)
from hosim.planner.hyperoffload.simulator_state import (
    CHANNEL,
    END,
    FLOWING,
    LATENT,
    MOVE,
    NEVER,
    ORDER,
    PHASE,
    ROOM,
    Flow,
    RunState,
)
from hosim.planner.hyperoffload.step_model import StepModel
from hosim.planner.hyperoffload.transfer_rates import Rate


def run(
    step: StepModel,
    state: RunState,
    target: int,
    touches: Mapping[int, Sequence[Touch]],
    after: Mapping[int, Sequence[PlacedMove]],
    moving: Mapping[int, SimulatedMoves],
    fresh: bool = False,
) -> bool:
    """Go on until ``target`` ops have ended and the instant is over; False if nothing is left to happen before.

    ``fresh``: from time 0, where the first moves are issued.
    """
    capacity, capacities, sizes = step.capacities[0], step.capacities, step.sizes
    start_bytes, end_bytes, durations, weights = step.start_bytes, step.end_bytes, step.durations, step.weights
    queues, waits, perhaps, last_places, uses = step.queues, step.waits, step.perhaps, step.last_places, step.uses
    upward, engines, stream_of, place, pinning = step.upward, step.engines, step.stream_of, step.place, step.pinning
    done, running, op_end, held, states = state.done, state.running, state.op_end, state.held, state.states
    pending, waiting, flows, work = state.pending, state.queues, state.flows, state.work
    idle_since, blamed, peaks, tight = state.idle_since, state.blamed, state.peaks, state.tight
    streams, channels = range(len(queues)), range(len(engines))
    using = [0] * len(engines)
    for flow in flows:
        using[flow[CHANNEL]] += 1
    queued = sum([len(line) for line in waiting])
    single = len(queues) == 1
    first_queue = queues[0] if queues else []
    contended, unshared = bool(uses), step.rates.alone
    taken: Rate | None = None
    slowed: dict[int, tuple[int, int]] = {}
    now, total, mark, issued = state.now, state.total, state.mark, state.issued
    last, instants = state.last, state.instants
    due: list[int] = []
    issues: Sequence[PlacedMove] = after.get(AT_START, ()) if fresh else ()
    settle = fresh
    dirty = False
    stuck = True
    flow_next = min([flow[END] for flow in flows], default=NEVER)
    reached = False
    latest = -1
    while True:
        if settle:
            settle = False
            # detaches that a transfer's end has set free, and what ops' ends issue
            if due:
                for t in due:
                    entries = pending.get(t)
                    while entries and entries[0].channel < 0:
                        if states[t] & 3 == 0:
                            held[0] -= sizes[t]
                            states[t] |= GONE
                            mark += GONE * weights[t]
                        entries = entries[1:]
                    if entries:
                        pending[t] = entries
                    elif entries is not None:
                        del pending[t]
                due.clear()
            for _, _, _, t, move in issues:
                if move.channel < 0:
                    if t in pending:
                        pending[t] = (*pending[t], move)
                    elif states[t] & 3 == 0:
                        held[0] -= sizes[t]
                        states[t] |= GONE
                        mark += GONE * weights[t]
                    continue
                waiting[move.channel].append((issued, move))
                issued += 1
                queued += 1
                pending[t] = (*pending[t], move) if t in pending else (move,)
            issues = ()
            # ops
            stuck = False
            for s in streams:
                if running[s] >= 0:
                    continue
                queue = queues[s]
                if done[s] == len(queue):
                    continue
                i = queue[done[s]]
                ready = True
                if i in waits:
                    for other, needed in waits[i]:
                        if done[other] < needed:
                            ready = False
                            break
                    if not ready:
                        blamed[s] = ORDER
                        continue
                touched = touches.get(i)
                need = start_bytes[i]
                if touched:
                    for t, flags, number, issuer in touched:
                        here = states[t] & 3
                        if (
                            (here and flags & READS)
                            or (t in pending and awaits(state, t, flags, number))
                            or (issuer >= 0 and done[stream_of[issuer]] <= place[issuer])
                        ):
                            ready = False
                            blamed[s] = t
                            break
                        if here and flags & MAKES:
                            need += sizes[t]
                if not ready:
                    stuck = True
                    continue
                if held[0] + need > capacity:
                    stuck = True
                    tight[0] = True
                    blamed[s] = ROOM
                    continue
                if touched:
                    for t, flags, _, _ in touched:
                        if flags & WRITES and states[t]:
                            mark -= states[t] * weights[t]
                            drop_below(step, state, t)
                held[0] += need
                if held[0] > peaks[0]:
                    peaks[0] = held[0]
                if now > idle_since[s]:
                    state.stalls.append((i, now - idle_since[s], blamed[s]))
                running[s] = i
                op_end[s] = now + durations[i]
                if contended and i in uses:
                    use = uses[i]
                    if state.taken is not taken:
                        taken = state.taken
                        slowed = step.slowdowns[taken]
                    entry = work[s] = [now + use.launch_ns, durations[i] - use.launch_ns, 1, *(slowed.get(i) or slowdown(step, i, taken))]
                    op_end[s] = op_ends_at(entry)
            # transfers, in order of issue
            free = [c for c in channels if waiting[c] and using[c] < engines[c]] if queued else []
            while free:
                channel = free[0] if len(free) == 1 else min(free, key=lambda c: waiting[c][0][0])
                move = waiting[channel][0][1]
                t, tier = move.t, move.tier
                ok = pending[t][0] is move
                pin = 0
                if ok:
                    code = states[t]
                    below = code >> 2 * tier & 3
                    if upward[channel]:
                        ok = below == VALID_BELOW
                        if ok and code & 3 == GONE:
                            if held[0] + sizes[t] > capacity:
                                ok = False
                                tight[0] = True
                            else:
                                held[0] += sizes[t]
                                if held[0] > peaks[0]:
                                    peaks[0] = held[0]
                                states[t] = code ^ (GONE ^ COMING)
                                mark += (COMING - GONE) * weights[t]
                    else:
                        ok = code & 3 == 0 and not any([r >= 0 and t in step.writes[r] for r in running])
                        if ok and not below:
                            room = held[tier] + sizes[t]
                            if room > capacities[tier] or room > step.parts[tier]:
                                if room <= capacities[tier]:
                                    state.failed = True  # devices do no longer the same
                                ok = False
                                tight[tier] = True
                            else:
                                held[tier] = room
                                if room > peaks[tier]:
                                    peaks[tier] = room
                                states[t] = code | IN_PART << 2 * tier
                                mark += (IN_PART << 2 * tier) * weights[t]
                                if pinning:
                                    pin = pinned_ns(step, state, t, tier)
                if not ok:
                    free.remove(channel)
                    stuck = True
                    continue
                waiting[channel].popleft()
                queued -= 1
                using[channel] += 1
                if not waiting[channel] or using[channel] == engines[channel]:
                    free.remove(channel)
                kind, alone, length, rate = step.flow_kind(channel, t)
                begins = now + pin + step.latencies[channel]
                if alone and not contended:
                    end = begins + length
                    flows.append([end, channel, move, kind, FLOWING, 0, rate, 0])
                    if end < flow_next:
                        flow_next = end
                elif begins > now:
                    flows.append([begins, channel, move, kind, LATENT, 0, 0, 0])
                    if begins < flow_next:
                        flow_next = begins
                else:
                    begun: Flow = [0, channel, move, kind, LATENT, 0, 0, 0]
                    flows.append(begun)
                    let_flow(step, begun, now)
                    dirty = True
            if dirty:
                dirty = False
                share(step, state, now)
                flow_next = min([flow[END] for flow in flows], default=NEVER)
            if total >= target and (flow_next > now and (op_end[0] if single else min(op_end)) > now):
                reached = True
                break
        # time goes on
        if single:
            ends = op_end[0]
            while ends < flow_next and not stuck and total + 1 < target:
                # nothing but this op ends, and nothing waits for it but the next op
                i = running[0]
                j = i + 1
                if i in touches or i in after or j == len(first_queue) or j in touches or j in uses or i in perhaps:
                    break
                room = held[0] - end_bytes[i] + start_bytes[j]
                if room > capacity:
                    break
                held[0] = room
                if room > peaks[0]:
                    peaks[0] = room
                total += 1
                done[0] = total
                running[0] = j
                now = last = ends
                idle_since[0] = now
                op_end[0] = ends = now + durations[j]
                if contended:
                    work[0] = None
        else:
            ends = min(op_end, default=NEVER)
        if flow_next < ends:
            ends = flow_next
        if ends == NEVER:
            break
        now = ends
        instants += 1
        if flow_next == now:
            for flow in flows[:]:
                if flow[END] > now:
                    continue
                if flow[PHASE] == LATENT:
                    let_flow(step, flow, now)
                    dirty = True
                    continue
                flows.remove(flow)
                using[flow[CHANNEL]] -= 1
                move = flow[MOVE]
                t = move.t
                if upward[flow[CHANNEL]]:
                    if states[t] & 3:
                        mark -= (states[t] & 3) * weights[t]
                        states[t] &= ~3
                else:
                    shift = 2 * move.tier
                    mark += ((VALID_BELOW << shift) - (states[t] & 3 << shift)) * weights[t]
                    states[t] = states[t] & ~(3 << shift) | VALID_BELOW << shift
                entries = pending[t][1:]
                if entries:
                    pending[t] = entries
                    due.append(t)
                else:
                    del pending[t]
                last, latest = now, t
                settle = True
                if contended or not unshared[flow[CHANNEL]]:
                    dirty = True
            flow_next = min([flow[END] for flow in flows], default=NEVER)
        for s in streams:
            if op_end[s] == now:
                i = running[s]
                running[s] = -1
                op_end[s] = NEVER
                work[s] = None
                idle_since[s] = last = now
                blamed[s] = ORDER
                done[s] += 1
                total += 1
                held[0] -= end_bytes[i]
                if i in touches:
                    for t, flags, _, _ in touches[i]:
                        if flags & (ENDS | MAY_END):
                            if flags & MAY_END and any([done[o] < n for o, n in last_places[t]]):
                                continue
                            state.failed |= t in pending
                            if flags & ENDS:
                                held[0] += sizes[t]
                            if states[t] & 3 != GONE:
                                held[0] -= sizes[t]
                            mark -= states[t] * weights[t]
                            drop_below(step, state, t)
                if i in perhaps:
                    for t in perhaps[i]:
                        if t not in moving and all([done[o] >= n for o, n in last_places[t]]):
                            held[0] -= sizes[t]
                if i in after:
                    issues = sorted([*issues, *after[i]]) if issues else after[i]
                settle = True
        if dirty and not settle:
            dirty = False
            share(step, state, now)
            flow_next = min([flow[END] for flow in flows], default=NEVER)
    if total == step.count and not reached and last > (ended := max(idle_since)):
        state.stalls.append((total, last - ended, latest))
    state.now, state.total, state.mark, state.issued, state.last, state.instants = now, total, mark, issued, last, instants
    return reached


def awaits(state: RunState, t: int, flags: int, number: int) -> bool:
    """Whether an op waits for a tensor's issued moves: up to a number, or for the one that is under way if it writes the tensor."""
    for move in state.pending[t]:
        if move.number <= number and move.channel >= 0:
            return True
    return bool(flags & WRITES) and any([flow[MOVE].t == t for flow in state.flows])


def drop_below(step: StepModel, state: RunState, t: int) -> None:
    """A tensor is as if it did not move, and nowhere but in the device tier, if there."""
    code = state.states[t]
    for k in range(1, len(step.capacities)):
        if code >> 2 * k & 3:
            state.held[k] -= step.sizes[t]
            if step.pins[k] and step.rates.pinning_ns(t, step.tiers[k]):
                state.pinned[k] -= step.sizes[t]
    state.states[t] = 0


def pinned_ns(step: StepModel, state: RunState, t: int, tier: int) -> int:
    """A tensor's bytes come into a tier: nanoseconds to pin them."""
    time = step.rates.pinning_ns(t, step.tiers[tier]) if step.pins[tier] else 0
    if not time:
        return 0
    state.pinned[tier] += step.sizes[t]
    if step.pooled[tier] and state.pinned[tier] <= state.most_pinned[tier]:
        return 0
    state.most_pinned[tier] = max(state.most_pinned[tier], state.pinned[tier])
    return time
