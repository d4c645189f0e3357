"""Proves a certificate, which ``hosim replay --certificate FILE`` writes, without hosim: ``python check_certificate.py FILE``.

Exit code 0: the events are possible, and no plan of these ops is faster than the bound. 1: something is false. 2: it is no certificate.
Taken as given: sizes, durations of ops alone, capacities, bandwidths, latencies. All arithmetic is exact. docs/contract.md says more.
"""

import hashlib
import heapq
import json
import sys
from bisect import bisect_right
from collections import defaultdict
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any


class FalseClaim(Exception):  # noqa: N818
    """What a certificate says and its events do not show."""


def require(holds: object, claim: str, *about: object) -> None:
    """Raise :class:`FalseClaim` unless it holds."""
    if not holds:
        raise FalseClaim(claim.format(*about))


class Program:
    """What follows from the ops: by op those that it follows (``before``) and who wrote what it reads (``versions``; -1: time 0)."""

    def __init__(self, ops: Any) -> None:
        self.before: list[set[int]] = []
        self.versions: list[dict[int, int]] = []
        self.uses: list[set[int]] = []
        self.users, self.writers, self.stream = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list), dict[str, list[int]]()
        for i, op in enumerate(ops):
            self.versions.append({t: self.writers[t][-1] if self.writers[t] else -1 for t in op["reads"]})
            known = {*op["deps"], *self.versions[i].values(), *self.stream.get(op["stream"], ())} - {-1}
            self.before.append(known.union(*[self.users[t] for t in op["writes"]]))
            require(max(self.before[i], default=-1) < i, "op {} follows one that is listed later", op["name"])
            self.stream[op["stream"]] = [i]
            for t in op["writes"]:
                self.writers[t].append(i)
            self.uses.append({*op["reads"], *op["writes"]})
            for t in self.uses[i]:
                self.users[t].append(i)


class Copies:
    """When the tiers of one device have room for a tensor (``spans``), and which contents they hold (``contents``)."""

    def __init__(self, c: Any, device: Any, program: Program) -> None:
        self.tensors, self.ops, self.times, self.program = c["tensors"], c["ops"], device["ops"], program
        self.spans, self.contents = defaultdict[Any, list[Any]](list), defaultdict[Any, list[Any]](list)
        for t, tier, start, end in device["copies"]:
            self.spans[t, tier].append((start, end))
        for t, tier in c["initial"]:
            self.comes(t, tier, -1, 0, 0)
        for i, op in enumerate(self.ops):
            for t in op["writes"]:
                self.comes(t, op["tier"], i, *self.times[i])

    def comes(self, t: int, tier: str, version: int, start: int, since: int) -> None:
        """Contents are there from ``since`` on, in room held from ``start`` on, until this is let go or an op writes the tensor anew."""
        until = max([end for begin, end in self.spans[t, tier] if begin <= start and since <= end], default=-1)
        require(until >= 0, "there is no room for {} in {} from {} to {} ns", self.tensors[t][0], tier, start, since)
        writers = self.program.writers[t]
        later = writers[bisect_right(writers, version) :]
        self.contents[t, tier].append((version, since, min(until, self.times[later[0]][0]) if later else until))

    def there(self, t: int, tier: str, start: int, end: int) -> list[int]:
        """The versions that a tier holds from ``start`` to ``end``."""
        return [version for version, since, until in self.contents[t, tier] if since <= start and end <= until]

    def useless(self, t: int, at: int) -> bool:
        """Whether a tensor does not survive the step and no op uses it any more."""
        return not self.tensors[t][2] and all(self.times[i][1] <= at for i in self.program.users[t])


def moved(c: Any, device: Any, copies: Copies) -> tuple[dict[int, tuple[int, int]], list[Any]]:
    """Each cache op copies valid contents, all of them, hop by hop: when each one moves, and what chunks hold between two hops."""
    moves, hops = [*c["cache_ops"], *device["decided"]], defaultdict[int, dict[str, list[Any]]](lambda: defaultdict(list))
    for k, channel, size, start, end in device["transfers"]:
        hops[k][channel].append((start, end, size))
    when, staged = dict[int, tuple[int, int]](), list[Any]()
    for k, crossed in sorted(hops.items(), key=lambda item: max(end for chunks in item[1].values() for _, end, _ in chunks)):
        _, t, here, target, _ = moves[k]
        said, before, first, version = f"cache op {k}, of {c['tensors'][t][0]},", list[Any](), -1, -1
        while here != target:
            ways = [name for name in crossed if c["channels"][name]["from"] == here]
            require(len(ways) == 1, "{} takes no single way to {}", said, target)
            chunks = sorted(crossed.pop(ways[0]))
            require(sum(size for *_, size in chunks) == c["tensors"][t][1], "{} does not move the tensor's bytes over {}", said, ways[0])
            if first < 0:
                first = chunks[0][0]
                version = max(copies.there(t, here, first, max(end for _, end, _ in chunks)), default=-2)
                require(version > -2, "{} copies what {} does not hold", said, here)
            require(
                not before or [size for *_, size in before] == [size for *_, size in chunks], "{} has other chunks on {}", said, ways[0]
            )
            for (begin, came, _), (start, end, size) in zip(before, chunks, strict=bool(before)):
                require(came <= start, "{} has a chunk that leaves {} before it is there", said, here)
                staged.append((here, begin, end, size))
            before, here = chunks, c["channels"][ways[0]]["to"]
        require(first >= 0 and not crossed, "{} takes no single way to {}", said, target)
        end = max(end for _, end, _ in before)
        copies.comes(t, target, version, before[0][0], end)
        when[k] = first, end
    return when, staged


def planned(c: Any, device: Any, copies: Copies, when: Any) -> None:
    """Cache ops of a tensor take effect in the order of their issue, after their ops; nothing else lets a copy go that is of use."""
    effect, dropped = dict[int, int](), set[Any]()
    issue = [0 if after is None else device["ops"][after][1] for *_, after in c["cache_ops"]]
    for k in sorted(range(len(issue)), key=lambda k: (issue[k], k)):
        _, t, tier, target, _ = c["cache_ops"][k]
        said = f"cache op {k}, of {c['tensors'][t][0]},"
        start, end = when.get(k, [max(issue[k], effect.get(t, 0))] * 2)
        require(start >= issue[k] and (c["runtime"] or start >= effect.get(t, 0)), "{} takes effect before its turn", said)
        require(target is None or k in when or copies.useless(t, start), "{} moves nothing", said)
        effect[t] = end
        if target is None and not c["runtime"]:
            require(not any(begin < start < until for begin, until in copies.spans[t, tier]), "{} does not let {} go", said, tier)
            dropped.add((t, tier, start))
    last = max(end for _, end in [(0, 0), *device["ops"], *when.values()])
    for (t, tier), spans in copies.spans.items() if not c["runtime"] else ():
        stale = {device["ops"][w][0] for w in copies.program.writers[t] if c["ops"][w]["tier"] != tier}
        for _, end in spans:
            known = end >= last or end in stale or (t, tier, end) in dropped or copies.useless(t, end)
            require(known, "no cache op lets {} go from {} at {} ns", c["tensors"][t][0], tier, end)


def used(c: Any, device: Any, copies: Copies) -> None:
    """Ops run after those that they follow, for their durations at least, on valid inputs; what survives the step is there at its end."""
    program, last = copies.program, max(end for *_, end in [(0,), *device["ops"], *device["transfers"]])
    for i, (op, (start, end)) in enumerate(zip(c["ops"], device["ops"], strict=True)):
        require(end - start >= op["ns"], "op {} ends before its duration is over", op["name"])
        for p in program.before[i]:
            require(device["ops"][p][1] <= start, "op {} starts before {} has ended", op["name"], c["ops"][p]["name"])
        for t, version in program.versions[i].items():
            valid = version in copies.there(t, op["tier"], start, start if t in op["writes"] else end)
            require(valid, "op {} reads {}, of which {} has no valid copy at {} ns", op["name"], c["tensors"][t][0], op["tier"], start)
    homes = defaultdict[int, list[str]](list)
    for t, tier in c["initial"]:
        homes[t].append(tier)
    for t, (name, _, survives) in enumerate(c["tensors"]):
        version = program.writers[t][-1] if program.writers[t] else -1
        if survives and (version >= 0 or homes[t]):
            ends = [version in copies.there(t, tier, last, last) for tier in (homes[t] if c["repeats"] and homes[t] else c["tiers"])]
            require(all(ends) if c["repeats"] and homes[t] else any(ends), "{} is not where it has to be at the end of the step", name)


def most(parts: Any, closed: Any = ()) -> int:
    """The most that parts (start, end, amount) hold at once, what ends before what starts; or what touches an instant of ``closed``."""
    held = found = 0
    for at, _, change in sorted(x for start, end, amount in parts for x in ((start, not closed, amount), (end, bool(closed), -amount))):
        held += change
        found = max(found, held if not closed or at in closed else 0)
    return found


def flows(jobs: Any, bytes_per_s: int) -> bool:
    """Whether so many bytes can flow in windows (start, end, bytes): by earliest deadline first, which works if anything does."""
    waiting, k, jobs = list[Any](), 0, sorted(job for job in jobs if job[2])
    for now, then in pairwise(sorted({at for start, end, _ in jobs for at in (start, end)})):
        while k < len(jobs) and jobs[k][0] <= now:
            heapq.heappush(waiting, [jobs[k][1], jobs[k][2] * 10**9])
            k += 1
        room = bytes_per_s * (then - now)
        while waiting and waiting[0][1] <= room:
            room -= heapq.heappop(waiting)[1]
        if waiting:
            waiting[0][1] -= room
            if waiting[0][0] <= then:
                return False
    return all(start < end for start, end, _ in jobs)


def machine(c: Any, devices: Any, held: list[Any]) -> dict[str, int]:
    """Tiers hold no more than they have room for, channels have engines, links bandwidth. The peaks of the tiers, and whether they are exact."""
    timeless = {end for device in devices for *_, start, end in [*device["ops"], *device["transfers"]] if start == end}
    peaks = {}
    for name, tier in c["tiers"].items():
        parts = defaultdict[int, list[Any]](list)
        for d, own in enumerate(held):
            parts[tier["of"][d]] += [part[1:] for part in own if part[0] == name]
        peaks[name] = max(most(part) for part in parts.values())
        require(peaks[name] <= tier["bytes"], "{} holds {:,} B and has room for {:,} B", name, peaks[name], tier["bytes"])
        if timeless and peaks[name] < c["peak_bytes"][name] <= max(most(part, timeless) for part in parts.values()):
            peaks[name] = c["peak_bytes"][name]
        require(peaks[name] == c["peak_bytes"][name], "{} holds {:,} B at its peak, not {:,} B", name, peaks[name], c["peak_bytes"][name])
    for name, channel in c["channels"].items():
        for device in devices:
            own = [(start, end, 1) for _, on, _, start, end in device["transfers"] if on == name]
            require(most(own) <= channel["engines"], "{} moves more transfers at once than it has engines", name)
            late = all(end - start >= channel["latency_ns"] for start, end, _ in own)
            require(late, "a transfer over {} is shorter than its latency", name)
    for link in c["links"]:
        jobs = defaultdict[int, list[Any]](list)
        for d, device in enumerate(devices):
            for _, on, size, start, end in device["transfers"]:
                if on in link["carries"]:
                    jobs[link["of"][d]].append((start + c["channels"][on]["latency_ns"], end, size))
        fine = all(flows(own, link["bytes_per_s"]) for own in jobs.values())
        require(fine, "{} would have to carry more than its {:,} B/s", link["name"], link["bytes_per_s"])
    return peaks


def ways(c: Any, weights: dict[int, Fraction], size: int, end: str, back: bool, latency: bool) -> dict[str, Fraction]:
    """What the way of a tensor from each tier to ``end``, or ``back``, takes of links by their weights at least: the cheapest way."""
    cost = {end: Fraction(0)}
    for _ in c["tiers"]:
        for name, channel in c["channels"].items():
            x, y = (channel["to"], channel["from"]) if back else (channel["from"], channel["to"])
            if y in cost:
                step = cost[y]
                for k, weight in weights.items():
                    if name in c["links"][k]["carries"]:
                        step += weight * Fraction(size * 10**9, c["links"][k]["bytes_per_s"])
                        alone = latency and channel["engines"] == 1 and c["links"][k]["carries"] == [name]
                        step += weight * channel["latency_ns"] if alone else 0
                cost[x] = min(cost.get(x, step), step)
    return cost


def leg(c: Any, program: Program, dual: Any) -> Fraction:
    """What passes at least from the end of op ``from`` (None: time 0) to the start of op ``to`` (None: the end), as so much has to move.

    Each link has a weight, which together are 1 at most, and each tier a price a byte for its room at ``from`` and one at ``to``. What the
    stream reads lies somewhere at ``from``, and what it has made is somewhere at ``to``: at least where room and way cost least.
    """
    ops, tensors, tiers, a, b = c["ops"], c["tensors"], c["tiers"], dual["from"], dual["to"]
    weights = {int(k): Fraction(*w) for k, w in dual["weights"].items()}
    room, later = ({tier: Fraction(*dual[key].get(tier, (0, 1))) for tier in tiers} for key in ("room", "later"))
    joined = {(channel["from"], channel["to"]) for channel in c["channels"].values()}
    latency = a is None or all((x, y) in joined for x in tiers for y in tiers if x != y)  # else a tensor may be half on its way at a
    way, none = cache(lambda *asked: ways(c, weights, *asked, latency)), set[int]()
    stream = {ops[i]["stream"] for i in (a, b) if i is not None} or {op["stream"] for op in ops}
    require(sum(weights.values()) <= 1 and (a is b is None or len(stream) == 1), "a leg of the path has weights above 1, or two streams")
    inside = [i for i in range(0 if a is None else a + 1, len(ops) if b is None else b + 1) if ops[i]["stream"] in stream]
    total, seen, homes = Fraction(0), set(none if a is None else program.uses[a]), dict(c["homes"]) if a is None else {}
    for i in inside:
        for t in program.versions[i].keys() - seen:
            version, (_, size, survives) = program.versions[i][t], tensors[t]
            if version == -1 or (a is not None and version <= a and ops[version]["stream"] in stream):
                cost = [way(size, ops[i]["tier"], False)]
                if a is b is None and c["repeats"] and survives and program.writers[t]:
                    cost.append(way(size, ops[program.writers[t][-1]]["tier"], True))
                where = [tier for tier in ([homes[t]] if t in homes else tiers) if all(tier in each for each in cost)]
                total += min([room[tier] * size + sum(each[tier] for each in cost) for tier in where], default=0)
        seen |= program.uses[i]
    for i in inside if b is not None else ():
        for t in set(ops[i]["writes"]) - program.uses[b] if i < b else ():
            after = any(r > b and program.versions[r].get(t) == i and ops[r]["stream"] in stream for r in program.users[t])
            if after or (tensors[t][2] and program.writers[t][-1] == i):
                cost = way(tensors[t][1], ops[i]["tier"], True)
                total += min(cost[tier] + later[tier] * tensors[t][1] for tier in cost)
    for price, at in ((room, a), (later, b)):
        total -= sum(price[tier] * tiers[tier]["bytes"] for tier in tiers)
        if at is not None:
            total += price[ops[at]["tier"]] * (ops[at]["workspace"] + sum(tensors[t][1] for t in program.uses[at]))
    return total


def bound(c: Any, program: Program) -> int:
    """Nanoseconds that a path of ops, each of which follows the one before, and of legs between them, takes at least."""
    total, last = Fraction(0), None
    for k, step in enumerate(c["path"]):
        if isinstance(step, int):
            fits = k == 0 or last in program.before[step] or (isinstance(last, dict) and last["to"] == step)
            total += c["ops"][step]["ns"]
        else:
            fits = step["from"] == last and (step["to"] is not None or k == len(c["path"]) - 1)
            total += leg(c, program, step)
        require(fits, "step {} of the bound's path does not follow the one before", k)
        last = step
    return -int(-total // 1)


def natural(text: str) -> int:
    """A number of a certificate: whole and at least 0."""
    if not text.isdecimal():
        raise ValueError(f"{text[:20]} is no whole number of at least 0")
    return int(text)


def prove(text: str) -> str:
    """What a certificate proves, in a few lines; raises :class:`FalseClaim`."""
    file = json.loads(text, parse_int=natural, parse_float=natural, parse_constant=natural)
    require(file["hosim_certificate"] == 1, "another version of certificates")
    c, devices = {**file["given"], **file["plan"], **file["claims"]}, file["devices"]
    digest = hashlib.sha256(json.dumps(file["given"], sort_keys=True).encode()).hexdigest()
    require(digest == file["given_sha256"], "what is given has the SHA-256 {}, not the one that it says", digest)
    program = Program(c["ops"])
    held = []
    for device in devices:
        copies = Copies(c, device, program)
        when, staged = moved(c, device, copies)
        planned(c, device, copies, when)
        used(c, device, copies)
        rooms = [(tier, *span, c["tensors"][t][1]) for (t, tier), spans in copies.spans.items() for span in spans]
        held.append(rooms + staged + [(op["tier"], *at, op["workspace"]) for op, at in zip(c["ops"], device["ops"], strict=True)])
    machine(c, devices, held)
    ended = max(end for device in devices for *_, end in [(0,), *device["ops"], *device["transfers"]])
    require(ended == c["makespan_ns"], "the last event ends at {:,} ns, not {:,} ns", ended, c["makespan_ns"])
    least = bound(c, program)
    require(c["lower_bound_ns"] <= least, "the path proves that no plan takes less than {:,} ns, not {:,} ns", least, c["lower_bound_ns"])
    ops, gap = sum(len(device["ops"]) for device in devices), f"; the makespan is {ended / least - 1:.2%} above" if least else ""
    slow = [end - start - op["ns"] for device in devices for op, (start, end) in zip(c["ops"], device["ops"], strict=True)]
    peaks = ", ".join(f"{c['peak_bytes'][tier]:,} of {room['bytes']:,} B in {tier}" for tier, room in c["tiers"].items())
    homes = f", and begin with {len(c['homes'])} tensors in their homes" if c["homes"] else ""
    lines = [
        f"{c['policy']} on {c['hardware']}, {c['workload']}: {len(devices)} devices, {ops} ops, {sum(len(d['transfers']) for d in devices)} transfers",
        "proved: order of ops, valid inputs, nothing lost that is needed, room in every tier, engines and bandwidth of every link",
        f"proved: makespan {ended:,} ns; peak {peaks}",
        f"proved: plans of these ops in this order{' that restore what they change' if c['repeats'] else ''}{homes} take at least {least:,} ns{gap}",
        f"given: sizes, durations of ops alone, capacities, bandwidths, latencies: SHA-256 {digest}",
        f"not proved: {sum(x > 0 for x in slow)} ops take {sum(slow):,} ns more than alone" if any(slow) else "",
        "not proved: which copies the runtime policy lets go, and why" if c["runtime"] else "",
    ]
    return "\n".join(filter(None, lines))


def main() -> int:
    """Prints what the file proves, or what is false in it; the exit code."""
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            print(prove(file.read()))
    except FalseClaim as error:
        print(f"false: {error}")
        return 1
    except (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        print(f"no certificate: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
