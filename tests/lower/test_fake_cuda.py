"""The stand-in for torch.cuda is as strict as torch: each rule that it holds is broken here
once.
"""

import pytest

torch = pytest.importorskip("torch")

import fake_cuda  # noqa: E402
from fake_cuda import Launched  # noqa: E402

MIB = 1 << 20


@pytest.fixture
def fake(monkeypatch):
    return fake_cuda.install(
        monkeypatch, capacity=64, scale=MIB, op_ns=1000, ns_per_byte=1, launch_ns=0
    )


def test_only_events_made_for_it_have_times(fake):
    one, two = fake.Event(), fake.Event(enable_timing=True)
    one.record(fake.main)
    with pytest.raises(
        ValueError, match="Both events must be created with argument 'enable_timing=True'"
    ):
        one.elapsed_time(two)
    with pytest.raises(ValueError, match="Both events must be recorded"):
        fake.Event(enable_timing=True).elapsed_time(two)
    two.record(fake.main)
    fake.main.launch(1_500_000)
    three = fake.Event(enable_timing=True)
    three.record(fake.main)
    with pytest.raises(RuntimeError, match="Both events must be completed"):
        two.elapsed_time(three)
    fake.synchronize()
    assert two.elapsed_time(three) == 1.5


def test_a_block_that_a_copy_reads_is_not_reused_before_the_copy_ends(fake):
    """Of 64 MiB, 30 are freed while their copy goes down, a nanosecond a byte: the next 30 lie
    elsewhere, and a third block waits.
    """
    copies, host = fake.Stream(), torch.empty(30, dtype=torch.uint8, pin_memory=True)
    with Launched(fake):
        one = torch.ones(30, dtype=torch.uint8)
        copies.wait_stream(fake.main)
        with fake.stream(copies):
            host.copy_(one, non_blocking=True)
        fake.record_stream(one, copies)
        one.untyped_storage().resize_(0)
        assert (fake.memory_allocated(), fake.memory_reserved()) == (0, 30)
        two = torch.ones(30, dtype=torch.uint8)
        assert fake.memory_reserved() == 60
        assert fake.now_ns < MIB
        three = torch.ones(
            30, dtype=torch.uint8
        )  # torch waits for the copy, and gives back what is cached
        assert fake.now_ns > 30 * MIB
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(30, dtype=torch.uint8)
        assert len(two) == len(three) == 30


def test_what_a_copy_reads_is_not_freed_without_a_word(fake):
    copies, host = fake.Stream(), torch.empty(8, dtype=torch.uint8, pin_memory=True)

    def forget():
        with Launched(fake):
            one = torch.ones(8, dtype=torch.uint8)
            copies.wait_stream(fake.main)
            with fake.stream(copies):
                host.copy_(one, non_blocking=True)
            del one

    with pytest.raises(AssertionError, match="freed under a copy"):
        forget()


def test_parts_of_host_memory_are_apart_and_the_same_part_is_a_race(fake):
    copies, host = fake.Stream(), torch.empty(8, dtype=torch.uint8, pin_memory=True)
    with Launched(fake):
        one = torch.ones(4, dtype=torch.uint8)
        copies.wait_stream(fake.main)
        with fake.stream(copies):
            host[:4].copy_(one, non_blocking=True)
        host[4:].copy_(one)
        with pytest.raises(AssertionError, match="a race"):
            host[3:7].copy_(one)
        fake.synchronize()
        host[3:7].copy_(one)


def test_pinned_memory_takes_a_power_of_two(fake):
    kept = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in (1025, 4096)]
    assert fake.pinned_bytes == 2048 + 4096
    del kept
    assert fake.pinned_bytes == 2048 + 4096  # torch keeps it


def test_host_memory_that_is_not_pinned_is_no_copy_beside_ops(fake):
    copies, one, two = (
        fake.Stream(),
        torch.ones(4, dtype=torch.uint8),
        torch.ones(4, dtype=torch.uint8),
    )
    with Launched(fake), fake.stream(copies), pytest.raises(AssertionError, match="pageable"):
        two.copy_(one, non_blocking=True)


def test_an_allocation_that_is_refused_draws_nothing(fake):
    with Launched(fake):
        torch.manual_seed(1)
        wanted = torch.rand(3)
        torch.manual_seed(1)
        fake.refused = 1
        with pytest.raises(torch.OutOfMemoryError):
            torch.rand(3)
        assert torch.equal(torch.rand(3), wanted)


def captured(fake, work, pool=None, generator=None):
    """The graph of some work, captured on a stream of its own, and its pool."""
    pool, graph = pool or fake.MemPool(), fake.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with fake.stream(fake.Stream()):
        graph.capture_begin(pool=pool.id)
        try:
            work()
        finally:
            graph.capture_end()
    return graph, pool


def test_a_graph_runs_the_same_ops_on_the_same_addresses_by_one_launch(fake):
    def work():
        between = one * 2
        two.copy_(between + 1)

    with Launched(fake):
        one, two = torch.ones(4), torch.zeros(4)
        graph, pool = captured(fake, work)
        assert torch.equal(two, torch.zeros(4))  # nothing has run
        one.fill_(3)
        before = fake.main.clock.get(fake.main.number, 0)
        graph.replay()
        assert fake.main.clock[fake.main.number] == before + 1
        assert torch.equal(two, torch.full((4,), 7.0))
        assert pool.allocator.stats.allocated_bytes == 0 < fake.memory_reserved(fake.used)
        one.untyped_storage().resize_(0)
        with pytest.raises(AssertionError, match="memory that is gone"):
            graph.replay()


def test_a_graph_and_a_copy_of_its_bytes_are_ordered(fake):
    copies, host = fake.Stream(), torch.empty(4, pin_memory=True)
    one = torch.ones(4)
    with Launched(fake):
        graph, _pool = captured(fake, lambda: one.mul_(2))
        graph.replay()
        with fake.stream(copies), pytest.raises(AssertionError, match="a race"):
            host.copy_(one, non_blocking=True)


@pytest.mark.parametrize(
    "work",
    [
        lambda fake, x: fake.synchronize(),
        lambda fake, x: fake.Event().query(),
        lambda fake, x: fake.current.wait_stream(fake.main),
        lambda fake, x: x.nonzero(),
        lambda fake, x: x.sum().item(),
        lambda fake, x: torch.empty(4, pin_memory=True).copy_(x, non_blocking=True),
    ],
)
def test_what_waits_for_the_device_or_takes_the_hosts_memory_is_not_captured(fake, work):
    x = torch.ones(4)
    with Launched(fake), pytest.raises(RuntimeError, match="not permitted when stream is captur"):
        captured(fake, lambda: work(fake, x))


def test_a_generator_has_to_be_registered(fake):
    x, generator = torch.ones(4), torch.Generator().manual_seed(1)

    def work():
        x.uniform_(generator=generator)

    with Launched(fake):
        with pytest.raises(RuntimeError, match="generator"):
            captured(fake, work)
        graph, _pool = captured(fake, work, generator=generator)
        graph.replay()
        assert torch.equal(x, torch.ones(4).uniform_(generator=generator.manual_seed(1)))


def test_the_default_stream_captures_nothing(fake):
    with pytest.raises(RuntimeError, match="non-default stream"):
        fake.CUDAGraph().capture_begin(pool=fake.MemPool().id)
