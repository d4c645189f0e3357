"""Read the arguments of :func:`hosim.serve` into a setup of requests and engines."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hosim.api import Machine, machine, named
from hosim.errors import InputError, UnitError
from hosim.io.options import Given, whole
from hosim.limits import within
from hosim.notes import Note, each_once
from hosim.plain_text import shown
from hosim.serving import (
    EngineLimits,
    ModelledIterations,
    ServingEngine,
    cache_blocks,
    cache_room,
    engine_limits,
    read_recorded_iterations,
    weight_room,
)
from hosim.serving.blocks import (
    KvLink,
    KvSetup,
    kv_link,
    kv_policy,
    kv_setup,
    sparse_reads,
    unlike_link,
)
from hosim.serving.engine_loop import IterationTime
from hosim.serving.engine_memory import CacheRoom
from hosim.serving.requests import Request, RequestRows, asked_requests
from hosim.serving.weights import WeightSetup, check_beside_cache, usual_iteration, weight_setup
from hosim.units import parse_size, parse_time

# -- engines that prefill and are unlike the others ------------------------------------------------


def unlike_prefill(
    decodes: ModelledIterations, hardware: Machine | None, tensor: int | None
) -> ModelledIterations:
    """Return the iterations of prefill engines whose options differ from those of the decode
    engines. Raises :class:`InputError`.
    """
    parameters = dict(decodes.model)
    if tensor is not None:
        devices = within("devices", tensor, source="prefill_tensor")
        parameters["tensor"] = devices
        if parameters.get("expert", 1) != 1:
            parameters["expert"] = devices
    found = ModelledIterations(
        parameters,
        decodes.hardware if hardware is None else machine(hardware),
        decodes.overhead_ns,
        decodes.connected,
    )
    found.check_processor()
    return found


# -- setups ----------------------------------------------------------------------------------------


SAID_BY_REQUESTS = ("phase", "batch", "sequence", "context")
"""The parameters of a model that the requests determine."""


@dataclass(frozen=True)
class ServeSetup:
    """Requests by arrival, and the engines that serve them.

    The ``instances`` are equal, each with ``blocks`` of cache; ``time_of`` gives the time of an
    iteration. With a ``link`` some engines prefill (``prefill``, if they differ from the others),
    and ``decodes`` engines decode. ``kv`` is the cache in the tiers below the device, ``weights``
    the offloaded weights. ``about`` is the part of a result that describes all this.
    ``drawn_blocks`` has the blocks in each of few draws if they are uncertain. ``request_ns`` is
    the time that each request takes outside iterations.
    """

    requests: tuple[Request, ...]
    limits: EngineLimits
    blocks: int
    time_of: IterationTime
    ahead: bool
    instances: int
    router: str
    decodes: int
    link: KvLink | None
    prefill: ServingEngine | None
    kv: KvSetup | None
    weights: WeightSetup | None
    about: Mapping[str, Any]
    drawn_blocks: tuple[int, ...] = ()
    request_ns: int = 0


def read_setup(
    model: str | os.PathLike[str] | Mapping[str, Any],
    hardware: Machine,
    requests: str | os.PathLike[str] | RequestRows | Sequence[Request],
    **options: Any,
) -> ServeSetup:
    """Return the setup of a model, a machine, requests and all options of :func:`hosim.serve`.
    Raises :class:`InputError`.
    """
    asked = Given(**options)
    share = _checked_share(asked.memory_share)
    modelled = _modelled(model, machine(hardware), _nanoseconds(asked.overhead), _connected(asked))
    urgent = asked.scheduling_policy == "priority"
    most = asked.token_budget, asked.max_sequences
    limits = engine_limits(modelled, *most, asked.block_tokens, urgent)
    rows = _rows(requests)
    listed = rows.requests
    tiers = _tiers(asked, modelled)
    for name in ("instances", "prefill_instances", "decode_instances"):
        within("devices", getattr(asked, name), source=name)
    first = None
    if asked.prefill_hardware is not None or asked.prefill_tensor is not None:
        first = unlike_prefill(modelled, asked.prefill_hardware, asked.prefill_tensor)
    link = _link(asked, modelled, first, tiers)
    _check_requests(listed, limits)
    _check_kernels(asked, modelled)
    modelled.check_lengths(
        limits.token_budget, max(one.prompt_tokens + one.output_tokens for one in listed)
    )
    every = asked.instances if link is None else asked.prefill_instances + asked.decode_instances
    planned = _planned(asked, modelled, limits, listed, every)
    if planned is not None and tiers is not None:
        check_beside_cache(planned, tiers, every)
    taken = None if planned is None else planned.program.peak_bytes + planned.beside_bytes
    held = cache_blocks(modelled, limits, share, taken) if asked.blocks is None else asked.blocks
    software = modelled.hardware.software
    time_of: IterationTime = modelled
    if asked.iterations is not None:
        time_of = read_recorded_iterations(asked.iterations, modelled.layers, modelled.beside_ns)
    unlike = None if first is None else _prefill(asked, first, limits, listed)
    is_known = asked.blocks is not None or software is None
    room = None if is_known else cache_room(modelled, limits, share, taken)
    several = every if link is not None or every > 1 else None
    return ServeSetup(
        listed,
        limits,
        held,
        time_of,
        asked.ahead,
        asked.instances,
        asked.router,
        asked.decode_instances,
        link,
        unlike,
        tiers,
        planned,
        _about(asked, modelled, limits, rows, several, room, first, unlike),
        () if room is None else room.drawn_blocks,
        0 if software is None else round(software.request.value),
    )


def _modelled(
    model: str | os.PathLike[str] | Mapping[str, Any],
    profile: Any,
    overhead_ns: int,
    connected: bool,
) -> ModelledIterations:
    from hosim.io.importers import builder_parameters
    from hosim.io.runtimes import with_runtime

    parameters = with_runtime(
        builder_parameters(model if isinstance(model, Mapping) else named(model, "model"))
    )
    fixed = next((name for name in SAID_BY_REQUESTS if name in parameters), None)
    if fixed is not None:
        raise InputError("the requests say this: leave it out", source="model", where=fixed)
    return ModelledIterations(parameters, profile, overhead_ns, connected)


def _connected(asked: Given) -> bool:
    """Return whether a connector keeps the cache in lower tiers or sends it to other engines. An
    engine swaps sequences without a connector.
    """
    if asked.kv is None:
        return bool(asked.prefill_instances)
    policy, parameters = kv_policy(asked.kv)
    return policy.rules(parameters).keeps or bool(asked.prefill_instances)


def _checked_share(share: float) -> float:
    if not 0 < share <= 1:
        raise InputError(
            f"expected a share above 0 and at most 1, got {shown(share)}", source="memory_share"
        )
    return share


def _prefill(
    asked: Given, first: ModelledIterations, limits: EngineLimits, listed: Sequence[Request]
) -> ServingEngine:
    """Return the prefill engines, which differ from the others."""
    first.check_lengths(limits.token_budget, max(one.prompt_tokens for one in listed))
    blocks = asked.blocks
    if blocks is None:
        blocks = cache_blocks(first, limits, asked.memory_share)
    return ServingEngine(blocks, first)


def _about(
    asked: Given,
    modelled: ModelledIterations,
    limits: EngineLimits,
    rows: RequestRows,
    instances: int | None,
    room: CacheRoom | None,
    first: ModelledIterations | None,
    prefill: ServingEngine | None,
) -> dict[str, Any]:
    """Return the description of the engine in a result; ``instances`` is the number of engines if
    there are several.
    """
    engines = [modelled] if first is None else [modelled, first]
    guessed = next(filter(None, [one.guessed_collectives for one in engines]), 0)
    said = [] if room is None else [Note("memory", room.line)]
    notes = each_once((*(one for engine in engines for one in engine.notes), *said))
    return {
        "model": modelled.name,
        "hardware": modelled.hardware.name,
        "block_tokens": asked.block_tokens,
        "overhead_ns": modelled.overhead_ns,
        "devices": modelled.devices,
        "block_bytes": asked.block_tokens * modelled.cache_bytes_per_token,
        "unanswered": rows.unanswered,
        **({"assumed": rows.assumed} if rows.assumed else {}),
        **({"scheduling_policy": "priority"} if limits.by_priority else {}),
        **(
            {"token_budget": limits.token_budget, "max_sequences": limits.max_sequences}
            if modelled.hardware.software is not None
            else {}
        ),
        **({"guessed_collectives": guessed} if guessed and asked.iterations is None else {}),
        **({} if room is None else {key: getattr(room, key) for key in _ENDS}),
        **({"notes": notes} if notes else {}),
        **({} if instances is None else {"instances": instances, "router": asked.router}),
        **(
            {}
            if prefill is None or first is None
            else {
                "prefill": {
                    "hardware": first.hardware.name,
                    "instances": asked.prefill_instances,
                    "devices": first.devices,
                    "blocks": prefill.blocks,
                    "block_bytes": asked.block_tokens * first.cache_bytes_per_token,
                }
            }
        ),
    }


_ENDS = ("low_blocks", "high_blocks")


def _rows(
    requests: str | os.PathLike[str] | RequestRows | Sequence[Request],
) -> RequestRows:
    """Return the asked requests, given in any form."""
    if isinstance(requests, (str, os.PathLike)):
        return asked_requests(requests)
    if isinstance(requests, RequestRows):
        return requests
    listed = _checked(requests)
    return RequestRows(listed, tuple(range(len(listed))), len(listed))


def _check_kernels(asked: Given, modelled: ModelledIterations) -> None:
    """Raise :class:`InputError` if attention has neither a modelled nor a recorded time."""
    if asked.iterations is None:
        modelled.check_processor()
    elif modelled.attended is not None:
        raise InputError(
            "recorded kernels of attention read the whole cache: leave it out, or kv_block of "
            "the model",
            source="iterations",
        )


def _check_requests(listed: Sequence[Request], limits: EngineLimits) -> None:
    """Raise :class:`InputError` unless there are requests in order of arrival, with priorities only
    if the engine uses them.
    """
    timed = [one for one in listed if one.follows is None]
    if any(one.arrival_ns > other.arrival_ns for one, other in pairwise(timed)) or not listed:
        raise InputError("expected at least one request, by arrival", source="requests")
    urgent = (
        None
        if limits.by_priority
        else next((i for i, one in enumerate(listed) if one.priority), None)
    )
    if urgent is not None:
        raise InputError(
            f"has priority {listed[urgent].priority}, which first come, first served does not "
            "know: ask for the scheduling policy priority",
            source=f"requests[{urgent}]",
        )


def _planned(
    asked: Given,
    modelled: ModelledIterations,
    limits: EngineLimits,
    requests: Sequence[Request],
    engines: int,
) -> WeightSetup | None:
    """Return the weights as a policy plans them; ``None`` if none does."""
    from hosim.study.asked import parse_choice

    if asked.weights is None:
        return None
    if asked.weights_memory is None:
        room = weight_room(modelled, limits, asked.memory_share, asked.blocks)
    else:
        room = _weights_memory(asked.weights_memory, modelled)
    choice = parse_choice(asked.weights)
    usual = usual_iteration(requests, limits)
    return weight_setup(
        choice.policy, choice.parameters, choice.label, modelled, usual, room, engines
    )


def _weights_memory(memory: int | str, modelled: ModelledIterations) -> int:
    """Return the bytes of each device for weights that a policy plans."""
    try:
        room = parse_size(memory) if isinstance(memory, str) else memory
    except UnitError as error:
        raise InputError(error.message, source="weights_memory") from None
    whole(room, "weights_memory", 1)
    capacity = modelled.hardware.device.capacity_bytes
    if room > capacity:
        raise InputError(
            f"expected at most the {capacity:,} B of {modelled.hardware.device_tier}, got "
            f"{room:,} B",
            source="weights_memory",
        )
    return room


def _tiers(asked: Given, modelled: ModelledIterations) -> KvSetup | None:
    """Return the cache in the tiers below the device, if there is one; each device of the engine
    has its part of every block.
    """
    swaps = asked.preemption == "swap"
    if asked.kv is None and not swaps:
        return None
    block_bytes = asked.block_tokens * modelled.cache_bytes_per_token
    policy_text = "swap_only" if asked.kv is None else asked.kv
    in_blocks = modelled.machine_of_blocks(asked.block_tokens)
    setup = kv_setup(policy_text, in_blocks, modelled.devices, block_bytes, swaps, modelled.layers)
    policy, parameters = kv_policy(setup.policy)
    if policy.name != "sparse":
        return setup
    if swaps:
        raise InputError(
            "sequences whose blocks are below are computed again: leave it out", source="preemption"
        )
    beside = modelled.summary_bytes_per_token
    share = beside / (modelled.cache_bytes_per_token + beside)
    reads = sparse_reads(parameters, modelled.attended, asked.block_tokens, share)
    return replace(setup, reads=reads, attention_layers=modelled.layers)


def _link(
    asked: Given,
    modelled: ModelledIterations,
    first: ModelledIterations | None,
    tiers: KvSetup | None,
) -> KvLink | None:
    """Return the link for caches from prefill engines, which may differ, to decode engines, or
    ``None`` if the same engines do both.
    """
    prefills, decodes = asked.prefill_instances, asked.decode_instances
    if not prefills:
        return None
    text = None if asked.kv_link is None else asked.kv_link.strip()
    ends = prefills, decodes, asked.block_tokens * modelled.cache_bytes_per_token
    in_blocks = modelled.machine_of_blocks(asked.block_tokens)
    if first is not None:
        link = unlike_link(text, in_blocks, modelled.devices, first.devices, *ends)
    else:
        link = kv_link(text, in_blocks, modelled.devices, *ends)
    if asked.kv_sending == "whole":
        return link
    if tiers is not None and tiers.layers > 1:
        raise InputError(
            "layers that are sent while others come up are not modelled: leave out loading=layers",
            source="kv_sending",
        )
    return replace(link, layers=modelled.layers)


def _nanoseconds(overhead: int | str) -> int:
    if not isinstance(overhead, str):
        return whole(overhead, "overhead", 0)
    try:
        return parse_time(overhead)
    except UnitError as error:
        raise InputError(str(error), source="overhead") from None


def _checked(requests: Sequence[Request]) -> tuple[Request, ...]:
    """Return the requests after checks that their numbers are whole and in range."""
    if not isinstance(requests, Iterable):
        raise InputError(
            f"expected a file, arrivals to draw, or a list of requests, got {shown(requests)}",
            source="requests",
        )
    listed = tuple(requests)
    for number, request in enumerate(listed):
        name = f"requests[{number}]"
        if not isinstance(request, Request):
            raise InputError(
                f"expected a hosim.Request, got {type(request).__name__}",
                source=name,
            )
        whole(request.arrival_ns, f"{name}.arrival_ns", 0)
        for part in ("prompt_tokens", "output_tokens", "prefix_tokens"):
            whole(getattr(request, part), f"{name}.{part}", 1)
        whole(request.priority, f"{name}.priority", -(1 << 40))
        if request.follows is not None and whole(request.follows, f"{name}.follows", 0) >= number:
            raise InputError(
                f"follows request {request.follows}: expected one before it", source=name
            )
    return listed
