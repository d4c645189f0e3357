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
