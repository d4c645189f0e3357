"""Measured beside replayed: a model of equal layers, its weights streamed over a throttled channel.

``python tests/lower/agreement.py`` measures with real matrix products for some seconds (bar: within
10 %) and prints a table. The times of ops are those of the very run that is held against the
replay, so that a machine which others use too does not blur what is compared: transfers, waits and
their order. With ``--calibrated`` they are those of runs before it, with everything resident: a
prediction, on a machine that nobody else uses.
"""

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2])]

import torch
from layers import Layers, lowered, machine, program_of, streamed, values_of

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.on_torch.lower import Executor
from hosim.on_torch.lower.devices import CpuDevice
from hosim.on_torch.lower.tiers import measured


class Steady(Executor):
    """Every op takes ``op_ns``, mostly asleep: as steady as a GPU's kernels, whatever else the
    machine does.
    """

    op_ns = 0

    def _call_op(self, node):
        start = time.perf_counter_ns()
        value = super()._call_op(node)
        if self.op_ns and node.name in self.lowered.op_of:
            time.sleep(max(0, self.op_ns - (time.perf_counter_ns() - start)) / 1e9)
        return value


@dataclass
class Case:
    """A model of ``layers`` square weights, what its plan does, and the channel's rate."""

    layers: int
    width: int
    batch: int
    rate: float
    lead: int
    activations: bool
    op_ns: int = 0
    latency_ns: int = 1_000_000

    def run(self, calibrated=False):
        """One run: the plan, the replay with the times of ops that were measured, and what was
        measured.

        Those of the run itself or, if ``calibrated``, medians of five runs before it that moved
        nothing.
        """
        torch.set_num_threads(1)
        model, x = Layers(self.layers, self.width), torch.randn(self.batch, self.width)
        program = program_of(model, x)
        values = values_of(program, model, x)
        hardware = machine(int(self.rate), self.latency_ns)
        plan = streamed(program, lead=self.lead)
        if not self.activations:
            kept = tuple(
                c for c in plan.cache_ops if program.graph.tensors[c.tensor].kind == "parameter"
            )
            plan = replace(plan, cache_ops=kept)
        before = self._resident(program, hardware, values) if calibrated else None
        with Steady(
            lowered(program, plan), hardware, CpuDevice(hardware, throttle=True)
        ) as executor:
            executor.op_ns = self.op_ns
            executor.place({n: v for n, v in values.items() if v is not x})
            inputs = {n: v for n, v in values.items() if v is x}
            executor.run(inputs)
            executor.run(inputs, record=True)
            timeline = executor.timeline
        durations = before or taken(timeline)
        ops = zip(program.graph.ops, durations, strict=True)
        graph = replace(
            program.graph, ops=tuple(replace(op, duration_ns=round(ns)) for op, ns in ops)
        )
        timed = replace(plan, graph=graph)
        result = replay(timed, hardware, record=True)
        return timed, result, measured(result, timeline)

    def _resident(self, program, hardware, values):
        """The median time of each op where nothing moves."""
        runs = []
        with Steady(
            lowered(program, Plan(program.graph)), hardware, CpuDevice(hardware, throttle=True)
        ) as executor:
            executor.op_ns = self.op_ns
            for _ in range(6):
                executor.run(values, record=True)
                runs.append(taken(executor.timeline))
        return [
            median(times) for times in zip(*runs[1:], strict=True)
        ]  # the first one takes memory from the system


def taken(timeline):
    """Nanoseconds of each op."""
    return [
        end - start for start, end in zip(timeline.op_start_ns, timeline.op_end_ns, strict=True)
    ]


def hidden(result, plan):
    """The cache ops of tensors for which no op waits, but for a hundredth of the whole: what
    threads take to wake up.
    """
    most = result.makespan_ns // 100
    stalled = {
        stall.op
        for stall in result.timeline.stalls
        if stall.cause == "transfer" and stall.stall_ns > most
    }
    waiting = {t for op in stalled for t in plan.graph.ops[op].uses}
    return {x.cache_op for x in result.timeline.transfers if x.tensor not in waiting}


def main():
    cases = {
        "weights 2 ahead, just not hidden": Case(48, 1024, 1024, 100e6, 2, False),
        "weights 3 ahead, hidden": Case(64, 1024, 1024, 400e6, 3, False),
        "weights 1 ahead": Case(24, 1024, 1024, 60e6, 1, False),
        "activations down and back": Case(24, 1024, 1024, 240e6, 1, True),
        "twice too slow": Case(24, 1024, 1024, 30e6, 2, False),
    }
    print(
        f"{'case':34} {'measured s':>10} {'replay s':>9} {'off':>7} {'stall s':>8} "
        f"{'replay s':>9} {'off':>7}  hidden too"
    )
    for name, case in cases.items():
        runs = []
        for _ in range(3):
            plan, result, real = case.run("--calibrated" in sys.argv)
            runs.append((real.makespan_ns / result.makespan_ns, plan, result, real))
        _, plan, result, real = sorted(runs, key=lambda run: run[0])[1]
        stall, wanted = real.stall_ns["transfer"], result.stall_ns["transfer"]
        both = hidden(result, plan) & hidden(real, plan)
        off = f"{stall / wanted - 1:+7.1%}" if wanted > result.makespan_ns // 50 else "      -"
        print(
            f"{name:34} {real.makespan_ns / 1e9:10.3f} {result.makespan_ns / 1e9:9.3f} "
            f"{real.makespan_ns / result.makespan_ns - 1:+7.1%}"
            f" {stall / 1e9:8.3f} {wanted / 1e9:9.3f} {off}  {len(both)} of "
            f"{len(hidden(result, plan))}"
        )


if __name__ == "__main__":
    main()
