"""Figures from outside beside hosim's own. A test notes each with the fixture ``compared``; ``make
truth`` prints them as a table.
"""

from collections.abc import Callable

import pytest


@pytest.fixture
def compared(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """``compared(by, subject, quantity, truth, ours, within=0, slack=0)``: note both figures, and
    fail where they differ by more.

    ``by`` is whose the true figure is; ``within`` is relative to it, ``slack`` comes on top and has
    its unit. ``interval`` are the ends of hosim's own interval; without the other two the true
    figure has to lie in it.
    """

    def compare(
        by: str,
        subject: str,
        quantity: str,
        truth: float,
        ours: float,
        within: float = 0.0,
        slack: float = 0.0,
        interval: tuple[float, float] | None = None,
    ) -> None:
        if truth or ours:
            record_property("truth", [by, subject, quantity, truth, ours, within, slack, interval])
        if interval is not None and not within and not slack:
            low, high = interval
            assert low <= truth <= high, (
                f"{subject}, {quantity}: {by}'s {truth:,} is not from {low:,} to {high:,}"
            )
            return
        assert abs(ours - truth) <= within * abs(truth) + slack, (
            f"{subject}, {quantity}: {ours:,} is not {by}'s {truth:,}"
        )

    return compare


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--truth-table", action="store_true", help="print what the tests marked truth have compared"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "truth: compares hosim's figures with others'")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "compared" in getattr(item, "fixturenames", ()):
            item.add_marker("truth")
    # files with long tests first, so that no process is left with one at the end
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not config.getoption("--truth-table"):
        return
    reports = [
        report
        for kind in ("passed", "failed")
        for report in terminalreporter.getreports(kind)
        if report.when == "call"
    ]
    rows = [
        (report.nodeid, *value)
        for report in reports
        for key, value in report.user_properties
        if key == "truth"
    ]
    lines = [
        ("truth by", "what", "figure", "truth", "hosim", "ratio", "held within", "90% interval")
    ]
    for _, by, subject, quantity, truth, ours, within, slack, interval in sorted(
        rows, key=lambda row: (row[1], row[0], row[2], row[3])
    ):
        ratio = f"{ours / truth:.5f}" if truth else "-"
        bounds = [f"{100 * within:g}%"] * (within > 0) + [_text(slack)] * (slack > 0)
        ends = " to ".join(map(_text, interval)) if interval else ""
        held = " + ".join(bounds) or ("interval" if interval else "exact")
        lines.append((by, subject, quantity, _text(truth), _text(ours), ratio, held, ends))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    terminalreporter.section("truth")
    for line in lines:
        cells = [
            cell.ljust(width) if k < 3 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        terminalreporter.write_line("  ".join(cells).rstrip())
    terminalreporter.write_line(f"{len(lines) - 1} figures")


def _text(figure: float) -> str:
    return (
        f"{figure:,}"
        if isinstance(figure, int)
        else f"{figure:,.0f}"
        if figure >= 1000
        else f"{figure:.4g}"
    )
