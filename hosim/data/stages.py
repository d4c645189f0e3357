"""The result of a pipeline step whose stages are replayed together: frozen data."""

from collections.abc import Iterator
from dataclasses import dataclass

from hosim.result import Result


@dataclass(frozen=True)
class StagesResult:
    """The result of one step of all stages of a pipeline.

    Parameters
    ----------
    whole
        The result of the machine, as of several devices: that of the stage that ends last, with the
        peaks of tiers that stages share.
    bubble_ns
        For how long each stage waits for others, until the end of the step.
    replay_s
        How long the replay took.

    References
    ----------
    ``docs/contract.md``, rule 21, defines stages, their messages and the bubble.

    Examples
    --------
    >>> import hosim
    >>> a, b = hosim.GraphBuilder("a"), hosim.GraphBuilder("b")
    >>> _ = a.tensor("x", 30), a.op("f", "matmul", outputs=["x"], duration_ns=50)
    >>> _ = a.op("out", "send", inputs=["x"], stream="comm", duration_ns=10, message="x")
    >>> _ = (
    ...     b.tensor("x", 30),
    ...     b.op("in", "recv", outputs=["x"], stream="comm", duration_ns=10, message="x"),
    ... )
    >>> _ = b.op("g", "matmul", inputs=["x"], duration_ns=50)
    >>> step = hosim.replay_stages([hosim.Plan(graph.build()) for graph in (a, b)], "toy")
    >>> step.step_ns, step.bubble_ns
    (110, (50, 50))
    """

    whole: Result
    bubble_ns: tuple[int, ...]
    replay_s: float = 0.0

    @property
    def stages(self) -> tuple[Result, ...]:
        """The result of each stage."""
        return self.whole.by_device

    @property
    def feasible(self) -> bool:
        """Return whether all stages fit."""
        return self.whole.feasible

    @property
    def error(self) -> str | None:
        """Return the error of the stage that did not fit, if one did not."""
        return self.whole.error

    @property
    def step_ns(self) -> int | None:
        """Return the duration of the step: until the last stage has ended."""
        return self.whole.makespan_ns

    @property
    def bubble(self) -> float | None:
        """The share of the time of all stages in which they wait for others; ``None`` if they do
        not fit.
        """
        if not self.step_ns:
            return None if self.step_ns is None else 0.0
        return sum(self.bubble_ns) / (len(self.bubble_ns) * self.step_ns)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on the figures of all stages, each once."""
        return tuple(dict.fromkeys([line for stage in self.stages for line in stage.notes]))

    def rows(self) -> Iterator[dict[str, object]]:
        """A row for each stage: nanoseconds, and the peak bytes of each tier."""
        for stage, (result, bubble) in enumerate(zip(self.stages, self.bubble_ns, strict=True)):
            stalls = {f"{cause}_stall_ns": ns for cause, ns in result.stall_ns.items()}
            peaks = {f"peak_{tier}_bytes": size for tier, size in result.peak_bytes.items()}
            yield {
                "stage": stage,
                "workload": result.workload,
                "policy": result.policy,
                "makespan_ns": result.makespan_ns,
                "bubble_ns": bubble if self.feasible else None,
                "busy_ns": result.busy_ns,
                **stalls,
                **peaks,
            }
