"""Moves between device and host: every copy is queued in its place, with the waits that it needs,
and recorded.

A copy waits for everything queued on the compute stream before it, so a buffer may be overwritten
as soon as its last reader is queued.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from hosim.on_torch.gpu.gpu_seam import MAIN, TO_DEVICE, TO_HOST, Device


@dataclass(frozen=True)
class Move:
    """A cache op as it was issued: ``after`` is the phase in which that happened."""

    op: str
    tensor: str
    bytes: int
    after: str


@dataclass(eq=False)
class Mover:
    """Queues copies on the copy streams of a device, and records the moves of a step."""

    device: Device
    phase: str = ""
    _moves: list[Move] = field(default_factory=list)

    def enter(self, phase: str) -> None:
        """Enter ``phase`` of the step, which the trace shows as an annotation."""
        self.phase = phase
        with torch.profiler.record_function(f"hosim.{phase}"):
            pass

    def fetch(self, tensor: str, destination: Any, source: Any, after: Any = None) -> Any:
        """Copy to the device, at the earliest after the event ``after``; returns the event of its
        end.
        """
        if after is not None:
            self.device.wait(TO_DEVICE, after)
        return self._copy("prefetch", TO_DEVICE, tensor, destination, source)

    def store(self, tensor: str, destination: Any, source: Any) -> Any:
        """Copy to the host; returns the event of its end. The source has to live until then."""
        return self._copy("store", TO_HOST, tensor, destination, source)

    def drop(self, tensor: str, source: Any) -> None:
        """Record that the tensor leaves the device here, in program order."""
        self._note("detach", tensor, source)

    def need(self, event: Any) -> None:
        """Let the compute stream wait for the event."""
        self.device.wait(MAIN, event)

    def take_moves(self) -> list[dict[str, Any]]:
        """The moves recorded since the last call."""
        moves, self._moves = self._moves, []
        return [asdict(move) for move in moves]

    def _copy(self, op: str, stream: str, tensor: str, destination: Any, source: Any) -> Any:
        self.device.wait(stream, self.device.mark(MAIN))
        self.device.copy(stream, destination, source)
        self._note(op, tensor, source)
        return self.device.mark(stream)

    def _note(self, op: str, tensor: str, source: Any) -> None:
        self._moves.append(Move(op, tensor, source.numel() * source.element_size(), self.phase))


class ResidentGroups:
    """The groups of the layers, all on the device."""

    def __init__(self, groups: Sequence[Any]) -> None:
        self._groups = groups

    def prefetch(self, index: int) -> None:
        """They are there."""

    def ready(self, index: int) -> Any:
        """The group of layer ``index``."""
        return self._groups[index]

    def store(self, index: int) -> None:
        """They stay there."""


class Streamed:
    """The groups of the layers in host memory, and two buffers on the device: layer i comes into
    buffer i mod 2.
    """

    def __init__(self, mover: Mover, kind: str, hosts: Sequence[Any]) -> None:
        self._mover = mover
        self._kind = kind
        self._hosts = hosts
        self._buffers = [mover.device.empty(hosts[0].numel(), hosts[0].dtype) for _ in range(2)]
        self._holds: list[int | None] = [None, None]
        self._arrived: list[Any] = [None, None]
        self._stored: list[Any] = [None, None]

    def prefetch(self, index: int) -> None:
        """Queue the copy of layer ``index`` to its buffer, unless it is there or the layer does not
        exist.
        """
        if not 0 <= index < len(self._hosts) or self._holds[index % 2] == index:
            return
        slot = index % 2
        if self._holds[slot] is not None:
            self._mover.drop(self._name(self._holds[slot]), self._buffers[slot])
        self._arrived[slot] = self._mover.fetch(
            self._name(index), self._buffers[slot], self._hosts[index], self._stored[slot]
        )
        self._stored[slot] = None
        self._holds[slot] = index

    def ready(self, index: int) -> Any:
        """The buffer with layer ``index``, for which the compute stream waits."""
        self.prefetch(index)
        if self._arrived[index % 2] is not None:
            self._mover.need(self._arrived[index % 2])
            self._arrived[index % 2] = None
        return self._buffers[index % 2]

    def store(self, index: int) -> None:
        """Queue the copy of layer ``index``, changed in its buffer, back to the host."""
        slot = index % 2
        self._stored[slot] = self._mover.store(
            self._name(index), self._hosts[index], self._buffers[slot]
        )

    def _name(self, index: int | None) -> str:
        return f"layer.{index}.{self._kind}"


Groups = ResidentGroups | Streamed


class OffloadedActivations:
    """The activations of layers: each is copied to the host while the next layer computes, and
    comes back one layer ahead of its use.

    Host buffers are made at first use and reused in every step.
    """

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._hosts: dict[tuple[int, int], Any] = {}
        self._sources: dict[int, list[Any]] = {}
        self._places: dict[int, dict[int, int]] = {}
        self._events: dict[int, Any] = {}
        self._back: dict[int, list[Any]] = {}

    def keep(self, layer: int, tensor: Any) -> int:
        """Copy the storage of ``tensor`` to the host, once; returns its number in the layer."""
        places = self._places.setdefault(layer, {})
        sources = self._sources.setdefault(layer, [])
        pointer = tensor.untyped_storage().data_ptr()
        if (
            pointer not in places
        ):  # the sources live until `end`: no other storage is where one of them is
            whole = _whole(tensor)
            number = places[pointer] = len(sources)
            host = self._hosts.get((layer, number))
            if host is None or host.numel() != whole.numel():
                host = self._hosts[layer, number] = self._mover.device.host(
                    whole.numel(), torch.uint8
                )
            self._events[layer] = self._mover.store(_name(layer, number), host, whole)
            sources.append(whole)
        return places[pointer]

    def end(self, layer: int) -> None:
        """Drop the sources of the layer before ``layer``, which is queued, once they are copied."""
        self._drop_sources(layer - 1)

    def prefetch(self, layer: int) -> None:
        """Queue the copies back of the activations of ``layer``."""
        if layer not in self._places or layer in self._back:
            return
        self._back[layer] = []
        for number in range(len(self._places[layer])):
            host = self._hosts[layer, number]
            buffer = self._mover.device.empty(host.numel(), torch.uint8)
            self._events[layer] = self._mover.fetch(_name(layer, number), buffer, host)
            self._back[layer].append(buffer)

    def ready(self, layer: int) -> None:
        """Let the compute stream wait until all of ``layer`` is back."""
        self.prefetch(layer)
        if layer in self._back:
            self._mover.need(self._events[layer])

    def get(self, layer: int, number: int) -> Any:
        """A storage of ``layer`` that is back, as bytes."""
        return self._back[layer][number]

    def release(self, layer: int) -> None:
        """Drop what came back for ``layer``."""
        for number, buffer in enumerate(self._back.pop(layer, [])):
            self._mover.drop(_name(layer, number), buffer)
        self._places.pop(layer, None)

    def finish(self, layers: int) -> None:
        """End the step: drop from the device what never comes back (keys and values)."""
        for layer in range(layers):
            self._drop_sources(layer)
        self._places.clear()

    def _drop_sources(self, layer: int) -> None:
        sources = self._sources.pop(layer, [])
        if sources:
            self._mover.need(self._events[layer])
        for number, source in enumerate(sources):
            self._mover.drop(_name(layer, number), source)


def _name(layer: int, number: int) -> str:
    return f"layer.{layer}.activation.{number}"


def _whole(tensor: Any) -> Any:
    """The storage of a tensor, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        tensor.detach().untyped_storage()
    )
