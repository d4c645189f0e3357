"""Output in the log of a service: no line of it is a command, unless it is one of hosim's own."""

import io

from hosim.cli.terminal import LogLines


def test_lines_that_a_service_would_take_for_commands_get_a_backslash() -> None:
    log = LogLines(io.BytesIO(), "utf-8")
    for text in ("a::b\n", "  ::error::x", "::y\n", "", "##[group]z\n\n", "#\n\t::\n"):
        assert log.write(text) == len(text)
    log.command("::error::own")
    log.flush()
    assert (
        log.buffer.getvalue().decode()
        == "a::b\n  \\::error::x::y\n\\##[group]z\n\n#\n\t\\::\n::error::own\n"
    )
