"""A step of the decoder as hosim captures it, and its runs by the executor: with everything
resident, or under a plan.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hosim.cache_plan import Plan
from hosim.data.allocator_blocks import in_blocks
from hosim.hardware import Hardware
from hosim.on_torch.gpu import functional_decoder, profiled
from hosim.on_torch.gpu.functional_decoder import CONFIGS, Config
from hosim.on_torch.gpu.gpu_seam import Device
from hosim.on_torch.gpu.profiled import sampled
from hosim.on_torch.lower import Executor, TorchProgram, capture, capture_training, insert
from hosim.on_torch.lower.devices import CpuDevice, CudaDevice
from hosim.result import Timeline

WARM_UP = 2
"""Steps that are run before any that is timed."""


@dataclass(frozen=True)
class Work:
    """The computation of one captured step."""

    config: str
    mode: str
    length: int
    batch: int
    seed: int

    @property
    def name(self) -> str:
        """The beginning of its folders' names."""
        return f"{self.config}-{self.mode}-{self.length}"


@dataclass(frozen=True)
class CapturedStep:
    """A captured step with the tensors and the optimizer's numbers that it holds, and one call's
    inputs, by placeholder.
    """

    program: TorchProgram
    held: Mapping[str, Any]
    inputs: Mapping[str, Any]
    renew: Callable[[], None] = field(default=lambda: None, repr=False)
    """Gives what is held the contents that it had when the step was captured; capturing takes much
    longer.
    """

    @property
    def held_bytes(self) -> int:
        """Bytes of the allocator's blocks of all that the step holds and is given, in multiples of
        512 B, when all is on the device.
        """
        tensors = [
            value
            for value in (*self.held.values(), *self.inputs.values())
            if isinstance(value, torch.Tensor)
        ]
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
        return sum(map(in_blocks, storages.values()))


@dataclass(frozen=True)
class Ran:
    """Runs of a step: host times of the timed ones, peaks of the allocator (``None`` on a CPU), and
    one timeline for each recorded one.

    ``digest`` is that of the results of the first runs, ``at_rest_bytes`` what was allocated
    between two runs.
    """

    step_ns: tuple[int, ...]
    peaks: Mapping[str, int] | None
    at_rest_bytes: int | None
    clocks: tuple[Mapping[str, str], ...]
    timelines: tuple[Timeline, ...]
    digest: str


class DecoderModule(nn.Module):  # type: ignore[misc]
    """The decoder with each weight as a parameter of its own, as models are written. ``forward``
    gives the logits of the last token.
    """

    def __init__(self, config: Config, length: int, seed: int) -> None:
        super().__init__()
        self.config = config
        shapes = (
            config.embedding_shapes,
            *[config.layer_shapes] * config.layers,
            config.head_shapes,
        )
        self.groups = nn.ModuleList(
            nn.ParameterList(
                nn.Parameter(torch.empty(shape, dtype=functional_decoder.DTYPE)) for shape in group
            )
            for group in shapes
        )
        self.seed = seed
        self.initialize()
        cosines, sines = functional_decoder.rotary(config, length, self.groups[0][0].device)
        self.register_buffer("cosines", cosines)
        self.register_buffer("sines", sines)

    def initialize(self) -> None:
        """Draw all weights from the seed."""
        with torch.no_grad():
            for position, group in enumerate(self.groups):
                functional_decoder.initialize(list(group), self.seed + position)

    def forward(self, tokens: Any) -> Any:
        """Logits ``[batch, 1, vocabulary]`` after tokens ``[batch, length]``."""
        return functional_decoder.logits(list(self.groups[-1]), self._hidden(tokens)[:, -1:])

    def loss(self, tokens: Any, targets: Any) -> Any:
        """Cross entropy of all tokens against ``targets`` ``[batch, length]``."""
        return functional_decoder.loss(list(self.groups[-1]), self._hidden(tokens), targets)

    def _hidden(self, tokens: Any) -> Any:
        x = functional_decoder.embed(list(self.groups[0]), tokens)
        for group in self.groups[1:-1]:
            x = functional_decoder.layer(self.config, list(group), x, (self.cosines, self.sines))[0]
        return x


def captured(work: Work, device: Any) -> CapturedStep:
    """The step with its weights and inputs on a device of torch."""
    config = CONFIGS[work.config]
    with torch.device(device):
        model = DecoderModule(config, work.length, work.seed)
    generator = torch.Generator().manual_seed(work.seed)
    drawn = torch.randint(config.vocabulary, (work.batch, work.length + 1), generator=generator)
    tokens, targets = (part.clone().to(device) for part in (drawn[:, :-1], drawn[:, 1:]))
    name = f"decoder-{work.name}"
    if work.mode == "prefill":
        with torch.no_grad():
            exported = torch.export.export(model.eval(), (tokens,))
        program = capture(exported, name=name)
        own = {**exported.state_dict, **exported.constants}
        held = {given.placeholder: own[given.name] for given in program.givens if given.own}
        return CapturedStep(
            program, held, {given.placeholder: tokens for given in program.givens if not given.own}
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = {"tokens": tokens, "targets": targets}
    step = capture_training(
        model, inputs, optimizer, name=name, loss=lambda model, inputs: model.loss(**inputs)
    )
    held = {
        given.placeholder: value
        for given, value in zip(step.program.givens, step.values, strict=True)
        if value is not None
    }
    others = [given.placeholder for given in step.program.givens if given.placeholder not in held]

    def renew() -> None:
        model.initialize()
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()

    return CapturedStep(
        step.program,
        held,
        dict(zip(others, (inputs[name] for name in step.inputs), strict=True)),
        renew,
    )


def run_steps(
    step: CapturedStep,
    plan: Plan,
    hardware: Hardware,
    device: Device,
    timed: int,
    recorded: int,
    folder: Path,
    budget_bytes: int | None = None,
) -> Ran:
    """Run the step under a plan of its own graph: to warm up, timed, recorded op by op, under the
    profiler, and under the memory's history.

    The program holds at most ``budget_bytes`` of the device tier. The trace and the history are
    written into ``folder``.
    """
    machine = CudaDevice(hardware) if device.kind == "cuda" else CpuDevice(hardware, throttle=True)
    samples: list[dict[str, str]] = []
    digest = hashlib.sha256()
    with Executor(
        insert(step.program, plan, hardware.device_tier), hardware, machine, budget_bytes
    ) as executor:
        executor.place(step.held)

        def run() -> None:
            executor.run(step.inputs)
            machine.wait()  # what a step takes ends when the device has done it

        for _ in range(WARM_UP):
            for result in executor.run(step.inputs):
                digest.update(_bytes(result))
        at_rest = device.peaks()
        device.reset_peaks()
        with sampled(device.kind, device.torch_device.index or 0, samples):
            step_ns = profiled.timed(device, run, timed)
        peaks = device.peaks()
        timelines = []
        for _ in range(recorded):
            executor.run(step.inputs, record=True)
            assert executor.timeline is not None
            timelines.append(executor.timeline)
        profiled.write_trace(device, run, 1, folder)
        profiled.write_history(device, run, 1, folder)
    at_rest_bytes = None if at_rest is None else at_rest["memory_allocated"]
    return Ran(
        tuple(step_ns), peaks, at_rest_bytes, tuple(samples), tuple(timelines), digest.hexdigest()
    )


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """The number of threads for each op of a CPU: with one, the times of small ops are steady.
    ``None`` leaves it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def events_of(plan: Plan, line: Timeline) -> dict[str, Any]:
    """Ops and transfers of a run in the Trace Event Format, for https://ui.perfetto.dev."""
    ops, tensors = plan.graph.ops, plan.graph.tensors
    rows: list[tuple[str, str, str, int, int]] = [
        (op.name, op.kind, op.stream, start, end)
        for op, start, end in zip(ops, line.op_start_ns, line.op_end_ns, strict=True)
    ]
    rows += [
        (tensors[x.tensor].name, plan.cache_ops[x.cache_op].op, x.channel, x.start_ns, x.end_ns)
        for x in line.transfers
    ]
    keys: Sequence[str] = ("name", "cat", "tid")
    events = [
        {
            "ph": "X",
            **dict(zip(keys, row, strict=False)),
            "pid": 1,
            "ts": row[3] / 1000,
            "dur": (row[4] - row[3]) / 1000,
        }
        for row in rows
    ]
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _bytes(result: Any) -> bytes:
    data: bytes = result.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return data
