"""Predictions beside measurements: ``summary.json``, and the table of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hosim.on_torch.gpu.attempts import noted_failures
from hosim.on_torch.gpu.output_files import write_json
from hosim.validate import plan_rows
from hosim.validate.kit import FORMAT, read_json


def write_summary(out: Path) -> list[dict[str, Any]]:
    """Write ``summary.json`` from the folders that are there, with what failed; returns its
    rows.
    """
    rows, device = plan_rows(out), read_json(out / "meta.json", ["device"])["device"]
    write_json(
        out / "summary.json",
        {"format": FORMAT, "device": device, "runs": rows, "failed": dict(noted_failures(out))},
    )
    return rows


def table(rows: Sequence[Mapping[str, Any]], failed: Mapping[str, str]) -> str:
    """The rows as text, and a line for each that failed."""
    lines = [
        f"{'':28} {'budget':>15} {'allocated':>15} {'predicted':>15} {'off':>7} {'step ms':>9} "
        f"{'predicted':>9} {'off':>7}"
    ]
    for row in rows:
        got, said = row["measured"], row["predicted"]
        if row["error"] is not None:
            lines.append(f"{row['name']:28} {row['error']}")
            continue
        budget = "resident" if row["budget_bytes"] is None else f"{row['budget_bytes']:,}"
        peak = _beside(got["allocated_bytes"], said["allocated_bytes"], 15, "{:,}", 1)
        step = _beside(got["step_ns"], said["step_ns"], 9, "{:.2f}", 1e6)
        other = "  other results" if row["same_results"] is False else ""
        lines.append(f"{row['name']:28} {budget:>15} {peak} {step}{other}".rstrip())
    lines += [f"failed: {name}: {reason}" for name, reason in failed.items()]
    return "\n".join(lines)


def _beside(got: int | None, said: int, width: int, form: str, unit: float) -> str:
    predicted = form.format(said / unit if unit != 1 else said)
    if got is None:
        return f"{'-':>{width}} {predicted:>{width}} {'':>7}"
    return (
        f"{form.format(got / unit if unit != 1 else got):>{width}} {predicted:>{width}} "
        f"{said / got - 1:>+7.1%}"
    )
