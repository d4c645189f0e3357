"""The README's way from nothing to a failing check, its files and commands as they stand there; what is installed already is not again."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


def test_from_nothing_to_a_failing_check(root: Path, tmp_path: Path) -> None:
    text = (root / "README.md").read_text()
    text = text[text.index("## A gate for CI") :]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in blocks[:4]] == ["python", "toml", "", ""]
    model, config, commands, shown = [block for _, block in blocks[:4]]
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "model.py").write_text(model)
    (tmp_path / "hosim.toml").write_text(config)
    program = tmp_path / "bin" / "hosim"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom hosim.cli.main import main\nif __name__ == '__main__':\n    main()\n")
    program.chmod(0o755)
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOSIM_CACHE": str(tmp_path / "kept")}
    here["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    install, *others = commands.strip().splitlines()
    assert install.startswith("pip install ")
    assert len(others) < 5
    ended = [
        subprocess.run(["bash", "-c", line], cwd=tmp_path, env=here, capture_output=True, text=True, check=False) for line in others[:3]
    ]
    assert [done.returncode for done in ended] == [0, 0, 1], [done.stderr for done in ended]
    assert shown.strip() in ended[2].stdout
