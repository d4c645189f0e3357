"""Runs of the decoder under simple schemes, each recorded into a folder of its own."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hosim.errors import InputError
from hosim.on_torch.gpu import functional_decoder, profiled
from hosim.on_torch.gpu.functional_decoder import Config
from hosim.on_torch.gpu.gpu_seam import Device
from hosim.on_torch.gpu.moves import Groups, Mover, OffloadedActivations, ResidentGroups, Streamed
from hosim.on_torch.gpu.output_files import write_json
from hosim.on_torch.gpu.profiled import sampled
from hosim.validate.kit import FORMAT, SCHEMES, SMALLEST_OFFLOAD, OffloadScheme

_RATE, _DECAY, _EPSILON, _BETA_1, _BETA_2 = 1e-4, 0.1, 1e-8, 0.9, 0.95


class Workload:
    """Weights, inputs and whatever else persists between steps. ``step`` runs one and returns its
    loss (for prefill, a check figure).
    """

    def __init__(
        self,
        device: Device,
        config: Config,
        scheme: OffloadScheme,
        *,
        train: bool,
        length: int,
        batch: int = 1,
        seed: int = 1,
        smallest_offload: int = SMALLEST_OFFLOAD,
    ) -> None:
        self.mover = Mover(device)
        self._smallest = smallest_offload
        self._config = config
        self._scheme = scheme
        self._train = train
        self._steps = 0
        self._embedding = self._make(config.embedding_shapes, seed)
        layers = []
        for index in range(config.layers):
            group = self._make(config.layer_shapes, seed + 1 + index)
            if scheme.parameters:
                group = device.host(group.numel(), group.dtype).copy_(group)
            layers.append(group)
        self._head = self._make(config.head_shapes, seed + 1 + config.layers)
        self._layers = self._groups("parameters", layers, scheme.parameters)
        self._offloaded = OffloadedActivations(self.mover) if scheme.activations else None
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(config.vocabulary, (batch, length + 1), generator=generator)
        self._tokens = tokens[:, :-1].contiguous().to(device.torch_device)
        self._targets = tokens[:, 1:].contiguous().to(device.torch_device)
        self._positions = functional_decoder.rotary(config, length, device.torch_device)
        if train:
            sizes = [
                self._embedding.numel(),
                *[functional_decoder.count(config.layer_shapes)] * config.layers,
                self._head.numel(),
            ]
            self._gradients = [device.empty(size, functional_decoder.DTYPE) for size in sizes]
            self._outer_states = [
                torch.zeros(2 * size, dtype=torch.float32, device=device.torch_device)
                for size in (sizes[0], sizes[-1])
            ]
            states = [self._states(sizes[1]) for _ in range(config.layers)]
            self._layer_states = self._groups("optimizer_state", states, scheme.optimizer)

    def step(self) -> float:
        """One step, to its end on the device."""
        self.mover.enter("step")
        if self._train:
            return float(self._train_step().detach().float().item())
        with torch.no_grad():
            return float(self._prefill_step().float().item())

    def _prefill_step(self) -> Any:
        config, mover = self._config, self.mover
        mover.enter("embedding.forward")
        self._layers.prefetch(0)
        x = functional_decoder.embed(
            functional_decoder.views(self._embedding, config.embedding_shapes), self._tokens
        )
        cache = []
        for index in range(config.layers):
            mover.enter(f"layer.{index}.forward")
            weights = functional_decoder.views(self._ready(index, index + 1), config.layer_shapes)
            x, k, v = functional_decoder.layer(config, weights, x, self._positions)
            if self._offloaded is None:
                cache += [k, v]
            else:
                for tensor in (k, v):
                    self._offloaded.keep(index, tensor)
                self._offloaded.end(index)
            del k, v
        mover.enter("head.forward")
        if self._offloaded is not None:
            self._offloaded.finish(config.layers)
        return (
            functional_decoder.logits(
                functional_decoder.views(self._head, config.head_shapes), x[:, -1:]
            )
            .float()
            .logsumexp(-1)
            .mean()
        )

    def _train_step(self) -> Any:
        config, mover = self._config, self.mover
        self._steps += 1
        mover.enter("embedding.forward")
        self._layers.prefetch(0)
        for gradient in self._gradients:
            gradient.zero_()
        x = functional_decoder.embed(
            self._weights(self._embedding, config.embedding_shapes, 0), self._tokens
        )
        x = _Mark.apply(x, self._embedding_backward)
        for index in range(config.layers):
            mover.enter(f"layer.{index}.forward")
            group = self._ready(index, index + 1)
            with self._saving(index, group):
                weights = self._weights(group, config.layer_shapes, index + 1)
                x = functional_decoder.layer(config, weights, x, self._positions)[0]
            if self._offloaded is not None:
                self._offloaded.end(index)
            x = _Mark.apply(x, lambda index=index: self._layer_backward(index))
            del weights, group
        mover.enter("head.forward")
        loss = functional_decoder.loss(
            self._weights(self._head, config.head_shapes, config.layers + 1), x, self._targets
        )
        del x
        mover.enter("head.backward")
        loss.backward()
        self._update()
        return loss

    def _layer_backward(self, index: int) -> None:
        """Called before the backward pass enters layer ``index``."""
        self.mover.enter(f"layer.{index}.backward")
        self._ready(index, index - 1)
        if self._offloaded is not None:
            self._offloaded.release(index + 1)
            self._offloaded.ready(index)
            self._offloaded.prefetch(index - 1)

    def _embedding_backward(self) -> None:
        self.mover.enter("embedding.backward")
        if self._offloaded is not None:
            self._offloaded.release(0)

    def _update(self) -> None:
        """AdamW, group by group. States and parameters of the next layer are fetched while one is
        updated, and stored after it.
        """
        config, mover = self._config, self.mover
        mover.enter("embedding.update")
        self._layer_states.prefetch(0)
        self._adamw(self._embedding, self._gradients[0], self._outer_states[0])
        for index in range(config.layers):
            mover.enter(f"layer.{index}.update")
            group = self._ready(index, index + 1)
            state = self._layer_states.ready(index)
            self._layer_states.prefetch(index + 1)
            self._adamw(group, self._gradients[index + 1], state)
            self._layers.store(index)
            self._layer_states.store(index)
        mover.enter("head.update")
        self._adamw(self._head, self._gradients[-1], self._outer_states[1])

    def _adamw(self, group: Any, gradient: Any, state: Any) -> None:
        """One update in single precision. ``state`` is the first moment, then the second."""
        first, second = state.chunk(2)
        with torch.no_grad():
            wide = gradient.float()
            first.lerp_(wide, 1 - _BETA_1)
            second.mul_(_BETA_2).addcmul_(wide, wide, value=1 - _BETA_2)
            del wide
            scale = (second / (1 - _BETA_2**self._steps)).sqrt_().add_(_EPSILON)
            weight = group.float()
            weight.mul_(1 - _RATE * _DECAY).addcdiv_(
                first, scale, value=-_RATE / (1 - _BETA_1**self._steps)
            )
            group.copy_(weight)

    def _ready(self, index: int, following: int) -> Any:
        """The group of layer ``index``, while that of layer ``following`` is being fetched."""
        group = self._layers.ready(index)
        self._layers.prefetch(following)
        return group

    def _saving(self, index: int, group: Any) -> contextlib.AbstractContextManager[Any]:
        """Return how autograd saves what layer ``index`` needs again: views of a streamed group by
        their place in it, activations on the host.

        The activations of the last layer stay, because they are needed at once.
        """
        offloaded = self._offloaded if index < self._config.layers - 1 else None
        if not self._scheme.parameters and offloaded is None:
            return contextlib.nullcontext()
        groups = self._layers
        group_at = group.untyped_storage().data_ptr()
        positions_at = {table.untyped_storage().data_ptr() for table in self._positions}

        def pack(tensor: Any) -> Callable[[], Any]:
            shape, strides = tensor.size(), tensor.stride()
            offset, dtype = tensor.storage_offset(), tensor.dtype
            pointer = tensor.untyped_storage().data_ptr()
            if pointer == group_at:
                return lambda: torch.as_strided(groups.ready(index), shape, strides, offset)
            if offloaded is None or pointer in positions_at or not self._worth_moving(tensor):
                # not the tensor itself: an output would keep itself alive through this
                kept = tensor.detach()
                return lambda: kept
            number = offloaded.keep(index, tensor)
            return lambda: torch.as_strided(
                offloaded.get(index, number).view(dtype), shape, strides, offset
            )

        hooks: contextlib.AbstractContextManager[Any] = torch.autograd.graph.saved_tensors_hooks(
            pack, lambda load: load()
        )
        return hooks

    def _weights(self, group: Any, shapes: tuple[tuple[int, ...], ...], place: int) -> list[Any]:
        """The weights of a group as leaves of the graph, whose gradients add up in the flat
        gradient of the group.
        """
        leaves = [
            view.detach().requires_grad_() for view in functional_decoder.views(group, shapes)
        ]
        for leaf, gradient in zip(
            leaves, functional_decoder.views(self._gradients[place], shapes), strict=True
        ):
            leaf.grad = gradient
        return leaves

    def _worth_moving(self, tensor: Any) -> bool:
        """Return whether it is on the device (the seeds of an attention kernel need not be), and
        large enough.
        """
        on_device = tensor.device.type == self.mover.device.kind
        return bool(on_device and tensor.untyped_storage().nbytes() >= self._smallest)

    def _make(self, shapes: tuple[tuple[int, ...], ...], seed: int) -> Any:
        group = self.mover.device.empty(functional_decoder.count(shapes), functional_decoder.DTYPE)
        functional_decoder.initialize(functional_decoder.views(group, shapes), seed)
        return group

    def _states(self, size: int) -> Any:
        if self._scheme.optimizer:
            return self.mover.device.host(2 * size, torch.float32).zero_()
        return torch.zeros(2 * size, dtype=torch.float32, device=self.mover.device.torch_device)

    def _groups(self, kind: str, groups: list[Any], streamed: bool) -> Groups:
        return Streamed(self.mover, kind, groups) if streamed else ResidentGroups(groups)


class _Mark(torch.autograd.Function):  # type: ignore[misc]
    """The identity, with a hook for the backward pass."""

    @staticmethod
    def forward(context: Any, x: Any, entered: Callable[[], None]) -> Any:
        context.entered = entered
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        context.entered()
        return gradient, None


@dataclass(frozen=True)
class RecordingRun:
    """One thing to record."""

    config: str
    mode: str
    length: int
    scheme: str
    batch: int
    iterations: int
    profiled: int
    seed: int

    @property
    def name(self) -> str:
        """The folder's."""
        return f"{self.config}-{self.mode}-{self.length}-{self.scheme}"


def record_run(
    device: Device, config: Config, run: RecordingRun, out: Path, *, smallest_offload: int
) -> None:
    """Record one run into its folder, as a whole or not at all."""
    with new_folder(out / run.name) as folder:
        _measure(device, config, run, folder, smallest_offload)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside ``path`` that becomes it if all goes well, and goes away if not. Raises
    :class:`InputError`.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise InputError(f"cannot create the folder: {error.strerror}", source=str(path)) from error
    try:
        yield folder
        folder.chmod(0o755)
        os.replace(folder, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(
    device: Device, config: Config, run: RecordingRun, folder: Path, smallest_offload: int
) -> None:
    """Two steps to warm up, timed steps without a profiler, steps under the profiler, steps under
    the allocator's history.
    """
    work = Workload(
        device,
        config,
        SCHEMES[run.scheme],
        train=run.mode == "train",
        length=run.length,
        batch=run.batch,
        seed=run.seed,
        smallest_offload=smallest_offload,
    )
    losses = [work.step() for _ in range(2)]
    device.synchronize()
    device.reset_peaks()

    def step() -> None:
        work.mover.take_moves()
        losses.append(work.step())

    clocks: list[dict[str, str]] = []
    with sampled(device.kind, device.torch_device.index or 0, clocks):
        wall_ns = profiled.timed(device, step, run.iterations)
    moves = work.mover.take_moves()
    peaks = device.peaks()
    profiled_ns = profiled.write_trace(device, step, run.profiled, folder)
    content = {
        "format": FORMAT,
        "run": asdict(run),
        "wall_ns": wall_ns,
        "profiled_wall_ns": profiled_ns,
        "losses": losses,
        "memory": peaks,
        "memory_history": profiled.write_history(device, step, run.profiled, folder),
        "moves": moves,
        "clocks": clocks,
    }
    write_json(folder / "run.json", content)
