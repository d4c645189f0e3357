"""Describe who changed since a baseline was written: hosim, or the user's model, hardware or
question.
"""

from __future__ import annotations

from hosim import shipped
from hosim.gate.records import REQUESTS, SHIPPED, SOURCE, Record


def changed_since(before: Record, now: Record) -> str:
    """Return what changed in hosim since the baseline, and whether something of the user's did,
    too; empty if nothing of hosim's changed.
    """
    hosims = [
        f"{name} {was} to {number}"
        for name, number in now.versions.items()
        if (was := before.versions.get(name, 1)) != number
    ]
    another_machine = _machine(before) != _machine(now)
    of_hosim = now.asked.get("hardware") in shipped.hardware()
    if another_machine and of_hosim and _asks_same(before, now):
        old, new = (record.machine.get("version", "1") for record in (before, now))
        hosims.append(f"hardware profile {old} to {new}" if old != new else "hardware profile")
    if not hosims:
        return (
            f"the baseline was written by hosim {before.hosim}, this is {now.hosim}"
            if before.hosim != now.hosim
            else ""
        )
    said = f"hosim changed since the baseline ({', '.join(hosims)})"
    same_graph = before.fingerprints.get("graph") == now.fingerprints.get("graph")
    sources = before.fingerprints.get(SOURCE), now.fingerprints.get(SOURCE)
    if not same_graph and not all(sources) and sources[1] != SHIPPED:
        return (
            f"{said}; the baseline does not say whether your model changed, too: hosim "
            f"{before.hosim} on this commit would"
        )
    yours = [
        *(["what the case asks"] if not _asks_same(before, now) else []),
        *(["the workload"] if not same_graph and sources[0] != sources[1] != SHIPPED else []),
        *(
            ["the requests"]
            if before.fingerprints.get(REQUESTS) != now.fingerprints.get(REQUESTS)
            else []
        ),
        *(["the hardware profile"] if another_machine and not of_hosim else []),
    ]
    if yours:
        return (
            f"{said}, and so did {' and '.join(yours)}: hosim {before.hosim} on this commit "
            "tells the two apart"
        )
    return f"{said}, your model did not: review the figures, then run 'hosim baseline update'"


def _asks_same(before: Record, now: Record) -> bool:
    """Return whether both are about the same question; the lines of a matrix do not repeat it."""
    return not before.asked or before.asked == now.asked


def _machine(record: Record) -> tuple[dict[str, str], str]:
    """The profile, as a baseline of a case or the line of a matrix has it, without the budget,
    which depends on the workload.
    """
    return {
        key: value for key, value in record.machine.items() if key != "budget"
    }, record.fingerprints.get("machine", "")
