"""The options of serving: those of an engine, of its requests, and of studies of both."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hosim.io.options import OPTIONS, REQUIRED, Option, Options, declared

SCHEDULING = ("fcfs", "priority")
"""Who goes first."""
SENDING = ("whole", "layers")
"""When a prompt's cache is transferred to an engine that decodes."""
PREEMPTIONS = ("recompute", "swap")
"""The treatment of a preempted sequence."""


def _routers() -> Iterable[str]:
    from hosim.serving.instances import ROUTERS

    return ROUTERS


def _kv_policies() -> Iterable[str]:
    from hosim.serving.blocks import KV_POLICIES

    return [policy.name for policy in KV_POLICIES]


def _policies() -> Iterable[str]:
    from hosim.policies import policy_names

    return policy_names()


_BELOW = dict.fromkeys(("kv", "preemption"), "tiers below unlike engines are not modelled")
_RECORDED = {"iterations": "recorded kernels are those of one machine"}
_APART = ("prefill_instances",)
"""What an option needs that is about engines which only prefill, and others that decode."""

SERVE: Options = (
    Option(
        "blocks",
        of=int,
        metavar="N",
        least=1,
        help="Blocks of the cache.  [default: what the device has room for]",
        about="Blocks of the cache; by default what ``memory_share`` of the device's memory "
        "leaves beside the weights and one full "
        "iteration.",
    ),
    Option(
        "block_tokens",
        of=int,
        default=16,
        metavar="N",
        least=1,
        help="Tokens of a block.",
        about="Tokens of a block.",
    ),
    Option(
        "token_budget",
        of=int,
        metavar="N",
        least=1,
        help="Most tokens in an iteration.  [default: 2048, or what the runtime takes]",
        about="Tokens that an iteration computes at most; ``None``: 2,048, or what the runtime "
        "takes.",
    ),
    Option(
        "max_sequences",
        of=int,
        metavar="N",
        least=1,
        help="Most sequences that run at once.  [default: 256, or what the runtime takes]",
        about="Sequences that run at once at most; ``None``: 256, or what the runtime takes.",
    ),
    Option(
        "memory_share",
        of=float,
        default=0.9,
        metavar="SHARE",
        help="How much of the device's memory the engine takes.",
        about="How much of the device's memory the engine takes, from 0 to 1.",
    ),
    Option(
        "overhead",
        default="0ms",
        metavar="TIME",
        takes="int | str",
        help="What the host adds to each iteration, such as 2ms.",
        about='What the host adds to each iteration: nanoseconds, or a time such as ``"2 ms"``. A '
        "measured server has it "
        "(:func:`hosim.serving.measured_server.fitted_overhead_ns`).",
    ),
    Option(
        "iterations",
        of=Path,
        metavar="FOLDER",
        takes="str | os.PathLike[str] | None",
        help="Recorded kernel times instead of the cost model.",
        about="A folder of recorded kernel times "
        "(:func:`hosim.serving.recorded_iterations.read_recorded_iterations`) instead of "
        "the "
        "cost model.",
    ),
    Option(
        "ahead",
        of=bool,
        default=True,
        about="Whether an iteration is scheduled when the one before begins, as vLLM's "
        "asynchronous scheduling does.",
    ),
    Option(
        "instances",
        of=int,
        default=1,
        metavar="N",
        least=1,
        excludes=dict.fromkeys(("prefill_instances", "decode_instances"), ""),
        help="Equal engines, each with a cache of its own.",
        about="Equal engines, each on devices and with a cache of its own. They share tiers below "
        "as the machine's devices do: those of "
        "a host, and those of all.",
    ),
    Option(
        "router",
        default="round_robin",
        metavar="HOW",
        known=_routers,
        help="How a request finds its engine: round_robin, least_load, prefix.",
        about='How a request finds its engine: ``"round_robin"``, ``"least_load"`` (the fewest '
        'requests), or ``"prefix"`` (the fewest '
        "tokens of prompts to compute up to its last, without those in the cache).",
    ),
    Option(
        "kv",
        metavar="POLICY",
        completes=_kv_policies,
        help="Cache in tiers below: lru:tiers=ddr (see 'hosim policies --kv').",
        about="A policy for the cache in the tiers below the device, such as "
        '``"write_through:tiers=ddr=500GiB"`` '
        "(:mod:`hosim.serving.blocks.kv_policies` has them all); ``None``: the whole cache "
        "is in device memory.",
    ),
    Option(
        "preemption",
        default="recompute",
        metavar="HOW",
        known=lambda: PREEMPTIONS,
        help="How a sequence that lacks blocks is preempted: recompute or swap.",
        about='How a sequence that lacks blocks is preempted: ``"recompute"``, or ``"swap"`` to a tier '
        "below and back.",
    ),
    Option(
        "scheduling_policy",
        default="fcfs",
        metavar="HOW",
        known=lambda: SCHEDULING,
        help="Who goes first: fcfs, or priority (the least value, then by arrival).",
        about='Who goes first: ``"fcfs"`` (first come, first served), or ``"priority"``: the '
        "request whose priority is least, then "
        "whoever came first.",
    ),
    Option(
        "prefill_instances",
        of=int,
        default=0,
        metavar="N",
        least=0,
        needs=("decode_instances",),
        help="Engines that only prefill; others decode (--decode-instances).",
        about="Engines that only prefill, if others decode; instead of ``instances``.",
    ),
    Option(
        "decode_instances",
        of=int,
        default=0,
        metavar="N",
        least=0,
        needs=_APART,
        help="Engines that only decode, to which caches are transferred.",
        about="Engines that only decode: a request's cache is transferred to one of them when its "
        "prompt has been computed.",
    ),
    Option(
        "kv_link",
        metavar="LINK",
        needs=_APART,
        completes=lambda: ("links", "ddr", "pool"),
        help="What caches are transferred over: links, a tier that all engines share, or what a "
        "device sends, as in 50GB/s.",
        about='What it is transferred over: ``"links"`` between devices, a tier that all engines '
        "share, or what each device sends and "
        'receives, such as ``"50 GB/s"``; by default the links if one host has all engines, and '
        "else a tier.",
    ),
    Option(
        "kv_sending",
        default="whole",
        metavar="HOW",
        needs=_APART,
        excludes={"weights": "layers that are sent while weights move are not modelled"},
        known=lambda: SENDING,
        help="When caches are transferred: whole, or by layers while prompts are computed.",
        about='When it is transferred: ``"whole"``, when the prompt has been computed, or by '
        '``"layers"``, each when it has been '
        "computed.",
    ),
    Option(
        "prefill_hardware",
        metavar="HW",
        takes="Machine | None",
        needs=_APART,
        excludes={**_RECORDED, **_BELOW},
        help="The machine of engines that only prefill, if it is another one.",
        about="The machine of engines that only prefill, if it is another one.",
    ),
    Option(
        "prefill_tensor",
        of=int,
        metavar="N",
        least=1,
        needs=_APART,
        excludes={**_RECORDED, **_BELOW},
        help="Devices that share each layer of engines that only prefill.",
        about="How many devices share each layer of these, if not as many as ``tensor`` of the model "
        "says.",
    ),
    Option(
        "weights",
        metavar="POLICY",
        needs=("weights_memory", "blocks"),
        excludes=dict.fromkeys(
            ("prefill_hardware", "prefill_tensor"),
            "moved weights are modelled where all engines are alike",
        ),
        completes=_policies,
        help="The policy that offloads weights to tiers below.",
        about='A policy for the weights, such as ``"hyperoffload"``: it plans which layers stay '
        "in the device, and when the others come "
        "up from the tiers below in each iteration. ``None``: all stay in the device.",
    ),
    Option(
        "weights_memory",
        metavar="SIZE",
        takes="int | str | None",
        needs=("weights",),
        help="Memory of each device for --weights.  [default: what --blocks leave]",
        about="The memory of each device for weights that a policy plans: bytes, or a size such as "
        '``"20 GiB"``; by default what ``blocks`` leave. The cache gets what the plan does not '
        "take.",
    ),
)
"""Those of an engine, or of several."""

_SHELL = (
    Option(
        "model",
        default=REQUIRED,
        argument=True,
        metavar="MODEL",
        help="A preset such as llama-3.1-8b, or a config.json.",
        about="As :func:`hosim.serve` takes it.",
    ),
    Option(
        "requests",
        default=REQUIRED,
        metavar="FILE|PROCESS",
        help="Arrivals and lengths: JSON lines, CSV of Azure or BurstGPT, or drawn as in "
        "poisson:rate=10:count=1000:prompt=512:output=128.",
        about='A file of requests, or arrivals to draw such as ``"poisson:rate=10"``.',
    ),
    Option(
        "tensor", of=int, default=1, metavar="N", least=1, help="Devices that share each layer."
    ),
    Option(
        "expert",
        of=int,
        default=1,
        metavar="N",
        least=1,
        help="Devices that divide whole experts among them: as many as --tensor, or 1.",
    ),
    Option(
        "set",
        of=list[str],
        metavar="PARAMETER=VALUE",
        help="A parameter of the model, such as kv_block=64; may be repeated.",
    ),
    Option(
        "measured",
        of=Path,
        metavar="FILE",
        help="What a real server did with these requests, to compare with.",
    ),
    Option(
        "fit_first",
        of=int,
        metavar="N",
        least=1,
        needs=("measured",),
        excludes={"overhead": "it fits the overhead"},
        help="Fit the overhead to the first N measured requests; the rest is compared.",
    ),
    Option(
        "limit",
        metavar="LIMITS",
        help="Print the goodput within limits of ttft, tpot, latency: ttft=2s,tpot=100ms.",
        about='Limits of the goodput, such as ``"ttft=2s,tpot=100ms"``.',
    ),
    Option(
        "within",
        metavar="LIMITS",
        help="Exit with 1 if a statistic is beyond its limit: ttft.p95=2s,tpot.mean=50ms.",
    ),
)


def serving_options(names: str, *own: Option, **defaults: Any) -> Options:
    """Options by their names, of serving or any other, as :func:`hosim.io.options.declared` gives
    them.
    """
    return declared(names, *SERVE, *_SHELL, *own, **defaults)


def of_serving(name: str, **changed: Any) -> Option:
    """An option of serving, in some things another one."""
    known = {**OPTIONS, **{option.name: option for option in (*SERVE, *_SHELL)}}
    return replace(known[name], **changed)


def serve_defaults() -> dict[str, Any]:
    """The options of :func:`hosim.serve` with their defaults."""
    return {option.name: option.default for option in SERVE}
