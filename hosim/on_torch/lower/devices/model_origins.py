"""The origin of an offloaded model's contents if its tensors are not on the machine: a CPU's
memory, or a loader. Imports torch.

A model on the CPU may be larger than a GPU, and one on meta larger than the host's memory. Tensors
go one by one from where they are to where the plan has them at time 0; only what begins in the
device tier is put there.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hosim.errors import InputError
from hosim.on_torch.lower.tiers import Device, HostBytes, Origin, in_one_line, resizable, unlike

Loader = Callable[[str], Any]
"""Returns the contents of the parameter or buffer with a name."""


class CpuOrigin:
    """A storage of a model on the CPU. It is empty while the machine has its contents."""

    returns = True

    def __init__(self, views: Sequence[torch.Tensor]) -> None:
        self._views = list(views)
        self._storage = views[0].untyped_storage()
        self._size_bytes = self._storage.nbytes()

    def contents(self) -> HostBytes:
        """The storage's bytes. A storage that cannot be emptied, a file's or numpy's, is replaced
        in all views.
        """
        if self._views:
            self._storage = resizable(self._views)
            self._views.clear()
        return HostBytes.of_storage(self._storage)

    def leave(self) -> None:
        """Empty the storage."""
        self._storage.resize_(0)

    def room(self) -> HostBytes:
        """The storage, with its bytes."""
        self._storage.resize_(self._size_bytes)
        return self.contents()


class LoadedOrigin:
    """The contents that a loader gives for a tensor on meta. They go nowhere back: the tensor stays
    on meta.
    """

    returns = False

    def __init__(self, names: tuple[str, ...], like: torch.Tensor, load: Loader) -> None:
        self._names = names
        self._like = like
        self._load = load
        if like.untyped_storage().nbytes() != like.nbytes:
            raise InputError(
                f"{names[0]!r} on meta is part of a larger tensor, which a loader cannot fill",
                source="model",
            )

    def contents(self) -> HostBytes:
        """The loaded bytes. Raises :class:`InputError` for a tensor of another shape or dtype, and
        if there is none.
        """
        loaded = self._loaded()
        like, name = self._like, self._names[0]
        got = unlike(loaded, like)
        if got is not None:
            raise InputError(
                f"the loader gives {got} for {name!r}; the model has {tuple(like.shape)} of "
                f"{like.dtype}",
                source="loader",
            )
        loaded = loaded.detach()
        if loaded.device.type != "cpu" or loaded.stride() != like.stride():
            loaded = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype).copy_(loaded)
        size = like.nbytes
        storage, start = loaded.untyped_storage(), loaded.storage_offset() * like.itemsize
        return HostBytes(torch.empty(0, dtype=torch.uint8).set_(storage, start, (size,), (1,)))

    def _loaded(self) -> Any:
        """Return the contents that the loader gives for the first of the tensor's names that it
        knows.
        """
        for name in self._names[:-1]:
            with suppress(KeyError):
                return self._load(name)
        try:
            return self._load(self._names[-1])
        except (InputError, MemoryError):
            raise
        except (
            Exception
        ) as error:  # the caller's own code, which may raise anything: say of which tensor
            reason = in_one_line(error, None)
            raise InputError(
                f"the loader gives nothing for {self._names[-1]!r}: {reason}", source="loader"
            ) from error

    def leave(self) -> None:
        """Drop what was loaded."""

    def room(self) -> HostBytes:
        """There is none."""
        raise MemoryError


def loader_of(given: Loader | str | os.PathLike[str]) -> Loader:
    """A loader from a function, a ``.safetensors`` file, or a folder of them.

    Raises :class:`InputError` for anything else, without the package safetensors, and for a file
    that is not one.
    """
    if callable(given):
        return given
    path = Path(os.fspath(given))
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise InputError("expected a .safetensors file or a folder of them", source=str(path))
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        raise InputError(
            "reading it needs the package safetensors; or give a function from a name to a tensor",
            source=str(path),
        ) from error
    found: dict[str, Path] = {}
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                found.update(dict.fromkeys(opened.keys(), file))
        except (OSError, SafetensorError) as error:
            raise InputError(f"not a safetensors file: {error}", source=str(file)) from error

    def load(name: str) -> Any:
        if name not in found:
            raise KeyError(name)
        with safe_open(found[name], "pt") as opened:
            return opened.get_tensor(name)

    return load


def named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers of a model, a tied one under each of its names."""
    return dict(
        (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
    )


def require_contents(model: torch.nn.Module, loader: object) -> None:
    """Raise :class:`InputError` for a model on meta without a loader, and for a loader of one that
    is not on meta.
    """
    on_meta = [name for name, tensor in named_tensors(model).items() if tensor.is_meta]
    if on_meta and loader is None:
        raise InputError(
            f"{on_meta[0]!r} is on meta, without contents; give a loader=, or make it on the CPU",
            source="model",
        )
    if loader is not None and not on_meta:
        raise InputError(
            "nothing of the model is on meta, so that there is nothing to load", source="loader"
        )


def origins(
    tensors: Mapping[str, torch.Tensor], model: torch.nn.Module, device: Device, load: Loader | None
) -> dict[str, Origin]:
    """The origin of each tensor (by placeholder) that is not on the machine; one for all that share
    a storage.

    Raises :class:`InputError` for a tensor on another device than the machine's and the CPU.
    """
    names: dict[int, list[str]] = {}
    for name, tensor in named_tensors(model).items():
        names.setdefault(tensor.untyped_storage()._cdata, []).append(name)
    together: dict[int, list[str]] = {}
    for placeholder, tensor in tensors.items():
        if not device.has(tensor):
            together.setdefault(tensor.untyped_storage()._cdata, []).append(placeholder)
    found: dict[str, Origin] = {}
    for storage, placeholders in together.items():
        sharing = [tensors[placeholder] for placeholder in placeholders]
        if sharing[0].is_meta and load is not None:
            origin: Origin = LoadedOrigin(tuple(names[storage]), sharing[0], load)
        elif sharing[0].device.type == "cpu":
            origin = CpuOrigin(sharing)
        else:
            raise InputError(
                f"the model has tensors on {sharing[0].device}, and the plan is for "
                f"{device.torch_device}",
                source="model",
            )
        found.update(dict.fromkeys(placeholders, origin))
    return found


def views(tensors: Mapping[str, torch.Tensor], device: Device) -> dict[str, torch.Tensor]:
    """Tensors like these in the device tier, without bytes; those that share a storage share one
    there.

    Torch's own functions give a storage the bytes that a view needs; this one, which compiled
    programs use, does not.
    """
    storages: dict[int, Any] = {}
    made = {}
    for name, tensor in tensors.items():
        empty = torch.empty(0, dtype=tensor.dtype, device=device.torch_device)
        empty.set_(storages.setdefault(tensor.untyped_storage()._cdata, empty.untyped_storage()))
        made[name] = torch.ops.inductor._reinterpret_tensor.default(
            empty, tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset())
        )
    return made


def fakes(
    mode: FakeTensorMode, model: torch.nn.Module, device: torch.device
) -> dict[int, torch.Tensor]:
    """A fake on a device for each parameter and buffer of a model, by its ``id``; those that share
    a storage share one.
    """
    tensors = [*model.parameters(), *model.buffers()]
    sharing = Counter(tensor.untyped_storage()._cdata for tensor in tensors)
    bases: dict[int, torch.Tensor] = {}
    made = {}
    with mode, torch.no_grad():
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if sharing[storage._cdata] == 1:
                fake = torch.empty_strided(
                    tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device
                )
            else:
                base = bases.setdefault(
                    storage._cdata, torch.empty(storage.nbytes(), dtype=torch.uint8, device=device)
                )
                typed = base[: len(base) // tensor.itemsize * tensor.itemsize].view(tensor.dtype)
                fake = typed.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
            made[id(tensor)] = (
                torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
                if isinstance(tensor, torch.nn.Parameter)
                else fake
            )
    return made


def fake_on(mode: FakeTensorMode, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A fake on a device with the sizes and strides of a tensor."""
    with mode:
        return torch.empty_strided(
            tensor.size(),
            tensor.stride(),
            dtype=tensor.dtype,
            device=device,
            requires_grad=tensor.requires_grad,
        )
