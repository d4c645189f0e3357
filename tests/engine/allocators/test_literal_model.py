"""The caching allocator next to one written down literally (`naive_device`), step by step:
addresses, segments, what goes back and when.
"""

import random
from collections import Counter

import pytest
from naive_device import MIB, NaiveDevice

from hosim.engine.allocators import CachingAllocator, Driver


class Fed(Driver):
    """Gives the addresses that the literal model's driver gave, and notes what comes and goes."""

    def __init__(self, model: NaiveDevice) -> None:
        super().__init__()
        self.model = model
        self.given: list[dict] = []
        self.bases: set[int] = set()
        self.seen: Counter = Counter()

    def allocate(self, size, stream, pool_id):
        entry = next(
            e
            for e in self.given
            if e["action"] == "segment_alloc" and (e["size"], e["stream"]) == (size, stream)
        )
        self.seen["segment_alloc", entry["addr"], size] += 1
        return entry["addr"]

    def reserve(self, size, stream, pool_id):
        small = (
            size % (20 * MIB) != 0
        )  # 9/8 of the capacity in pages of 2 or of 20 MiB, which tests choose so that they differ
        bases = [
            s["base"]
            for s in self.model.segments
            if (s["stream"], s["small"]) == (stream, small) and s["base"] not in self.bases
        ]
        self.bases.add(bases[0])
        return bases[0]

    def free(self, address, size):
        self.seen["segment_free", address, size] += 1

    def map(self, address, size):
        self.seen["segment_map", address, size] += 1

    def unmap(self, address, size):
        self.seen["segment_unmap", address, size] += 1


def any_size(choose):
    return choose.randrange(1, choose.choice([4096, MIB, 10 * MIB, 64 * MIB]))


OPTIONS = {
    "plain": {},
    "expandable": {"expandable": True},
    "split limit": {"split_limit": 24 * MIB},
    "divisions": {"divisions": 4},
    "all but expandable": {"split_limit": 40 * MIB, "divisions": 8},
    "expandable with divisions": {"expandable": True, "divisions": 2},
}


def side_by_side(options, seed, capacity, steps):
    """A random program on both; every step is compared. Returns how often memory ran out, and what
    went back to the driver.
    """
    choose = random.Random(seed)
    model = NaiveDevice(seed, capacity, **options)
    driver = Fed(model)
    allocator = CachingAllocator(
        capacity,
        expandable=options.get("expandable", False),
        max_split_bytes=options.get("split_limit"),
        roundup_power2_divisions=options.get("divisions", 0),
        driver=driver,
    )
    live: list[int] = []
    waiting: list[int] = []
    for step in range(steps):
        before = len(model.trace)
        action = choose.random()
        if action < 0.55 or not live:
            size, stream = any_size(choose), choose.randrange(2)
            expected = model.malloc(size, stream)
            driver.given = model.trace[before:]
            assert allocator.try_malloc(size, stream) == expected, step
            if expected is not None:
                live.append(expected)
            waiting = [a for a in waiting if allocator.waits(a)]
        elif action < 0.9:
            address = live.pop(choose.randrange(len(live)))
            elsewhere = choose.random() < 0.2
            model.free(address, used_elsewhere=elsewhere)
            if elsewhere:
                allocator.record_stream(address, 9)
                waiting.append(address)
            allocator.free(address)
        elif action < 0.97:
            if waiting:
                address = waiting.pop(choose.randrange(len(waiting)))
                model.complete(address)
                allocator.complete(address)
        else:
            model.empty_cache()
            allocator.empty_cache()
            waiting = []
        moved = Counter(
            (e["action"], e["addr"], e["size"])
            for e in model.trace[before:]
            if e["action"].startswith("segment")
        )
        assert driver.seen == moved, step
        driver.seen.clear()
        assert allocator.stats.reserved_bytes == model.reserved()
    return model


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("seed", range(6))
def test_every_step_is_that_of_the_literal_model(name, seed):
    model = side_by_side(OPTIONS[name], seed, 300 * MIB, 300)
    actions = Counter(entry["action"] for entry in model.trace)
    assert model.retries
    assert actions["alloc"] > 80
    assert actions["segment_unmap" if OPTIONS[name].get("expandable") else "segment_free"] >= 3
