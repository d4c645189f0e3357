"""The runner of a Dask cluster against a client that is made up: what is sent when, what is let go,
and what is cancelled.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hosim.errors import HosimError, InputError
from hosim.study.runs import cluster, solve


class Answers:
    """What comes back from a cluster of one worker: in the order in which it was asked."""

    def __init__(self, futures: list[Any], loop: object) -> None:
        self.futures, self.loop = list(futures), loop

    def add(self, future: Any) -> None:
        self.futures.append(future)

    def is_empty(self) -> bool:
        return not self.futures

    def next_batch(self, block: bool) -> list[Any]:
        assert not block
        return [self.futures.pop(0)]


class Future(SimpleNamespace):
    """Of a task: its row, or why there is none."""

    def result(self) -> dict[str, object]:
        return {"row of": self.task.key}

    def exception(self) -> Exception:
        return RuntimeError("the worker died\nthree times")

    def release(self) -> None:
        self.released = True

    def done(self) -> bool:
        return self.task.key == "7"


class FakeClient:
    """A cluster of two workers, of one thread and of none.

    ``broken`` are the keys of tasks that kill theirs, ``lost`` how often the result of a task goes
    with its worker.
    """

    status = "running"

    def __init__(
        self,
        broken: tuple[str, ...] = (),
        threads: tuple[int, ...] = (1, 0),
        lost: dict[str, int] | None = None,
    ) -> None:
        self.broken, self.threads, self.lost, self.loop = broken, threads, lost or {}, object()
        self.sent: list[Future] = []
        self.cancelled: list[str] = []

    def nthreads(self) -> dict[str, int]:
        return {f"worker{i}": count for i, count in enumerate(self.threads)}

    def submit(self, function: object, task: Any, key: str, pure: bool) -> Future:
        again = sum(future.task is task for future in self.sent)
        assert (function, key, pure) == (solve, f"hosim-{task.key}" + again * "-again", False)
        status = (
            "lost"
            if again < self.lost.get(task.key, 0)
            else "error"
            if task.key in self.broken
            else "finished"
        )
        self.sent.append(Future(task=task, key=key, status=status, released=False))
        return self.sent[-1]

    def cancel(self, futures: list[Future]) -> None:
        self.cancelled = [future.task.key for future in futures]


class FakeTask(SimpleNamespace):
    """Has a key, and a row for the error that ends it."""

    def failed(self, error: str) -> dict[str, str]:
        return {"failed": self.key, "error": error}


TASKS: list[Any] = [FakeTask(key=str(i), point={}) for i in range(9)]


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("distributed")
    module.__spec__ = ModuleSpec("distributed", None)
    monkeypatch.setitem(sys.modules, "distributed", module)
    monkeypatch.setattr(module, "as_completed", Answers, raising=False)
    return module


def test_a_cluster_is_sent_three_tasks_a_thread_ahead(distributed: ModuleType) -> None:
    """Three at first, and one more for each answer, whose future is let go; a task that kills its
    workers is a row with an error.
    """
    client = FakeClient(broken=("1",))
    rows = cluster(client)(TASKS)  # type: ignore[arg-type]
    assert next(rows) == {"row of": "0"}
    assert [(future.task.key, future.released) for future in client.sent] == [
        ("0", True),
        ("1", False),
        ("2", False),
        ("3", False),
    ]
    assert next(rows) == {
        "failed": "1",
        "error": "worker died: RuntimeError: the worker died three times",
    }
    assert [row["row of"] for row in rows] == ["2", "3", "4", "5", "6", "7", "8"]
    assert [future.task.key for future in client.sent] == [task.key for task in TASKS]
    assert all(future.released for future in client.sent)
    assert client.cancelled == []
    idle = FakeClient(threads=())  # workers may still join
    next(cluster(idle)(TASKS))  # type: ignore[arg-type]
    assert len(idle.sent) == 3 + 1


def test_a_task_whose_result_goes_with_its_worker_is_sent_again_three_times(
    distributed: ModuleType,
) -> None:
    """It has not failed: nobody had fetched its row yet. A fourth time, it is a row with an
    error.
    """
    client = FakeClient(lost={"1": 3, "2": 4})
    rows = list(cluster(client)(TASKS))  # type: ignore[arg-type]
    assert {"row of": "1"} in rows
    assert {"failed": "2", "error": "worker died: its result was lost"} in rows
    assert sorted(str(next(iter(row.values()))) for row in rows) == [task.key for task in TASKS]
    assert [future.key for future in client.sent if future.task.key == "1"] == [
        "hosim-1" + again * "-again" for again in range(4)
    ]
    assert len(client.sent) == len(TASKS) + 3 + 3


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (
            "running",
            ConnectionResetError("reset by peer"),
            "^the Dask scheduler has gone; start one",
        ),  # not noticed by the client yet
        ("closed", RuntimeError("the client is closed"), "^the Dask scheduler has gone; start one"),
        ("running", RuntimeError("an error of ours"), "^an error of ours$"),
    ],
)
def test_a_connection_that_breaks_while_the_scheduler_is_asked(
    distributed: ModuleType, status: str, error: Exception, expected: str
) -> None:
    """Dask raises an OSError, or one of its own of a client that has closed: neither is an error of
    stdout or of hosim's.
    """

    def nthreads() -> dict[str, int]:
        raise error

    client = SimpleNamespace(status=status, nthreads=nthreads)
    with pytest.raises(HosimError if expected.startswith("^the") else RuntimeError, match=expected):
        list(cluster(client)(TASKS))  # type: ignore[arg-type]


def test_what_a_cluster_has_not_begun_is_cancelled_when_a_sweep_stops(
    distributed: ModuleType,
) -> None:
    client = FakeClient(threads=(1, 2))
    rows = cluster(client)(TASKS)  # type: ignore[arg-type]
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert client.cancelled == ["1", "2", "3", "4", "5", "6", "8"]  # 7 is done


def test_a_client_of_hosim_s_own_is_closed_and_nobody_else_s_default(
    distributed: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    client = FakeClient()
    monkeypatch.setattr(client, "close", lambda: made.append("closed"), raising=False)

    def connected(address: str, **how: object) -> FakeClient:
        made.append((address, how))
        if address == "tcp://nowhere:1":
            raise OSError("timed out\nafter 10 s " + "x" * 100)
        return client

    monkeypatch.setattr(distributed, "Client", connected, raising=False)
    assert list(cluster("tcp://host:8786")(TASKS)) == [{"row of": task.key} for task in TASKS]
    assert made == [("tcp://host:8786", {"timeout": "10s", "set_as_default": False}), "closed"]
    with pytest.raises(InputError) as refused:
        list(cluster("tcp://nowhere:1")(TASKS))
    reason = ("timed out after 10 s " + "x" * 100)[:100]
    assert (
        str(refused.value)
        == f"tcp://nowhere:1: no Dask scheduler answers there ({reason}); expected an address "
        "such as tcp://host:8786"
    )


@pytest.mark.parametrize(
    ("call", "error", "status"),
    [
        ("nthreads", ConnectionResetError(104, "reset"), "running"),
        ("submit", RuntimeError("closed"), "closed"),
    ],
)
def test_a_scheduler_that_goes_at_the_first_question(
    call: str,
    error: Exception,
    status: str,
    distributed: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raises(*given: object, **named: object) -> None:
        raise error

    client = FakeClient()
    monkeypatch.setattr(client, call, raises, raising=False)
    monkeypatch.setattr(client, "status", status, raising=False)
    with pytest.raises(
        HosimError,
        match=r"^the Dask scheduler has gone; start one and run the same command again, which "
        r"continues$",
    ):
        list(cluster(client)(TASKS))


class LateAnswers(Answers):
    """Nothing has come back when it is asked first."""

    asked = 0

    def next_batch(self, block: bool) -> list[Any]:
        self.asked += 1
        return [] if self.asked == 1 else super().next_batch(block)


def test_it_waits_for_what_has_not_come_unless_the_client_is_closed(
    distributed: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "as_completed", LateAnswers, raising=False)
    rows = list(cluster(FakeClient())(TASKS))
    assert [row["row of"] for row in rows] == [task.key for task in TASKS]
    gone = FakeClient()
    gone.status = "closed"
    with pytest.raises(HosimError, match="the Dask scheduler has gone"):
        list(cluster(gone)(TASKS))
    monkeypatch.setattr(distributed, "as_completed", Answers, raising=False)
    gone.sent.clear()
    assert len(list(cluster(gone)(TASKS))) == len(TASKS)  # what has come counts
