"""Tables of requests that were served."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from hosim.notes import sentence
from hosim.plain_text import counted
from hosim.report.answers import Answer
from hosim.report.printing import NOTHING, open_table, paragraph
from hosim.units import human_percent, human_size, human_time


def tiers_and_channels(kv: Mapping[str, Any]) -> list[RenderableType]:
    """The ``kv`` of a ``hosim.serving/1``."""
    tiers = open_table(
        f"Cache by tier, {kv['policy']}", "tier", "blocks", "most taken", "tokens of prompts found"
    )
    for name, found in kv["tiers"].items():
        most = human_percent(found["peak_blocks"] / found["blocks"] if found["blocks"] else 0.0)
        stores = f"{found['stores']:,} x " if found["stores"] > 1 else ""
        tiers.add_row(name, f"{stores}{found['blocks']:,}", most, human_percent(found["hit_share"]))
    channels = channel_table(kv["channels"])
    loads = (
        f"{counted(kv['loads'], 'request')} waited {human_time(kv['load_wait_ns'])} in all "
        "for blocks to come up"
    )
    stalls = (
        f"nothing computed for {human_time(kv['stall_ns']['loads'])} while blocks came up, "
        f"and for {human_time(kv['stall_ns']['evictions'])} while blocks were copied down before "
        "they could be written"
    )
    swaps = (
        f"{counted(kv['swaps'], 'sequence')} swapped out; "
        f"{counted(kv['dropped_blocks'], 'block')} left the last tier"
    )
    few = kv.get("sparse")
    if few is None and not channels.row_count:
        return [tiers, paragraph(f"Nothing was copied between tiers; {swaps}")]
    parts: list[RenderableType] = [tiers, channels, paragraph(f"{loads}; {stalls}; {swaps}")]
    if few is not None:
        who = (
            f"{counted(few['thinned'], 'sequence')} left blocks below while they decoded; "
            f"{human_size(few['fetched_bytes'])} of each device came up for steps, which "
            f"waited {human_time(kv['stall_ns']['fetches'])}. Assumed: {few['assumption']}"
        )
        parts.append(paragraph(who))
    return parts


def channel_table(channels: Mapping[str, Any]) -> Table:
    """The channels over which something was copied."""
    table = open_table(
        "Channels", "channel", "copies", "bytes", "busy", "waited to start", "lost to sharing"
    )
    for name, one in channels.items():
        if one["copies"]:
            table.add_row(
                name,
                f"{one['copies']:,}",
                human_size(one["bytes"]),
                human_percent(one["utilization"]),
                *(human_time(one[key]) for key in ("queue_ns", "contention_ns")),
            )
    return table


def transferred(moved: Mapping[str, Any]) -> RenderableType:
    """The ``kv_transfer`` of a ``hosim.serving/1``."""
    return paragraph(
        f"{counted(moved['transfers'], 'cache')}, {human_size(moved['bytes'])} of each device, "
        f"went from prefill to decode over {moved['link']}; "
        f"requests waited {human_time(moved['wait_ns'])} in all for it, "
        f"{human_time(moved['queue_ns'])} of that in the queue to decode; "
        "engines that decode computed nothing meanwhile for "
        f"{human_time(moved['stall_ns'])}"
    )


# -- weights ---------------------------------------------------------------------------------------


def weights(found: Mapping[str, Any], with_channels: bool) -> list[RenderableType]:
    """The ``weights`` of a ``hosim.serving/1``, with its channels where they are not shown
    already.
    """
    held = ", ".join(f"{human_size(size)} in {tier}" for tier, size in found["peak_bytes"].items())
    if not found["iteration_bytes"]:
        return [
            paragraph(f"weights, {found['policy']}: {held} of each device; all stay in the device")
        ]
    moved = (
        f"{found['moved_layers']} of {counted(found['layers'], 'layer')} come up in each iteration"
    )
    size = (
        f"{human_size(found['iteration_bytes'])} an iteration, {human_size(found['bytes'])} in all"
    )
    stalls = (
        f"iterations waited {human_time(found['stall_ns'])} in all for weights, "
        f"{human_time(found['stall_ns'] // found['iterations'])} each"
    )
    parts: list[RenderableType] = [
        paragraph(
            f"weights, {found['policy']}: at most {held} of each device; {moved} ({size}); {stalls}"
        )
    ]
    return [channel_table(found["channels"]), *parts] if with_channels else parts


# -- requests --------------------------------------------------------------------------------------


_LATENCIES = {
    "ttft_ns": "first token",
    "tpot_ns": "each token after it",
    "inter_token_ns": "between two tokens",
    "latency_ns": "last token",
}

Commands = Sequence[tuple[str, str]]

_KERNELS_ALONE = (
    "These are the times of the kernels alone. A host adds to each iteration (--overhead): 0.15 "
    "and 2.5 ms on two measured servers, where "
    "leaving it out made tokens up to 22 % too fast."
)


def serving(data: Mapping[str, Any]) -> RenderableType:
    """A ``hosim.serving/1``: latencies, what went through, and what became of the cache; with
    ``measured``, beside a real server.
    """
    parts: list[RenderableType] = []
    table = open_table(
        f"{data['model']} on {_engines(data)}: {counted(data['requests'], 'request')}",
        "latency",
        *_names(data["ttft_ns"]),
    )
    for key, name in _LATENCIES.items():
        table.add_row(name, *(_time(value) for value in data[key].values()))
    parts.append(table)
    if "draws" in data:
        parts.append(_in_draws(data["draws"]))
    if "measured" in data:
        parts.append(_beside(data["measured"]))
    overhead = (
        f", to each of which the host adds {human_time(data['overhead_ns'])}"
        if data["overhead_ns"]
        else ""
    )
    rates = (
        f"{data['output_tokens_per_s']:,.0f} tokens/s out, {data['prompt_tokens_per_s']:,.0f} "
        "tokens/s of prompts"
    )
    span = (
        f"over {human_time(data['span_ns'])}; {counted(data['iterations'], 'iteration')}{overhead}"
    )
    parts.append(paragraph(f"{rates} and {data['requests_per_s']:.3g} requests/s {span}"))
    if not data["overhead_ns"] and "measured" not in data:
        parts.append(paragraph(_KERNELS_ALONE))
    parts += [paragraph(sentence(line)) for line in data.get("notes", ())]
    if "goodput" in data:
        parts.append(paragraph(_kept(data["goodput"], data["requests"])))
    mean, peak = (
        human_percent(data[key] / data["blocks"]) for key in ("mean_blocks", "peak_blocks")
    )
    held = f"{mean} held on average while it computes and {peak} at most"
    hits = (
        f"{human_percent(data['prefix_hit_share'])} of the prompts' tokens were in it; "
        f"{counted(data['preemptions'], 'preemption')}"
    )
    parts += [paragraph(line) for line in _left_out(data)]
    if "instances" in data:
        held += " (of one engine)"
    parts.append(
        paragraph(
            f"cache: {data['blocks']:,} blocks of {data['block_tokens']} tokens, {held}; {hits}"
        )
    )
    if "kv_transfer" in data:
        parts.append(transferred(data["kv_transfer"]))
    if "kv" in data:
        parts += tiers_and_channels(data["kv"])
    if "weights" in data:
        parts += weights(data["weights"], "kv" not in data)
    return Group(*parts)


def _left_out(data: Mapping[str, Any]) -> list[str]:
    """The requests of a file that have no answer, and what is assumed as the file does not say it."""
    lines = []
    if count := data["unanswered"]:
        are = "is" if count == 1 else "are"
        lines.append(f"{counted(count, 'request')} of the file without an answer {are} left out")
    if "assumed" in data:
        lines.append(data["assumed"])
    return lines


_GROWS = 0.05
"""An engine is overloaded where the queue grows by more than this share of what arrives."""


def serving_answer(
    data: Mapping[str, Any], growth: tuple[float, float], next_commands: Commands = ()
) -> Answer:
    """Return whether the engine keeps up, and how long answers take: ``growth`` are the requests a
    second by which the queue grows, and those that arrive.
    """
    grows, arrive = growth
    overloaded = arrive > 0 and grows > _GROWS * arrive
    rates = (
        f"{data['requests_per_s']:.3g} requests/s and {data['output_tokens_per_s']:,.0f} tokens/s "
        "out"
    )
    said = (
        f"Overloaded: the queue grows by {grows:.2g} requests a second; {arrive:.3g} arrive, and "
        f"it serves {rates}."
        if overloaded
        else f"{'Keeps up' if arrive else 'Serves all at once'}: {rates}."
    )
    said += _interval(data.get("draws"))
    if "goodput" in data:
        said += f" {_kept(data['goodput'], data['requests'])}."
    beside = data.get("measured")
    if beside is not None:
        said = f"{_errors(beside)} {said}"
    late = data["ttft_ns"].get("p95")
    latency = [("first token, P95", human_time(round(late)))] if late is not None else []
    return Answer(
        f"{data['model']} on {_engines(data)}: {counted(data['requests'], 'request')}",
        said,
        good=not overloaded,
        ranked=False,
        columns=("latency", *_names(data["ttft_ns"]))
        if beside is None
        else ("latency", "measured", "simulated", "error of mean", "of P95"),
        rows=_latency_rows(data) if beside is None else _rows_beside(beside),
        rest="; ".join(
            [
                *_left_out(data),
                *[sentence(line).rstrip(".") for line in data.get("notes", ())],
                *(
                    []
                    if data["overhead_ns"]
                    else ["kernels alone: --overhead adds the host's time"]
                ),
            ]
        ),
        figures=(
            ("requests/s", f"{data['requests_per_s']:.3g}"),
            ("tokens/s out", f"{data['output_tokens_per_s']:,.0f}"),
            *latency,
        ),
        next_commands=tuple(next_commands),
    )


def _latency_rows(data: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        [
            (name, *(_time(value) for value in data[key].values()))
            for key, name in _LATENCIES.items()
        ]
    )


def _rows_beside(measured: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """The mean latencies beside those of a real server, and the errors."""
    return tuple(
        [
            (
                name,
                _time(measured[key]["measured"]["mean"]),
                _time(measured[key]["simulated"]["mean"]),
                *(_error(measured[key]["error"][of]) for of in ("mean", "p95")),
            )
            for key, name in _LATENCIES.items()
            if key in measured
        ]
    )


def _errors(measured: Mapping[str, Any]) -> str:
    """The largest error of a mean, and how many requests the host's overhead was fitted to."""
    worst = max(
        [key for key in _LATENCIES if key in measured],
        key=lambda key: abs(measured[key]["error"]["mean"] or 0),
    )
    fitted = f", fitted to the first {measured['skipped']:,}" if measured["skipped"] else ""
    return (
        f"Beside the real server{fitted}: the mean of the {_LATENCIES[worst]} is off by "
        f"{_error(measured[worst]['error']['mean'])}, the others by less."
    )


_DRAWN = ("mean", "p50", "p95")
"""The statistics whose intervals the table has; the JSON has all of them."""


def _interval(draws: Mapping[str, Any] | None) -> str:
    """The 90 % interval of the first token, where there are draws in which all requests fit."""
    ends = draws["ttft_ns"]["p95"] if draws and draws["unfit"] < draws["count"] else None
    return (
        f" First token, P95: {_time(ends[0])} to {_time(ends[1])} in 9 of 10 draws." if ends else ""
    )


def _in_draws(draws: Mapping[str, Any]) -> RenderableType:
    """The 90 % intervals of latencies and throughput."""
    if draws["unfit"] == draws["count"]:
        return paragraph("in no draw of what is uncertain has the cache room for every request")
    names = _names(dict.fromkeys(_DRAWN))
    table = open_table(f"90 % intervals, from {draws['count']} draws", "latency", *names)
    for key, name in _LATENCIES.items():
        ends = [draws[key][of] for of in _DRAWN]
        table.add_row(
            name, *[NOTHING if one is None else " to ".join(map(_time, one)) for one in ends]
        )
    tokens, requests = draws["output_tokens_per_s"], draws["requests_per_s"]
    rates = (
        f"{tokens[0]:,.0f} to {tokens[1]:,.0f} tokens/s out and {requests[0]:.3g} to "
        f"{requests[1]:.3g} requests/s in 9 of 10 draws"
    )
    if draws["prefix_hit_share"][1]:
        hits = " to ".join(human_percent(end) for end in draws["prefix_hit_share"])
        rates += f"; {hits} of the prompts' tokens are found"
    unfit = (
        f"; in {draws['unfit']} of {draws['count']} the cache has no room for a request"
        if draws["unfit"]
        else ""
    )
    return Group(table, paragraph(f"{rates}{unfit}"))


def _engines(data: Mapping[str, Any]) -> str:
    several = f"{data['instances']} x " if "instances" in data else ""
    if "kv_transfer" in data:
        moved, unlike = data["kv_transfer"], data.get("prefill")
        kind = (
            f" x {unlike['hardware']}, {counted(unlike['devices'], 'device')} each,"
            if unlike
            else ""
        )
        several = (
            f"{moved['prefill_instances']} (prefill){kind} and {moved['decode_instances']} "
            "(decode) x "
        )
    return f"{several}{data['hardware']}" + (f" behind {data['router']}" if several else "")


def _kept(found: Mapping[str, Any], of: int) -> str:
    limits = ", ".join(
        f"{_LATENCIES[f'{name}_ns']} {human_time(limit)}"
        for name, limit in found["limits_ns"].items()
    )
    rates = (
        f"{found['requests_per_s']:.3g} requests/s and {found['output_tokens_per_s']:,.0f} "
        "tokens/s out"
    )
    kept = f"{found['requests']:,} of {counted(of, 'request')} ({human_percent(found['share'])})"
    return f"goodput: {kept} keep the limits ({limits}): {rates}"


def _beside(measured: Mapping[str, Any]) -> RenderableType:
    skipped = f", without the first {measured['skipped']:,} requests" if measured["skipped"] else ""
    figures = {key: measured[key] for key in _LATENCIES if key in measured}
    table = open_table(
        f"Beside the real server{skipped}",
        "latency",
        "",
        *_names(next(iter(figures.values()))["error"]),
    )
    for key, found in figures.items():
        table.add_row(
            _LATENCIES[key], "measured", *(_time(value) for value in found["measured"].values())
        )
        table.add_row("", "simulated", *(_time(value) for value in found["simulated"].values()))
        rows = [
            ("error", found["error"]),
            *(
                [(f"as the first {measured['skipped']:,}", found["rival"])]
                if "rival" in found
                else []
            ),
        ]
        for number, (name, errors) in enumerate(rows, 1):
            table.add_row("", name, *map(_error, errors.values()), end_section=number == len(rows))
    return Group(table, *_throughput(measured))


def _throughput(measured: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Tokens of answers each second, from the first of these arrivals to the last token."""
    found = measured.get("throughput")
    if found is None or found["measured"]["output_tokens_per_s"] is None:
        return
    real, ours, error = (
        found[name]["output_tokens_per_s"] for name in ("measured", "simulated", "error")
    )
    said = f"throughput: {real:,.0f} tokens/s measured, {ours:,.0f} simulated: {_error(error)}"
    if "rival" in found:
        said += (
            f" ({_error(found['rival']['output_tokens_per_s'])} as the first "
            f"{measured['skipped']:,})"
        )
    yield paragraph(said)
    if "rival" in found:
        yield paragraph(
            f"'as the first {measured['skipped']:,}' is the error of who says that the others are "
            "served as these were"
        )


def _error(value: float | None) -> str:
    return NOTHING if value is None else human_percent(value, 2, signed=True)


def _names(statistics: Mapping[str, Any]) -> list[str]:
    return [name.upper() if name[1:].isdecimal() else name for name in statistics]


def _time(nanoseconds: float | None) -> str:
    return NOTHING if nanoseconds is None else human_time(round(nanoseconds))
