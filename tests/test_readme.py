"""What the README shows is what its commands print."""

import re
from pathlib import Path

from typer.testing import CliRunner

from hosim.cli.main import app

TIMED = "Planning + replay took"
"""The one paragraph that no two runs share."""


def paragraphs(text: str) -> list[str]:
    """Paragraphs without trailing blanks, and without the one of seconds."""
    plain = "\n".join(line.rstrip() for line in text.splitlines())
    return [paragraph for paragraph in plain.strip().split("\n\n") if not paragraph.startswith(TIMED)]


def test_the_result_shown_is_what_its_command_prints(root: Path) -> None:
    blocks = re.findall(r"^```\n\$ hosim (.+?)\n(.*?)^```", (root / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for command, shown in blocks:
        printed = CliRunner().invoke(app, command.split(), env={"COLUMNS": "120"})
        assert printed.exit_code == 0
        assert paragraphs(printed.stdout) == paragraphs(shown)
