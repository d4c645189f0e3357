"""Tables of a cache in several tiers: what was found where, and what went over the channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from hosim.plain_text import counted
from hosim.report.printing import open_table, paragraph
from hosim.units import human_percent, human_size, human_time


def tiers_and_channels(kv: Mapping[str, Any]) -> list[RenderableType]:
    """The ``kv`` of a ``hosim.serving/1``."""
    tiers = open_table(
        f"Cache by tier, {kv['policy']}", "tier", "blocks", "most taken", "tokens of prompts found"
    )
    for name, found in kv["tiers"].items():
        most = (
            human_percent(found["peak_blocks"] / found["blocks"])
            if found["blocks"]
            else human_percent(0.0)
        )
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
    if "sparse" in kv:
        few = kv["sparse"]
        came = (
            f"{human_size(few['fetched_bytes'])} of each device came up for steps, which "
            f"waited {human_time(kv['stall_ns']['fetches'])}"
        )
        who = (
            f"{counted(few['thinned'], 'sequence')} left blocks below while they decoded; "
            f"{came}. Assumed: {few['assumption']}"
        )
        return [tiers, channels, paragraph(f"{loads}; {stalls}; {swaps}"), paragraph(who)]
    if not channels.row_count:
        return [tiers, paragraph(f"Nothing was copied between tiers; {swaps}")]
    return [tiers, channels, paragraph(f"{loads}; {stalls}; {swaps}")]


def channel_table(channels: Mapping[str, Any]) -> Table:
    """The channels over which something was copied."""
    table = open_table(
        "Channels", "channel", "copies", "bytes", "busy", "waited to start", "lost to sharing"
    )
    for name, one in channels.items():
        if one["copies"]:
            times = (human_time(one[key]) for key in ("queue_ns", "contention_ns"))
            table.add_row(
                name,
                f"{one['copies']:,}",
                human_size(one["bytes"]),
                human_percent(one["utilization"]),
                *times,
            )
    return table


def transferred(moved: Mapping[str, Any]) -> RenderableType:
    """The ``kv_transfer`` of a ``hosim.serving/1``."""
    what = f"{counted(moved['transfers'], 'cache')}, {human_size(moved['bytes'])} of each device,"
    sent = f"{what} went from prefill to decode over {moved['link']}"
    waits = (
        f"requests waited {human_time(moved['wait_ns'])} in all for it, "
        f"{human_time(moved['queue_ns'])} of that in the queue to decode"
    )
    return paragraph(
        f"{sent}; {waits}; engines that decode computed nothing meanwhile for "
        f"{human_time(moved['stall_ns'])}"
    )
