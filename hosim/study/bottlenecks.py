"""The next limit of a channel that is given more bandwidth: a memory at its end, or a fabric
narrower than it.
"""

from collections.abc import Iterator, Sequence

from hosim.analysis.costmodel import copies_compete
from hosim.errors import HosimError
from hosim.hardware import Hardware
from hosim.study.asked import Settings
from hosim.study.runs import HARDWARE, Question
from hosim.units import human_rate


def capped(question: Question, points: Sequence[Settings]) -> list[str]:
    """For each channel whose varied bandwidth exceeds that of a memory or fabric at some point, a
    line that says what to vary with it.

    Memories bound transfers where some op has no measured duration (rule 13). Fabrics were raised
    with the channel, unless the point has their bandwidth, too, or they are narrower in the
    profile.
    """
    competing = copies_compete(question.graph)
    found: dict[tuple[str, str], int] = {}
    for point in points:
        hardware = {
            f: value
            for f, value in point.items()
            if f.removeprefix(HARDWARE).startswith(("channels.", "fabrics.", "tiers."))
        }
        varied = {
            field.split(".")[-2]
            for field in hardware
            if "channels." in field and field.endswith(".bandwidth")
        }
        try:
            machine = question.with_settings(hardware).hardware if varied else question.hardware
        except HosimError:  # that point's row will say so
            continue
        found |= {
            (channel, bound): carries
            for channel, bound, carries in _above(machine, competing)
            if channel in varied
        }
    return [
        f"channels.{channel}.bandwidth exceeds that of {bound}, {human_rate(carries)}: "
        f"channels.{channel}.bandwidth+{bound}.bandwidth=... varies both"
        for (channel, bound), carries in found.items()
    ]


def _above(hardware: Hardware, competing: bool) -> Iterator[tuple[str, str, int]]:
    """(Channel, what bounds it, the bandwidth of that) for each channel that is faster than one of
    its fabrics or memories.
    """
    for channel in hardware.channels:
        bounds = [
            (f"fabrics.{f.name}", f.bandwidth_bytes_per_s)
            for f in hardware.fabrics
            if channel.name in f.channels
        ]
        if competing:
            ends = channel.source, channel.destination
            bounds += [
                (f"tiers.{t.name}", t.bandwidth_bytes_per_s)
                for t in hardware.tiers
                if t.name in ends
            ]
        for bound, carries in bounds:
            if channel.bandwidth_bytes_per_s > carries:
                yield channel.name, bound, carries
