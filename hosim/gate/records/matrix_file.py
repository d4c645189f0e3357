"""The baseline file of a matrix: one sorted line per case, so that a person can review hundreds of
cases in one diff.

A line has the metrics that are not 0 and fingerprints, or says that the case does not fit; a
comment has makespan and peaks. The file does not keep what was held at a peak, so explanations can
describe only the present.
"""

import os
from collections.abc import Iterator, Mapping

from hosim.data.versions import REPLAY
from hosim.errors import InputError
from hosim.gate.judged_metrics import MAKESPAN, PEAK, family, human
from hosim.gate.records.baselines import HEADER, as_word, of_word, quoted, save_text, version_lines
from hosim.gate.records.record import SOURCE, Listing, Measured, Record

UNFIT = "does not fit"

FINGERPRINTS = ("graph", "machine", "plan")


def read_matrix(path: str | os.PathLike[str], matrix: str) -> dict[str, Measured]:
    """The record of each case by its name; ``None`` for a case that does not fit. Raises
    :class:`InputError`.
    """
    from hosim.io.gate_files import load_baselines

    data = load_baselines(path)
    found = {}
    versions = {REPLAY: data["semantics"], **data.get("versions", {})}
    for name, line in data["cases"].items():
        case = f"{matrix}/{name}"
        if line == UNFIT:
            found[case] = Measured(None, UNFIT)
            continue
        words = line.split(" ")
        values = dict(zip(words[::2], words[1::2], strict=False))
        prints = {key: values.pop(key, "") for key in FINGERPRINTS}
        if source := values.pop(SOURCE, ""):
            prints[SOURCE] = source
        again = "'hosim baseline update' writes it again"
        if (
            len(words) % 2
            or not all(prints.values())
            or not all(v.isascii() and v.isdecimal() for v in values.values())
        ):
            raise InputError(
                f"expected metrics with whole numbers and fingerprints, or {UNFIT!r}, got "
                f"{line!r}; {again}",
                source=os.fspath(path),
                where=f"cases.{name}",
            )
        metrics = {of_word(metric): int(value) for metric, value in values.items()}
        found[case] = Measured(
            brief(case, {}, prints, metrics, hosim=data["hosim"], versions=versions)
        )
    return found


def brief(
    case: str,
    asked: Mapping[str, str],
    fingerprints: Mapping[str, str],
    metrics: Mapping[str, int],
    *,
    hosim: str,
    versions: Mapping[str, int],
) -> Record:
    """A record with only what a line has."""
    return Record(
        case, asked, fingerprints, metrics, {}, {}, {}, Listing(), Listing(), (), hosim, versions
    )


def save_matrix(
    known: Mapping[str, Measured],
    path: str | os.PathLike[str],
    *,
    hosim: str,
    versions: Mapping[str, int],
) -> bool:
    """Write the file of the matrix; returns whether it changed. Raises :class:`InputError` if it
    cannot be written.
    """
    return save_text(HEADER + "".join(f"{line}\n" for line in _lines(known, hosim, versions)), path)


def _lines(known: Mapping[str, Measured], hosim: str, versions: Mapping[str, int]) -> Iterator[str]:
    yield f"format = {quoted('hosim.baselines/1')}"
    yield f"hosim = {quoted(hosim)}"
    yield f"semantics = {versions[REPLAY]}"
    yield from version_lines(versions)
    yield "\n[cases]"
    for case in sorted(known):
        name, record = quoted(case.partition("/")[2]), known[case].record
        if record is None:
            yield f"{name} = {quoted(UNFIT)}"
            continue
        words = [
            f"{as_word(metric)} {value}"
            for metric, value in sorted(record.metrics.items())
            if value
        ]
        words += [
            f"{key} {record.fingerprints[key]}"
            for key in (*FINGERPRINTS, SOURCE)
            if key in record.fingerprints
        ]
        peaks = [
            f"{as_word(m.partition('.')[2])} {human(m, value)}"
            for m, value in sorted(record.metrics.items())
            if value and family(m) == PEAK
        ]
        told = ", ".join([human(MAKESPAN, record.metrics.get(MAKESPAN, 0)), *peaks])
        yield f"{name} = {quoted(' '.join(words))}  # {told}"
