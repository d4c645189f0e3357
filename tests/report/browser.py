"""Pages in headless Chromium, with a script each that works on the page and says what came of it;
skips where there is no Chromium.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")

COLLECT = """
  window.onload = () => {
    const frames = [...document.querySelectorAll("iframe")];
    document.body.dataset.said = JSON.stringify(frames.map((frame) => JSON.parse(frame.contentDocument.body.dataset.said ?? null)));
  };
"""


@dataclass(frozen=True)
class Scene:
    """A page in a window of some width; ``script`` is the body of a function that runs at the end
    of the page.
    """

    page: str
    script: str
    width: int = 1200
    height: int = 900


def browse(scenes: Mapping[str, Scene], folder: Path) -> dict[str, Any]:
    """What each script returns, all in one start of the browser; any error in a page fails."""
    chromium = next((path for path in map(shutil.which, NAMES) if path), None)
    if chromium is None:
        pytest.skip(f"no Chromium here ({', '.join(NAMES)}): it is a package of Debian's")
    frames = "".join(
        f'<iframe style="border: 0; width: {scene.width}px; height: {scene.height}px" '
        f'srcdoc="{escape(_with_script(scene))}"></iframe>'
        for scene in scenes.values()
    )
    path = folder / "scenes.html"
    path.write_text(f"<!doctype html><html><body>{frames}<script>{COLLECT}</script></body></html>")
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
    ]
    command += [
        "--window-size=1600,1000",
        "--virtual-time-budget=5000",
        "--dump-dom",
        path.as_uri(),
    ]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    found = re.findall(r'<body data-said="([^"]*)"', dumped)
    assert found, dumped[-2000:]
    answers = dict(zip(scenes, json.loads(unescape(found[0])), strict=True))
    assert {name: answer and answer["failed"] for name, answer in answers.items()} == {
        name: [] for name in scenes
    }
    return {name: answer["said"] for name, answer in answers.items()}


def _with_script(scene: Scene) -> str:
    caught = (
        "<script>window.failed = []; window.onerror = (text) => { failed.push(text); };</script>"
    )
    says = (
        f"const said = (() => {{ {scene.script} }})(); document.body.dataset.said = "
        f"JSON.stringify({{said, failed}});"
    )
    assert scene.page.count("<head>") == 1
    assert scene.page.count("</body>") == 1
    return scene.page.replace("<head>", f"<head>{caught}").replace(
        "</body>", f"<script>{says}</script></body>"
    )
