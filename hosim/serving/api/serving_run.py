"""``hosim.serve``: requests over time on one engine."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hosim.api import Machine, file_of, machine, named, real, whole
from hosim.errors import InputError, UnitError
from hosim.files import unknown_name
from hosim.limits import within
from hosim.notes import Note, each_once
from hosim.plain_text import shown
from hosim.serving.requests import Request
from hosim.units import parse_size, parse_time

if TYPE_CHECKING:
    from hosim.serving import EngineLimits, ModelledIterations, Served
    from hosim.serving.blocks import KvLink, KvSetup
    from hosim.serving.requests import RequestRows
    from hosim.serving.weights import WeightSetup


SCHEDULING = ("fcfs", "priority")
"""Who goes first."""
SENDING = ("whole", "layers")
"""When a prompt's cache is transferred to an engine that decodes."""
SAID_BY_REQUESTS = ("phase", "batch", "sequence", "context")
"""Parameters of a model that requests say."""
PREEMPTIONS = ("recompute", "swap")
"""What becomes of a preempted sequence."""


def serve(
    model: str | os.PathLike[str] | Mapping[str, Any],
    hardware: Machine,
    requests: str | os.PathLike[str] | RequestRows | Sequence[Request],
    *,
    blocks: int | None = None,
    block_tokens: int = 16,
    token_budget: int | None = None,
    max_sequences: int | None = None,
    memory_share: float = 0.9,
    overhead: int | str = 0,
    iterations: str | os.PathLike[str] | None = None,
    ahead: bool = True,
    instances: int = 1,
    router: str = "round_robin",
    kv: str | None = None,
    preemption: str = "recompute",
    scheduling_policy: str = "fcfs",
    prefill_instances: int = 0,
    decode_instances: int = 0,
    kv_link: str | None = None,
    kv_sending: str = "whole",
    prefill_hardware: Machine | None = None,
    prefill_tensor: int | None = None,
    weights: str | None = None,
    weights_memory: int | str | None = None,
) -> Served:
    """Serve requests over time on one engine, or on several, with a paged key-value cache, as vLLM
    does.

    Batching is continuous, prompts are prefilled in chunks, the cache shares blocks of equal
    prefixes, and the sequence that was admitted last is preempted where blocks lack. The cache is
    in device memory, and with ``kv`` in the tiers below as well.

    Parameters
    ----------
    model
        A preset, a path of a ``config.json``, or the parameters of a builder: ``{"model":
        "llama-3.1-8b", "tensor": 8}``.
    hardware
        The machine; its profile has to describe the processor.
    requests
        A file (:func:`hosim.serving.requests.request_files.read_requests`), arrivals to draw such
        as ``"poisson:rate=10"`` (:func:`hosim.serving.requests.drawn_requests.draw_requests`), or
        requests by arrival.
    blocks
        Blocks of the cache; by default what ``memory_share`` of the device's memory leaves beside
        the weights and one full iteration.
    block_tokens
        Tokens of a block.
    token_budget
        Tokens that an iteration computes at most; ``None``: 2,048, or what the runtime takes.
    max_sequences
        Sequences that run at once at most; ``None``: 256, or what the runtime takes.
    memory_share
        How much of the device's memory the engine takes, from 0 to 1.
    overhead
        What the host adds to each iteration: nanoseconds, or a time such as ``"2 ms"``. A measured
        server has it (:func:`hosim.serving.measured_server.fitted_overhead_ns`).
    iterations
        A folder of recorded kernel times
        (:func:`hosim.serving.recorded_iterations.read_recorded_iterations`) instead of the cost
        model.
    ahead
        Whether an iteration is scheduled when the one before begins, as vLLM's asynchronous
        scheduling does.
    instances
        Equal engines, each on devices and with a cache of its own. They share tiers below as the
        machine's devices do: those of a host, and those of all.
    router
        How a request finds its engine: ``"round_robin"``, ``"least_load"`` (the fewest requests),
        or ``"prefix"`` (the fewest tokens of prompts to compute up to its last, without those in
        the cache).
    kv
        A policy for the cache in the tiers below the device, such as
        ``"write_through:tiers=ddr=500GiB"`` (:mod:`hosim.serving.kv_policies.kv_registry` has them
        all); ``None``: the whole cache is in device memory.
    preemption
        What becomes of a preempted sequence: ``"recompute"``, or ``"swap"`` to a tier below and
        back.
    scheduling_policy
        Who goes first: ``"fcfs"`` (first come, first served), or ``"priority"``: the request whose
        priority is least, then whoever came first.
    prefill_instances
        Engines that only prefill, if others decode; instead of ``instances``.
    decode_instances
        Engines that only decode: a request's cache is transferred to one of them when its prompt
        has been computed.
    kv_link
        What it is transferred over: ``"links"`` between devices, a tier that all engines share, or
        what each device sends and receives, such as ``"50 GB/s"``; by default the links if one host
        has all engines, and else a tier.
    kv_sending
        When it is transferred: ``"whole"``, when the prompt has been computed, or by ``"layers"``,
        each when it has been computed.
    prefill_hardware
        The machine of engines that only prefill, if it is another one.
    prefill_tensor
        How many devices share each layer of these, if they are others than ``tensor`` of the model
        says.
    weights
        A policy for the weights, such as ``"hyperoffload"``: it plans which layers stay in the
        device, and when the others come up from the tiers below in each iteration. ``None``: all
        stay in the device.
    weights_memory
        What each device has for weights that a policy plans: bytes, or a size such as ``"20 GiB"``;
        by default what ``blocks`` leave. What its plan does not take is the cache's.

    Returns
    -------
    Served
        Times of each request; ``frame()`` has a row for each, ``summary()`` latencies, throughput
        and what became of the cache.

    Raises
    ------
    InputError
        If an argument or a file is not what it should be, or a request does not fit in the cache.
    InfeasibleError
        If the weights leave no room for a cache, or the policy for them finds no plan that fits.

    References
    ----------
    ``docs/serving.md`` says what is modelled and how it compares with a real server.

    Examples
    --------
    >>> from hosim.serving.requests import Request
    >>> served = serve(
    ...     "llama-3.1-8b", "h100-80gb-sxm", [Request(0, 100, 3), Request(1_000_000, 50, 2)]
    ... )
    >>> [len(tokens) for tokens in served.token_ns], served.preemptions
    ([3, 2], 0)
    """
    from hosim.importers import builder_parameters
    from hosim.io.runtimes import with_runtime
    from hosim.serving import (
        ROUTERS,
        ModelledIterations,
        PrefillEngine,
        cache_blocks,
        cache_room,
        engine_limits,
        read_recorded_iterations,
        serve_disaggregated,
        serve_on_instances,
        serve_requests,
    )
    from hosim.serving.api.unlike_engines import about_prefill, unlike_prefill
    from hosim.serving.requests import RequestRows, asked_requests
    from hosim.serving.weights import check_beside_cache

    _check_known(scheduling_policy, "scheduling policy", SCHEDULING, "scheduling_policy")
    if token_budget is not None:
        token_budget = whole(token_budget, "token_budget", 1)
    if max_sequences is not None:
        max_sequences = whole(max_sequences, "max_sequences", 1)
    block_tokens = whole(block_tokens, "block_tokens", 1)
    if not 0 < real(memory_share, "memory_share") <= 1:
        raise InputError(
            f"expected a share above 0 and at most 1, got {shown(memory_share)}",
            source="memory_share",
        )
    parameters = with_runtime(
        builder_parameters(model if isinstance(model, Mapping) else named(model, "model"))
    )
    profile = machine(hardware)
    fixed = next((name for name in SAID_BY_REQUESTS if name in parameters), None)
    if fixed is not None:
        raise InputError("the requests say this: leave it out", source="model", where=fixed)
    overhead_ns = _nanoseconds(overhead)
    modelled = ModelledIterations(parameters, profile, overhead_ns)
    limits = engine_limits(
        modelled, token_budget, max_sequences, block_tokens, scheduling_policy == "priority"
    )
    rows = asked_requests(requests) if isinstance(requests, (str, os.PathLike)) else requests
    unanswered, listed = (
        (rows.unanswered, rows.requests) if isinstance(rows, RequestRows) else (0, _checked(rows))
    )
    tiers = _tiers(kv, preemption, modelled, block_tokens)
    count = within("devices", whole(instances, "instances", 1), source="instances")
    first = None
    if prefill_hardware is not None or prefill_tensor is not None:
        alone = prefill_instances and decode_instances
        first = unlike_prefill(
            modelled,
            prefill_hardware,
            prefill_tensor,
            bool(alone),
            iterations is not None,
            tiers is not None,
        )
    link = _link(kv_link, count, prefill_instances, decode_instances, modelled, first, block_tokens)
    link = _sending(kv_sending, link, tiers, modelled.layers)
    if any(one.arrival_ns > other.arrival_ns for one, other in pairwise(listed)) or not listed:
        raise InputError("expected at least one request, by arrival", source="requests")
    if (
        not limits.by_priority
        and (urgent := next((i for i, one in enumerate(listed) if one.priority), None)) is not None
    ):
        raise InputError(
            f"has priority {listed[urgent].priority}, which first come, first served does not "
            "know: ask for the scheduling policy priority",
            source=f"requests[{urgent}]",
        )
    if iterations is None:
        modelled.check_processor()
    elif modelled.attended is not None:
        raise InputError(
            "recorded kernels of attention read the whole cache: leave it out, or kv_block of the "
            "model",
            source="iterations",
        )
    modelled.check_lengths(
        limits.token_budget, max(one.prompt_tokens + one.output_tokens for one in listed)
    )
    every = count if link is None else prefill_instances + decode_instances
    if weights is not None and first is not None:
        raise InputError(
            "moved weights are not modelled where engines that prefill are unlike the others: "
            "leave it out",
            source="weights",
        )
    room = _weight_room(weights, weights_memory, blocks, modelled, limits, memory_share)
    planned = (
        None
        if weights is None or room is None
        else _planned(weights, room, modelled, limits, listed, every)
    )
    if planned is not None and link is not None and link.layers > 1:
        raise InputError(
            "layers that are sent while weights move are not modelled: leave it out",
            source="kv_sending",
        )
    if planned is not None and tiers is not None:
        check_beside_cache(planned, tiers, every)
    taken = None if planned is None else planned.program.peak_bytes + planned.beside_bytes
    held = (
        cache_blocks(modelled, limits, memory_share, taken)
        if blocks is None
        else whole(blocks, "blocks", 1)
    )
    time_of = (
        modelled
        if iterations is None
        else read_recorded_iterations(
            file_of(iterations, "iterations"), modelled.layers, overhead_ns
        )
    )
    about = {
        "model": modelled.name,
        "hardware": profile.name,
        "block_tokens": block_tokens,
        "overhead_ns": overhead_ns,
    }
    about |= {
        "devices": modelled.devices,
        "block_bytes": block_tokens * modelled.cache_bytes_per_token,
    }
    about |= {"unanswered": unanswered} | (
        {"scheduling_policy": "priority"} if limits.by_priority else {}
    )
    if modelled.hardware.software is not None:
        about |= {"token_budget": limits.token_budget, "max_sequences": limits.max_sequences}
    guessed = (
        0
        if iterations is not None
        else modelled.guessed_collectives or (first.guessed_collectives if first is not None else 0)
    )
    about |= {"guessed_collectives": guessed} if guessed else {}
    room_of = (
        []
        if blocks is not None or modelled.hardware.software is None
        else [cache_room(modelled, limits, memory_share, taken)]
    )
    about |= {key: getattr(one, key) for one in room_of for key in ("low_blocks", "high_blocks")}
    said = each_once(
        (
            *modelled.notes,
            *(() if first is None else first.notes),
            *[Note("memory", one.line) for one in room_of],
        )
    )
    about |= {"notes": said} if said else {}
    _check_known(router, "router", ROUTERS, "router")
    if link is not None:
        about |= {"instances": prefill_instances + decode_instances, "router": router}
        unlike = None
        if first is not None:
            first.check_lengths(limits.token_budget, max(one.prompt_tokens for one in listed))
            unlike = PrefillEngine(
                cache_blocks(first, limits, memory_share) if blocks is None else held, first
            )
            about["prefill"] = about_prefill(first, prefill_instances, unlike.blocks, block_tokens)
        answered = decode_instances, ROUTERS[router], link
        found = serve_disaggregated(
            listed,
            limits,
            held,
            time_of,
            *answered,
            ahead=ahead,
            kv=tiers,
            prefill=unlike,
            weights=planned,
        )
        return replace(found, about=about)
    if count == 1:
        return replace(
            serve_requests(listed, limits, held, time_of, ahead=ahead, kv=tiers, weights=planned),
            about=about,
        )
    about |= {"instances": count, "router": router}
    served = serve_on_instances(
        listed,
        limits,
        held,
        time_of,
        count,
        ROUTERS[router],
        ahead=ahead,
        kv=tiers,
        weights=planned,
    )
    return replace(served, about=about)


def _check_known(value: object, what: str, known: Iterable[str], option: str) -> None:
    """Raise :class:`InputError` for what is none of the known texts."""
    names = list(known)
    if not isinstance(value, str) or value not in names:
        raise InputError(
            unknown_name(what, value if isinstance(value, str) else shown(value, 60), names),
            source=option,
        )


def serve_defaults() -> dict[str, Any]:
    """The options of :func:`hosim.serve` with their defaults."""
    return {
        name: one.default
        for name, one in inspect.signature(serve).parameters.items()
        if one.kind is one.KEYWORD_ONLY
    }


def _weight_room(
    weights: str | None,
    memory: int | str | None,
    blocks: int | None,
    modelled: ModelledIterations,
    limits: EngineLimits,
    share: float,
) -> int | None:
    """Bytes of each device for weights that a policy plans; ``None`` if none does."""
    from hosim.serving import weight_room

    if memory is not None:
        if weights is None:
            raise InputError(
                "is for weights that a policy plans: ask for weights, such as hyperoffload",
                source="weights_memory",
            )
        room = memory if not isinstance(memory, str) else _size(memory)
        whole(room, "weights_memory", 1)
        capacity = modelled.hardware.device.capacity_bytes
        if room > capacity:
            raise InputError(
                f"expected at most the {capacity:,} B of {modelled.hardware.device_tier}, got "
                f"{room:,} B",
                source="weights_memory",
            )
        return room
    if weights is None:
        return None
    if blocks is None:
        raise InputError(
            "needs weights_memory or blocks, which divide device memory between weights and cache",
            source="weights",
        )
    return weight_room(modelled, limits, share, whole(blocks, "blocks", 1))


def _planned(
    weights: str,
    room: int,
    modelled: ModelledIterations,
    limits: EngineLimits,
    requests: Sequence[Request],
    engines: int,
) -> WeightSetup:
    """The weights as a policy plans them."""
    from hosim.serving.weights import usual_iteration, weight_setup
    from hosim.study.asked import parse_choice

    choice = parse_choice(named(weights, "weights"))
    usual = usual_iteration(requests, limits)
    return weight_setup(
        choice.policy, choice.parameters, choice.label, modelled, usual, room, engines
    )


def _tiers(
    kv: str | None, preemption: str, modelled: ModelledIterations, block_tokens: int
) -> KvSetup | None:
    """The cache below the device, if there is one: each device of the engine has its part of every
    block.
    """
    from hosim.serving.blocks import kv_setup, sparse_reads
    from hosim.serving.kv_policies import kv_policy

    if preemption not in PREEMPTIONS:
        raise InputError(
            f"expected {' or '.join(PREEMPTIONS)}, got {shown(preemption)}", source="preemption"
        )
    swaps = preemption == "swap"
    if kv is None and not swaps:
        return None
    block_bytes = block_tokens * modelled.cache_bytes_per_token
    setup = kv_setup(
        "swap_only" if kv is None else named(kv, "kv"),
        modelled.hardware,
        modelled.devices,
        block_bytes,
        swaps,
        modelled.layers,
    )
    policy, parameters = kv_policy(setup.policy)
    if policy.name != "sparse":
        return setup
    if swaps:
        raise InputError(
            "sequences whose blocks are below are computed again: leave it out", source="preemption"
        )
    beside = modelled.summary_bytes_per_token
    reads = sparse_reads(
        parameters,
        modelled.attended,
        block_tokens,
        beside / (modelled.cache_bytes_per_token + beside),
    )
    return replace(setup, reads=reads, attention_layers=modelled.layers)


def _link(
    text: str | None,
    instances: int,
    prefills: int,
    decodes: int,
    modelled: ModelledIterations,
    first: ModelledIterations | None,
    block_tokens: int,
) -> KvLink | None:
    """The way of caches from engines that prefill to those that decode, if these are others; the
    ``first`` may be unlike.
    """
    from hosim.serving.blocks import kv_link, unlike_link

    for name, value in (("prefill_instances", prefills), ("decode_instances", decodes)):
        within("devices", whole(value, name, 0), source=name)
    if not prefills and not decodes:
        if text is not None:
            raise InputError(
                "caches are transferred to engines that decode: ask for prefill_instances and "
                "decode_instances",
                source="kv_link",
            )
        return None
    if not prefills or not decodes:
        missing = "decode_instances" if prefills else "prefill_instances"
        raise InputError(
            "expected at least 1 engine beside those of the other kind, got 0", source=missing
        )
    if instances > 1:
        raise InputError(
            "leave out one of instances, and prefill_instances with decode_instances",
            source="instances",
        )
    asked = None if text is None else named(text, "kv_link").strip()
    if first is not None:
        block = block_tokens * modelled.cache_bytes_per_token
        return unlike_link(
            asked, modelled.hardware, modelled.devices, first.devices, prefills, decodes, block
        )
    return kv_link(
        asked,
        modelled.hardware,
        modelled.devices,
        prefills,
        decodes,
        block_tokens * modelled.cache_bytes_per_token,
    )


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except UnitError as error:
        raise InputError(error.message, source="weights_memory") from None


def _sending(how: str, link: KvLink | None, tiers: KvSetup | None, layers: int) -> KvLink | None:
    """The way of caches with what is sent at once."""
    _check_known(how, "way of sending", SENDING, "kv_sending")
    if how == "whole":
        return link
    if link is None:
        raise InputError(
            "caches are sent to engines that decode: ask for prefill_instances and "
            "decode_instances",
            source="kv_sending",
        )
    if tiers is not None and tiers.layers > 1:
        raise InputError(
            "layers that are sent while others come up are not modelled: leave out loading=layers",
            source="kv_sending",
        )
    return replace(link, layers=layers)


def _nanoseconds(overhead: int | str) -> int:
    if not isinstance(overhead, str):
        return whole(overhead, "overhead", 0)
    try:
        return parse_time(overhead)
    except UnitError as error:
        raise InputError(str(error), source="overhead") from None


def _checked(requests: Sequence[Request]) -> tuple[Request, ...]:
    """The requests, once their numbers are whole and in their ranges."""
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
                f"expected a hosim.serving.requests.request.Request, got {type(request).__name__}",
                source=name,
            )
        whole(request.arrival_ns, f"{name}.arrival_ns", 0)
        for part in ("prompt_tokens", "output_tokens", "prefix_tokens"):
            whole(getattr(request, part), f"{name}.{part}", 1)
        whole(request.priority, f"{name}.priority", -(1 << 40))
    return listed
