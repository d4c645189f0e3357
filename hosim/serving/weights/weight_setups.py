"""Weights of a served model as a policy plans them: once, for an iteration in which all that run
decode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hosim.errors import InfeasibleError, InputError
from hosim.hardware import Hardware
from hosim.policies import Policy
from hosim.serving.blocks import KvSetup, engines_per_host
from hosim.serving.modelled_iterations import ModelledIterations
from hosim.serving.requests import Request
from hosim.serving.scheduler import EngineLimits, Iteration
from hosim.serving.weights.weight_layers import weight_layers
from hosim.serving.weights.weight_program import weight_program
from hosim.serving.weights.weight_stream import WeightSetup
from hosim.units import human_size


def weight_setup(
    policy: Policy,
    parameters: Mapping[str, Any],
    label: str,
    modelled: ModelledIterations,
    usual: Iteration,
    budget_bytes: int,
    engines: int = 1,
) -> WeightSetup:
    """Weights of engines that a policy plans within ``budget_bytes`` of each device, for iterations
    such as ``usual``.

    Of what engines share, it plans with a fair share. Raises :class:`InputError` for a policy that
    cannot, and :class:`InfeasibleError` where it finds no plan that fits.
    """
    layers = weight_layers(modelled)
    room = budget_bytes - layers.beside_bytes
    if room < 1:
        raise InfeasibleError(
            f"constants of {human_size(layers.beside_bytes)} do not fit in the "
            f"{human_size(budget_bytes)} for weights"
        )
    every = joined_tiers(replace(modelled.hardware, devices=modelled.devices * engines))
    plan = policy.plan(layers.graph(usual), every, room, **parameters)
    machine = replace(modelled.hardware, devices=modelled.devices)
    per_host = engines_per_host(modelled.hardware, modelled.devices)
    program = weight_program(plan, every, room)
    return WeightSetup(
        label,
        machine,
        program,
        layers.parts_ns,
        modelled.overhead_ns,
        layers.beside_bytes,
        per_host,
    )


def joined_tiers(machine: Hardware) -> Hardware:
    """The machine with the tiers from which a channel leads to the device, so that policies put
    weights nowhere else.
    """
    device = machine.device_tier
    tiers = tuple(
        tier
        for tier in machine.tiers
        if tier.name == device or (tier.name, device) in machine.channel_between
    )
    names = {tier.name for tier in tiers}
    kept = [
        channel for channel in machine.channels if {channel.source, channel.destination} <= names
    ]
    left = {channel.name for channel in kept}
    return replace(
        machine,
        tiers=tiers,
        channels=tuple(
            replace(one, beside=tuple(pair for pair in one.beside if pair[0] in left))
            for one in kept
        ),
        fabrics=tuple(
            replace(one, channels=tuple(name for name in one.channels if name in left))
            for one in machine.fabrics
        ),
    )


def usual_iteration(requests: Sequence[Request], limits: EngineLimits) -> Iteration:
    """As many sequences as can run decode, each with the mean of the keys that requests have
    half-way through their answers.
    """
    running = min(len(requests), limits.max_sequences, limits.token_budget)
    keys = sum(request.prompt_tokens + request.output_tokens // 2 for request in requests) // len(
        requests
    )
    return Iteration((), running, running * keys, ())


def check_beside_cache(weights: WeightSetup, kv: KvSetup, engines: int) -> None:
    """Raise :class:`InputError` where tiers have no room for weights and cache, or layers of an
    iteration wait for the cache too.
    """
    if kv.layers > 1:
        raise InputError(
            "layers of the cache that come up with moved weights are not modelled: leave out "
            "loading=layers",
            source="kv",
        )
    if kv.reads is not None:
        raise InputError(
            "blocks that attention chooses are not modelled beside moved weights: leave out sparse",
            source="kv",
        )
    machine = kv.machine
    for name, blocks in kv.tiers:
        one = {"device": 1, "host": min(engines, weights.per_host or engines), "global": engines}[
            machine.tier_scope(name)
        ]
        held = machine.devices * one * weights.program.below.get(name, 0)
        cache = machine.devices * blocks * kv.block_bytes
        whole = machine.tiers[machine.tier_index[name]].capacity_bytes
        if held and held + cache > whole:
            raise InputError(
                f"weights take {human_size(held)} of {name}, and the cache {human_size(cache)}, "
                f"but {machine.name} has "
                f"{human_size(whole)}: give the cache less, as in "
                f"tiers={name}={(whole - held) // 10**9}GB",
                source="kv",
                where="tiers",
            )
