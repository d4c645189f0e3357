"""``hosim serve``: requests over time on one engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hosim.cli.options import (
    HardwareName,
    Html,
    Json,
    Plot,
    RuntimeName,
    Trace,
    check_trace,
    console,
    policy_names,
    print_json,
    write_page,
    write_picture,
)
from hosim.cli.progress import progress
from hosim.cli.terminal import say, warn
from hosim.errors import InputError

if TYPE_CHECKING:
    from hosim.serving import Served


def _routers(incomplete: str) -> list[str]:
    from hosim.serving import ROUTERS

    return [name for name in ROUTERS if name.startswith(incomplete)]


def _kv_policies(incomplete: str) -> list[str]:
    from hosim.serving.kv_policies import KV_POLICIES

    return [policy.name for policy in KV_POLICIES if policy.name.startswith(incomplete)]


def _preemptions(incomplete: str) -> list[str]:
    from hosim.serving.api import PREEMPTIONS

    return [name for name in PREEMPTIONS if name.startswith(incomplete)]


def _scheduling_policies(incomplete: str) -> list[str]:
    from hosim.serving.api import SCHEDULING

    return [name for name in SCHEDULING if name.startswith(incomplete)]


def _sendings(incomplete: str) -> list[str]:
    from hosim.serving.api import SENDING

    return [name for name in SENDING if name.startswith(incomplete)]


def _kv_links(incomplete: str) -> list[str]:
    return [name for name in ("links", "ddr", "pool") if name.startswith(incomplete)]


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A preset such as llama-3.1-8b, or a config.json.")
]
Requests = Annotated[
    str,
    typer.Option(
        "--requests",
        metavar="FILE|PROCESS",
        help="Arrivals and lengths: JSON lines, CSV of Azure or BurstGPT, or drawn as in "
        "poisson:rate=10:count=1000:prompt=512:output=128.",
    ),
]
Tensor = Annotated[
    int, typer.Option("--tensor", metavar="N", min=1, help="Devices that share each layer.")
]
Expert = Annotated[
    int,
    typer.Option(
        "--expert",
        metavar="N",
        min=1,
        help="Devices that share the experts by whole ones: as many as --tensor, or 1.",
    ),
]
ModelSet = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PARAMETER=VALUE",
        help="A parameter of the model, such as kv_block=64; may be repeated.",
    ),
]
Blocks = Annotated[
    int | None,
    typer.Option(
        "--blocks",
        metavar="N",
        min=1,
        help="Blocks of the cache.  [default: what the device has room for]",
    ),
]
BlockTokens = Annotated[
    int, typer.Option("--block-tokens", metavar="N", min=1, help="Tokens of a block.")
]
TokenBudget = Annotated[
    int | None,
    typer.Option(
        "--token-budget",
        metavar="N",
        min=1,
        help="Tokens of an iteration, at most.  [default: 2048, or what the runtime takes]",
    ),
]
MaxSequences = Annotated[
    int | None,
    typer.Option(
        "--max-sequences",
        metavar="N",
        min=1,
        help="Sequences that run at once, at most.  [default: 256, or what the runtime takes]",
    ),
]
MemoryShare = Annotated[
    float,
    typer.Option(
        "--memory-share", metavar="SHARE", help="How much of the device's memory the engine takes."
    ),
]
Overhead = Annotated[
    str,
    typer.Option(
        "--overhead", metavar="TIME", help="What the host adds to each iteration, such as 2ms."
    ),
]
Iterations = Annotated[
    Path | None,
    typer.Option(
        "--iterations", metavar="FOLDER", help="Recorded kernel times instead of the cost model."
    ),
]
Instances = Annotated[
    int,
    typer.Option(
        "--instances", metavar="N", min=1, help="Equal engines, each with a cache of its own."
    ),
]
Router = Annotated[
    str,
    typer.Option(
        "--router",
        metavar="HOW",
        help="How a request finds its engine: round_robin, least_load, prefix.",
        autocompletion=_routers,
    ),
]
Measured = Annotated[
    Path | None,
    typer.Option(
        "--measured",
        metavar="FILE",
        help="What a real server did with these requests, to compare with.",
    ),
]
Limit = Annotated[
    str | None,
    typer.Option(
        "--limit",
        metavar="LIMITS",
        help="Print the goodput within limits of ttft, tpot, latency: ttft=2s,tpot=100ms.",
    ),
]
Kv = Annotated[
    str | None,
    typer.Option(
        "--kv",
        metavar="POLICY",
        help="Cache in tiers below: lru:tiers=ddr (see 'hosim policies --kv').",
        autocompletion=_kv_policies,
    ),
]
Preemption = Annotated[
    str,
    typer.Option(
        "--preemption",
        metavar="HOW",
        help="Of a sequence for which blocks lack: recompute or swap.",
        autocompletion=_preemptions,
    ),
]
SchedulingPolicy = Annotated[
    str,
    typer.Option(
        "--scheduling-policy",
        metavar="HOW",
        help="Who goes first: fcfs, or priority (the least value, then by arrival).",
        autocompletion=_scheduling_policies,
    ),
]
PrefillInstances = Annotated[
    int,
    typer.Option(
        "--prefill-instances",
        metavar="N",
        min=0,
        help="Engines that only prefill; others decode (--decode-instances).",
    ),
]
DecodeInstances = Annotated[
    int,
    typer.Option(
        "--decode-instances",
        metavar="N",
        min=0,
        help="Engines that only decode, to which caches are transferred.",
    ),
]
KvLink = Annotated[
    str | None,
    typer.Option(
        "--kv-link",
        metavar="LINK",
        help="What caches are transferred over: links, a tier that all engines share, or what a "
        "device sends, as in 50GB/s.",
        autocompletion=_kv_links,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="POLICY",
        help="Weights in tiers below, as a policy plans them.",
        autocompletion=policy_names,
    ),
]
WeightsMemory = Annotated[
    str | None,
    typer.Option(
        "--weights-memory",
        metavar="SIZE",
        help="What a device has for them.  [default: what --blocks leave]",
    ),
]
KvSending = Annotated[
    str,
    typer.Option(
        "--kv-sending",
        metavar="HOW",
        help="When caches are transferred: whole, or by layers while prompts are computed.",
        autocompletion=_sendings,
    ),
]
PrefillHardware = Annotated[
    str | None,
    typer.Option(
        "--prefill-hardware",
        metavar="HW",
        help="The machine of engines that only prefill, if it is another one.",
    ),
]
PrefillTensor = Annotated[
    int | None,
    typer.Option(
        "--prefill-tensor",
        metavar="N",
        min=1,
        help="Devices that share each layer of engines that only prefill.",
    ),
]
Within = Annotated[
    str | None,
    typer.Option(
        "--within",
        metavar="LIMITS",
        help="Exit with 1 if a statistic is beyond its limit: ttft.p95=2s,tpot.mean=50ms.",
    ),
]
FitFirst = Annotated[
    int | None,
    typer.Option(
        "--fit-first",
        metavar="N",
        min=1,
        help="Fit the overhead to the first N measured requests; the rest is compared.",
    ),
]


def serve(
    model: Model,
    hardware: HardwareName,
    requests: Requests,
    tensor: Tensor = 1,
    expert: Expert = 1,
    set_: ModelSet = None,
    blocks: Blocks = None,
    block_tokens: BlockTokens = 16,
    token_budget: TokenBudget = None,
    max_sequences: MaxSequences = None,
    memory_share: MemoryShare = 0.9,
    runtime: RuntimeName = None,
    overhead: Overhead = "0ms",
    iterations: Iterations = None,
    instances: Instances = 1,
    router: Router = "round_robin",
    kv: Kv = None,
    preemption: Preemption = "recompute",
    scheduling_policy: SchedulingPolicy = "fcfs",
    prefill_instances: PrefillInstances = 0,
    decode_instances: DecodeInstances = 0,
    kv_link: KvLink = None,
    kv_sending: KvSending = "whole",
    prefill_hardware: PrefillHardware = None,
    prefill_tensor: PrefillTensor = None,
    weights: Weights = None,
    weights_memory: WeightsMemory = None,
    measured: Measured = None,
    fit_first: FitFirst = None,
    limit: Limit = None,
    within: Within = None,
    plot: Plot = None,
    trace: Trace = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Serve requests over time on one engine, as vLLM does.

    One engine with a paged cache: continuous batching, chunked prefill, blocks shared between equal
    prefixes, and preemption. With --kv the cache goes on in the tiers below the device, and with
    --weights so do weights. With --measured the latencies stand beside a real server's.
    """
    from hosim.importers import builder_parameters
    from hosim.plain_text import counted
    from hosim.serving import (
        as_served,
        beside_measured,
        beyond,
        check_measured,
        fitted_overhead_ns,
        latency_limits,
        read_measured_requests,
        statistic_limits,
    )
    from hosim.serving.api import serve as served
    from hosim.serving.report import serving
    from hosim.serving.requests import asked_requests
    from hosim.units import parse_time

    if plot is not None:
        from hosim.report.drawn import image_kind

        image_kind(plot)
    check_trace(trace)
    limits = None if limit is None else latency_limits(limit)
    wanted = {} if within is None else statistic_limits(within)
    if fit_first is not None and measured is None:
        raise InputError(
            "needs --measured, whose first requests it is fitted to", source="--fit-first"
        )
    if fit_first is not None and parse_time(overhead):
        raise InputError(
            "fits the overhead: leave out one of --fit-first and --overhead", source="--fit-first"
        )
    of_model = settings_of(set_)
    parameters = builder_parameters(model)
    for given in (
        {"tensor": tensor} if tensor > 1 else {},
        {"expert": expert} if expert > 1 else {},
        of_model,
    ):
        for name, value in given.items():
            if name in parameters:
                raise InputError(
                    f"{name} is given twice; keep one",
                    source="--set" if given is of_model else f"--{name}",
                )
            parameters[name] = value
    if runtime is not None:
        parameters["runtime"] = runtime
    listed = asked_requests(requests)
    real = None if measured is None else as_served(read_measured_requests(measured), listed)
    if real is not None:
        check_measured(listed.requests, real, fit_first or 0)

    def run(overhead_now: int | str) -> Served:
        return served(
            parameters,
            hardware,
            listed,
            blocks=blocks,
            block_tokens=block_tokens,
            token_budget=token_budget,
            max_sequences=max_sequences,
            memory_share=memory_share,
            overhead=overhead_now,
            iterations=iterations,
            instances=instances,
            router=router,
            kv=kv,
            preemption=preemption,
            scheduling_policy=scheduling_policy,
            prefill_instances=prefill_instances,
            decode_instances=decode_instances,
            kv_link=kv_link,
            kv_sending=kv_sending,
            prefill_hardware=prefill_hardware,
            prefill_tensor=prefill_tensor,
            weights=weights,
            weights_memory=weights_memory,
        )

    with progress(f"serving {counted(len(listed.requests), 'request')}"):
        if real is not None and fit_first is not None:
            result = run(fitted_overhead_ns(run, real, fit_first))
        else:
            result = run(overhead)
    data = result.summary()
    if real is not None:
        data["measured"] = {
            "skipped": fit_first or 0,
            **beside_measured(result, real, fit_first or 0),
        }
    if limits is not None:
        data["goodput"] = result.goodput(limits)
    table = serving(data)
    if plot is not None:
        from hosim.serving.report import serving_figure

        write_picture(plot, serving_figure(result))
    if trace is not None:
        from hosim.files import write
        from hosim.serving.report import serving_trace

        write(trace, serving_trace(result))
        say(f"wrote {trace}")
    if html is not None:
        from hosim.serving.report import serving_page

        write_page(html, serving_page(result, table))
    if json:
        print_json(data)
    else:
        console().print(table)
    if lines := beyond(data, wanted):
        warn(f"beyond the limits: {', '.join(lines)}")
        raise typer.Exit(1)


def options_of(texts: list[str] | None) -> dict[str, object]:
    """The options of :func:`hosim.serve` that ``--set`` gives. Raises :class:`InputError`, also for
    one that is none.
    """
    from hosim.serving.api import check_options

    found = settings_of(texts)
    check_options(found)
    return found


def settings_of(texts: list[str] | None) -> dict[str, object]:
    """The options that ``--set`` gives. Raises :class:`InputError` for one without a value, or that
    is given twice.
    """
    from hosim.study.asked import scalar

    found: dict[str, object] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            raise InputError(
                f"expected OPTION=VALUE, each option once, got {text!r}", source="--set"
            )
        found[name.strip()] = scalar(value.strip())
    return found
