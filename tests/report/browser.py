"""A page in headless Chromium, with a script that works on it and says what came of it; skips where there is no Chromium."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def browse(page: str, folder: Path, script: str, window: str = "1200,900") -> Any:
    """What ``script``, the body of a function run at the end of the page, returns; any error in the page fails."""
    chromium = next((path for path in map(shutil.which, NAMES) if path), None)
    if chromium is None:
        pytest.skip(f"no Chromium here ({', '.join(NAMES)}): it is a package of Debian's")
    caught = "<script>window.failed = []; window.onerror = (text) => { failed.push(text); };</script>"
    run = f"<script>const said = (() => {{ {script} }})();document.body.dataset.said = JSON.stringify({{said, failed}});</script></body>"
    assert page.count("<head>") == 1
    assert page.count("</body>") == 1
    path = folder / "page.html"
    path.write_text(page.replace("<head>", f"<head>{caught}").replace("</body>", run))
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}"]
    command += [f"--window-size={window}", "--virtual-time-budget=2000", "--dump-dom", path.as_uri()]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    found = re.search(r'data-said="([^"]*)"', dumped)
    assert found, dumped[-2000:]
    answer = json.loads(html.unescape(found[1]))
    assert answer["failed"] == []
    return answer["said"]
