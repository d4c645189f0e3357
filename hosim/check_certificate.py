"""Proves a certificate, which ``hosim replay --certificate FILE`` writes, without hosim: ``python
check_certificate.py FILE``.

Exit code 0: the events are possible, and no plan of these ops is faster than the bound. 1:
something is false. 2: it is no certificate. Taken as given: sizes, durations of ops alone,
capacities, bandwidths, latencies. All arithmetic is exact. docs/authors.md says more.
"""

import gzip
import hashlib
import heapq
import json
import sys
from bisect import bisect_right
from collections import defaultdict
from fractions import Fraction
from itertools import accumulate
from typing import Any

Amounts = list[tuple[int, int, int]]


class FalseClaim(Exception):  # noqa: N818
    """A claim of a certificate that its events do not show."""


def require(holds: object, claim: str, *about: object) -> None:
    """Raise :class:`FalseClaim` unless it holds."""
    if not holds:
        raise FalseClaim(
            claim.format(*[plain(one) if isinstance(one, str) else one for one in about])
        )


def plain(text: str) -> str:
    """A name of a file that anybody may have written, as it can be printed on a line."""
    return ascii(text)[1:-1]


class Program:
    """The dependencies between ops: for each op, those that it follows (``before``) and the writers
    of what it reads (``versions``; -1: time 0).
    """

    def __init__(self, c: Any) -> None:
        self.ops, self.tensors = c["ops"], c["tensors"]
        self.uses = [{*op["reads"], *op["writes"]} for op in self.ops]
        self.before: list[set[int]] = []
        self.versions: list[dict[int, int]] = []
        self.users, self.writers = (
            defaultdict[int, list[int]](list),
            defaultdict[int, list[int]](list),
        )
        last: dict[str, int] = {}
        for i, op in enumerate(self.ops):
            self.versions.append({t: (self.writers[t] or [-1])[-1] for t in op["reads"]})
            known = {*op["deps"], *self.versions[i].values(), last.get(op["stream"], -1)}
            self.before.append(known.union(*[self.users[t] for t in op["writes"]]) - {-1})
            require(
                max(self.before[i], default=-1) < i,
                "op {} follows one that is listed later",
                op["name"],
            )
            last[op["stream"]] = i
            for t in op["writes"]:
                self.writers[t].append(i)
            for t in self.uses[i]:
                self.users[t].append(i)


class DeviceEvents:
    """The events on one device: when tiers had room for a tensor (``spans``), and which versions of
    it they held (``contents``).
    """

    def __init__(self, c: Any, program: Program, events: Any) -> None:
        self.c, self.program = c, program
        self.times, self.transfers = events["ops"], events["transfers"]
        self.moves = [*c["cache_ops"], *events["decided"]]
        self.end = max([0, *(end for *_, end in (*self.times, *self.transfers))])
        self.spans = defaultdict[Any, list[tuple[int, int]]](list)
        self.contents = defaultdict[Any, list[Any]](list)
        self.held = [
            (op["tier"], start, end, op["workspace"])
            for op, (start, end) in zip(c["ops"], self.times, strict=True)
        ]
        require(c["runtime"] or not events["decided"], "there are copies that are not in the plan")
        late = [
            start + c["channels"][on]["latency_ns"] <= end
            for _, on, _, start, end in self.transfers
        ]
        require(
            all(late) and all(start <= end for *_, start, end in events["copies"]),
            "an event ends before it can",
        )
        for t, tier, start, end in events["copies"]:
            self.spans[t, tier].append((start, end))
            self.held.append((tier, start, end, c["tensors"][t][1]))
        for t, tier in c["initial"]:
            self.comes(t, tier, -1, 0, 0)
        for i, op in enumerate(c["ops"]):
            for t in op["writes"]:
                self.comes(t, op["tier"], i, *self.times[i])
        self.when = self.moved()

    def comes(self, t: int, tier: str, version: int, start: int, since: int) -> None:
        """Contents are there from ``since`` on, in room held from ``start`` on, until this is let
        go or an op writes the tensor anew.
        """
        until = max(
            [end for begin, end in self.spans[t, tier] if begin <= start and since <= end],
            default=-1,
        )
        require(
            until >= 0,
            "there is no room for {} in {} from {} to {} ns",
            self.program.tensors[t][0],
            tier,
            start,
            since,
        )
        later = self.program.writers[t][bisect_right(self.program.writers[t], version) :]
        self.contents[t, tier].append(
            (version, since, min(until, self.times[later[0]][0]) if later else until)
        )

    def there(self, t: int, tier: str, start: int, end: int) -> list[int]:
        """The versions that a tier holds from ``start`` to ``end``."""
        return [
            version
            for version, since, until in self.contents[t, tier]
            if since <= start and end <= until
        ]

    def useless(self, t: int, at: int) -> bool:
        """Return whether a tensor does not survive the step and no op uses it any more."""
        return not self.program.tensors[t][2] and all(
            self.times[i][1] <= at for i in self.program.users[t]
        )

    def moved(self) -> dict[int, tuple[int, int]]:
        """Return the times at which each cache op moves: it copies valid contents, all of them, hop
        by hop, and its chunks hold room between two hops.
        """
        hops = defaultdict[int, dict[str, Amounts]](lambda: defaultdict(list))
        when: dict[int, tuple[int, int]] = {}
        for k, channel, size, start, end in self.transfers:
            hops[k][channel].append((start, end, size))
            first, last = when.get(k, (start, end))
            when[k] = min(start, first), max(end, last)
        for k, crossed in sorted(hops.items(), key=lambda hop: when[hop[0]][1]):
            _, t, here, target, _ = self.moves[k]
            said = f"cache op {k}, of {self.program.tensors[t][0]},"
            before, version = Amounts(), list[int]()
            while here != target or not before:
                ways = [name for name in crossed if self.c["channels"][name]["from"] == here]
                require(len(ways) == 1, "{} takes no single way to {}", said, target)
                chunks = sorted(crossed.pop(ways[0]))
                require(
                    sum(size for *_, size in chunks) == self.program.tensors[t][1],
                    "{} moves other bytes over {}",
                    said,
                    ways[0],
                )
                version = version or self.there(
                    t, here, chunks[0][0], max(end for _, end, _ in chunks)
                )
                require(version, "{} copies what {} does not hold", said, here)
                for (begin, came, part), (start, end, size) in zip(
                    before, chunks, strict=bool(before)
                ):
                    require(
                        came <= start and part == size,
                        "{} has a chunk that leaves {} before it is there",
                        said,
                        here,
                    )
                    self.held.append((here, begin, end, size))
                before, here = chunks, self.c["channels"][ways[0]]["to"]
            require(not crossed, "{} takes no single way to {}", said, target)
            self.comes(t, target, max(version), before[0][0], when[k][1])
        return when

    def planned(self) -> None:
        """Cache ops of a tensor take effect in the order of their issue, after their ops; nothing
        else lets a copy go that is of use.
        """
        effect, dropped, runtime = dict[int, int](), set[Any](), self.c["runtime"]
        issue = [0 if after is None else self.times[after][1] for *_, after in self.c["cache_ops"]]
        for k in sorted(range(len(issue)), key=lambda k: (issue[k], k)):
            _, t, tier, target, _ = self.moves[k]
            start, end = self.when.get(k, [max(issue[k], effect.get(t, 0))] * 2)
            require(
                start >= max(issue[k], 0 if runtime else effect.get(t, 0)),
                "cache op {} takes effect before its turn",
                k,
            )
            require(
                target is None or k in self.when or self.useless(t, start),
                "cache op {} moves nothing",
                k,
            )
            stays = target is None and any(
                begin < start < until for begin, until in self.spans[t, tier]
            )
            require(
                runtime or not stays,
                "cache op {} does not let {} go from {}",
                k,
                self.program.tensors[t][0],
                tier,
            )
            effect[t] = end
            dropped.add((t, tier, end, target))
        for (t, tier), spans in self.spans.items() if not runtime else ():
            stale = {
                self.times[w][0]
                for w in self.program.writers[t]
                if self.c["ops"][w]["tier"] != tier
            }
            for _, end in spans:
                known = (
                    end >= self.end
                    or end in stale
                    or (t, tier, end, None) in dropped
                    or self.useless(t, end)
                )
                require(
                    known,
                    "nothing lets {} go from {} at {} ns",
                    self.program.tensors[t][0],
                    tier,
                    end,
                )

    def used(self) -> None:
        """Ops run after those that they follow, for their durations at least, on valid inputs; what
        survives is there at the end.
        """
        for i, (op, (start, end)) in enumerate(zip(self.c["ops"], self.times, strict=True)):
            require(end - start >= op["ns"], "op {} ends before its duration is over", op["name"])
            # also of an op that takes no time
            room = op["workspace"] + sum(self.program.tensors[t][1] for t in self.program.uses[i])
            require(
                room <= self.c["tiers"][op["tier"]]["bytes"],
                "op {} uses more than {} has room for",
                op["name"],
                op["tier"],
            )
            early = all(self.times[p][1] <= start for p in self.program.before[i])
            require(early, "op {} starts before one that it follows has ended", op["name"])
            for t, version in self.program.versions[i].items():
                valid = version in self.there(
                    t, op["tier"], start, start if t in op["writes"] else end
                )
                require(
                    valid,
                    "op {} reads {}: no valid copy is in {}",
                    op["name"],
                    self.program.tensors[t][0],
                    op["tier"],
                )
        homes = defaultdict[int, list[str]](list)
        for t, tier in self.c["initial"]:
            homes[t].append(tier)
        for t, (name, _, survives) in enumerate(self.program.tensors):
            version, repeats = (self.program.writers[t] or [-1])[-1], self.c["repeats"] and homes[t]
            kept = [
                version in self.there(t, tier, self.end, self.end)
                for tier in (homes[t] if repeats else self.c["tiers"])
            ]
            need = survives and (version >= 0 or homes[t])
            require(
                not need or (all(kept) if repeats else any(kept)),
                "{} is not where it has to be at the end of the step",
                name,
            )


def most(parts: Amounts) -> int:
    """The most that parts (start, end, amount) hold at once; what ends at an instant makes room for
    what starts then.
    """
    changes = sorted(
        x for start, end, amount in parts for x in ((start, True, amount), (end, False, -amount))
    )
    return max(accumulate([change for *_, change in changes], initial=0))


def flows(jobs: Amounts, bytes_per_s: int) -> bool:
    """Return whether so many bytes can flow in windows (start, end, bytes): the earliest deadline
    first, which works if anything does.
    """
    waiting, now, jobs = list[tuple[int, int]](), 0, sorted(job for job in jobs if job[2])
    for start, end, size in [*jobs, (max([end for _, end, _ in jobs], default=0), 0, 0)]:
        room = bytes_per_s * (start - now)  # billionths of bytes, as all that waits
        while waiting and room > 0:
            due, left = heapq.heappop(waiting)
            room -= left
            # it has come when what is left of the room begins
            if max(room, 0) < bytes_per_s * (start - due):
                return False
            if room < 0:
                heapq.heappush(waiting, (due, -room))
        heapq.heappush(waiting, (end, size * 10**9))
        now = start
    return len(waiting) == 1  # no job, after the last one


def machine(c: Any, devices: list[DeviceEvents]) -> str:
    """Tiers have room for what they hold, channels have engines and links have bandwidth for what
    moves; the peaks of the tiers.
    """
    said = []
    for name, tier in c["tiers"].items():
        held = defaultdict[int, Amounts](list)
        for of, device in zip(tier["of"], devices, strict=True):
            held[of] += [part[1:] for part in device.held if part[0] == name]
        peak = max(map(most, held.values()))
        require(
            peak <= tier["bytes"],
            "{} holds {:,} B and has room for {:,} B",
            name,
            peak,
            tier["bytes"],
        )
        require(
            peak <= c["peak_bytes"][name],
            "{} holds {:,} B at its peak, not {:,} B",
            name,
            peak,
            c["peak_bytes"][name],
        )
        said.append(f"{peak:,} of {tier['bytes']:,} B in {plain(name)}")
    queue_of = {name: channel.get("queue", name) for name, channel in c["channels"].items()}
    for name in dict.fromkeys(queue_of.values()):
        engines = max(
            most([(s, e, 1) for _, on, _, s, e in device.transfers if queue_of[on] == name])
            for device in devices
        )
        most_at_once = c["channels"][name]["engines"]
        require(engines <= most_at_once, "{} moves more at once than it has engines", name)
    for link in c["links"]:
        jobs = defaultdict[int, Amounts](list)
        for of, device in zip(link["of"], devices, strict=True):
            jobs[of] += [
                (start + c["channels"][on]["latency_ns"], end, size)
                for _, on, size, start, end in device.transfers
                if on in link["carries"]
            ]
        fine = all(flows(own, link["bytes_per_s"]) for own in jobs.values())
        require(
            fine, "{} would have to carry more than {:,} B/s", link["name"], link["bytes_per_s"]
        )
    return ", ".join(said)


def ways(c: Any, weights: dict[int, Fraction], end: str, back: bool) -> dict[str, Fraction]:
    """Return the least cost of a byte's way from each tier to ``end``, or back: on each link its
    weight for each nanosecond that it takes.
    """
    cost = {end: Fraction(0)}
    for _ in c["tiers"]:
        for name, channel in c["channels"].items():
            x, y = (channel["to"], channel["from"]) if back else (channel["from"], channel["to"])
            if y in cost:
                links = [
                    (weight, c["links"][k])
                    for k, weight in weights.items()
                    if name in c["links"][k]["carries"]
                ]
                step = sum(
                    [weight * Fraction(10**9, link["bytes_per_s"]) for weight, link in links],
                    cost[y],
                )
                cost[x] = min(cost.get(x, step), step)
    return cost


def leg(c: Any, program: Program, dual: Any) -> Fraction:
    """Nanoseconds that pass at least from the end of op ``from`` (None: time 0) to the start of
    ``to`` (None: the end), as so much moves.

    What the stream reads and was there lies somewhere at ``from``; what it makes and is needed
    later is somewhere at ``to``. By weak duality: where weights of links are 1 together at most,
    ways cost no more than the time. Tiers have a price for each byte without room.
    """
    a, b = dual["from"], dual["to"]
    weights = weights_of(c, dual)
    come, gone, needed = moving(c, program, a, b)
    cost = {
        (tier, back): ways(c, weights, tier, back)
        for tier in {op["tier"] for op in c["ops"]}
        for back in (False, True)
    }
    repeated = a is b is None and c["repeats"]
    homes = dict(c["homes"]) if a is None and c["at_home"] else {}
    total = Fraction(0)
    for at, moved, back, key in ((a, come, False, "room"), (b, gone, True, "later")):
        price = {tier: Fraction(*dual[key].get(tier, (0, 1))) for tier in c["tiers"]}
        short = without_room(c, program, at, moved)
        total += sum(price[tier] * short[tier] for tier in price)
        for t, tier in moved.items():
            size, each = c["tensors"][t][1], [cost[tier, back]]
            worth = {tier: price[tier] * min(size, short[tier]) for tier in price}
            last = (program.writers[t] or [-1])[-1]
            if repeated and (t, last) in needed:  # what is written goes back to where it was
                each.append(cost[c["ops"][last]["tier"], True])
            places = [homes[t]] if t in homes else list(price)
            total -= sum(worth.values())
            total += min(
                [
                    size * sum(one[tier] for one in each) + worth[tier]
                    for tier in places
                    if all(tier in one for one in each)
                ],
                default=0,
            )
    return total


def weights_of(c: Any, dual: Any) -> dict[int, Fraction]:
    """The weights of links in a leg, whose ends and multipliers have to be possible."""
    a, b = dual["from"], dual["to"]
    require(a is None or b is None or a < b, "a leg ends before it begins")
    multipliers = [one for key in ("weights", "room", "later") for one in dual[key].values()]
    require(all(Fraction(*one) >= 0 for one in multipliers), "a multiplier is below 0")
    weights = {int(k): Fraction(*weight) for k, weight in dual["weights"].items()}
    require(
        sum(weights.values()) <= 1 and (a is b is None or len(streams_of(c, a, b)) == 1),
        "a leg has weights above 1 or goes from stream to stream",
    )
    return weights


def streams_of(c: Any, a: int | None, b: int | None) -> set[str]:
    """The streams that a leg from op ``a`` to op ``b`` is about: theirs, or all."""
    return {c["ops"][i]["stream"] for i in (a, b) if i is not None} or {
        op["stream"] for op in c["ops"]
    }


def moving(
    c: Any, program: Program, a: int | None, b: int | None
) -> tuple[dict[int, str], dict[int, str], set[tuple[int, int]]]:
    """What moves in a leg from op ``a`` to op ``b``: the tensors that come, the tensors that go,
    each with the tier of its op, and the versions that are needed later.
    """
    ops, streams = c["ops"], streams_of(c, a, b)
    ours = [i for i, op in enumerate(ops) if op["stream"] in streams]
    inside = [i for i in ours if (a is None or a < i) and (b is None or i <= b)]
    there = {-1} if a is None else {-1, *[i for i in ours if i <= a]}
    come = {
        t: ops[i]["tier"]
        for i in inside
        for t, v in program.versions[i].items()
        if v in there and (a is None or t not in program.uses[a])
    }
    needed = {
        (t, v) for i in ours if b is not None and i > b for t, v in program.versions[i].items()
    }
    needed |= {
        (t, program.writers[t][-1])
        for t, (_, _, survives) in enumerate(c["tensors"])
        if survives and program.writers[t]
    }
    gone = {
        t: ops[i]["tier"]
        for i in inside
        if b is not None and i < b
        for t in ops[i]["writes"]
        if (t, i) in needed and t not in program.uses[b]
    }
    return come, gone, needed


def without_room(c: Any, program: Program, at: int | None, moved: dict[int, str]) -> dict[str, int]:
    """By tier, the bytes of what moves that it has no room for beside op ``at``: so many are in
    other tiers at least.
    """
    held = sum(c["tensors"][t][1] for t in moved)
    short = {name: max(0, held - tier["bytes"]) for name, tier in c["tiers"].items()}
    if at is not None:
        op = c["ops"][at]
        taken = op["workspace"] + sum(c["tensors"][t][1] for t in program.uses[at])
        short[op["tier"]] = max(0, held + taken - c["tiers"][op["tier"]]["bytes"])
    return short


def bound(c: Any, program: Program) -> int:
    """Nanoseconds that a path takes at least: of ops, each of which follows the one before, and
    legs between them.
    """
    total, last = Fraction(0), None
    for k, step in enumerate(c["path"]):
        if isinstance(step, dict):
            fits = step["from"] == last and (step["to"] is not None or k == len(c["path"]) - 1)
            total += leg(c, program, step)
        else:
            fits = k == 0 or (
                last["to"] == step if isinstance(last, dict) else last in program.before[step]
            )
            total += c["ops"][step]["ns"]
        require(fits, "step {} of the path does not follow the one before", k)
        last = step
    return -int(-total // 1)


def natural(text: str) -> int:
    """A number of a certificate, which is whole and at least 0."""
    if not text.isdecimal():
        raise ValueError(f"expected a whole number of at least 0, got {text[:20]}")
    return int(text)


def prove(text: str) -> str:
    """Return the claims that a certificate proves, in a few lines; raises :class:`FalseClaim`."""
    file = json.loads(text, parse_int=natural, parse_float=natural, parse_constant=natural)
    c = {**file["given"], **file["plan"], **file["claims"]}
    require(
        len(c) == len(file["given"]) + len(file["plan"]) + len(file["claims"]),
        "something is said twice",
    )
    digest = hashlib.sha256(json.dumps(file["given"], sort_keys=True).encode()).hexdigest()
    require(
        digest == file["given_sha256"] and file["hosim_certificate"] == 1,
        "what is given has another SHA-256, or version 1 is not meant",
    )
    program = Program(c)
    devices = [DeviceEvents(c, program, events) for events in file["devices"]]
    for device in devices:
        device.used()
        device.planned()
    peaks, least = machine(c, devices), bound(c, program)
    end = max(device.end for device in devices)
    require(
        end == c["makespan_ns"],
        "the last event ends at {:,} ns, not at {:,} ns",
        end,
        c["makespan_ns"],
    )
    require(
        least >= c["lower_bound_ns"],
        "the path takes {:,} ns at least, not {:,} ns",
        least,
        c["lower_bound_ns"],
    )
    require(
        not c["at_home"] or all(home in c["initial"] for home in c["homes"]),
        "the plan does not start at home what its bound says",
    )
    slow = sum(
        until - start - op["ns"]
        for device in devices
        for op, (start, until) in zip(c["ops"], device.times, strict=True)
    )
    which = f"{', which restore what they change' * c['repeats']}{', with what is below at home' * c['at_home']}"
    return f"""{plain(c["policy"])} on {plain(c["hardware"])}, {plain(c["workload"])}: {len(c["ops"])} ops, {len(devices)} devices
proved: order of ops, valid inputs, nothing lost that is needed, room, engines, bandwidth{", cache ops of the plan" * (not c["runtime"])}
proved: makespan {end:,} ns; peaks {peaks}
proved: plans of these ops in this order{which}, take {least:,} ns at least; the gap is {end - least:,} ns
given: sizes, durations of ops alone, capacities, bandwidths, latencies: SHA-256 {digest}
not proved: that ops have to take {slow:,} ns more than alone, and the order of queues"""


def main() -> int:
    """Prints what the file proves, or what is false in it; the exit code."""
    if len(sys.argv) != 2:
        print("usage: python check_certificate.py FILE", file=sys.stderr)
        return 2
    try:
        with (gzip.open if sys.argv[1].endswith(".gz") else open)(
            sys.argv[1], "rt", encoding="utf-8"
        ) as file:
            print(prove(file.read()))
    except FalseClaim as error:
        print(f"false: {error}")
        return 1
    except (
        OSError,
        EOFError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        print(f"no certificate: {type(error).__name__}: {plain(str(error))}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
