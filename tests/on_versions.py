"""``make versions``: the tests of torch's rooms under the lowest and the newest torch and
transformers that `hosim doctor` says were tried, each in an environment over that of the tests.

A version that cannot be installed here is named and left out.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from hosim.report.listed import TRIED

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("tests/lower", "tests/gpu")
BRIDGED = (
    "torchtitan==0.3.0",
    "triton",
    *("torch_checkpointing", "torchdata", "spmd_types==0.2.3"),
    *("tyro", "docstring_parser", "shtab", "typeguard"),
)
"""A package that hosim has a bridge to, and what its graph_trainer imports of what it requires: the
rest (wandb, datasets, tensorboard) is large, and other versions of it are installed.
"""


def environment(name: str, wanted: list[str]) -> Path | None:
    """The Python of an environment with these packages, and all others of this one; ``None`` if
    they cannot be installed.
    """
    folder = ROOT / "build/versions" / name
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    below = sysconfig.get_path("purelib")
    (Path(found.stdout.strip()) / "below.pth").write_text(
        f"import site; site.addsitedir({below!r})\n"
    )
    install = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    if subprocess.run([*install, "--no-deps", *BRIDGED]).returncode:
        print(f"{BRIDGED[0]} cannot be installed here: its bridge is not tested", flush=True)
    return python if subprocess.run([*install, *wanted]).returncode == 0 else None


def main() -> int:
    """Runs the command."""
    failed = 0
    for at, name in enumerate(("lowest", "newest")):
        wanted = [f"{package}=={versions[at]}" for package, versions in TRIED.items()]
        python = environment(name, wanted)
        if python is None:
            print(f"{' and '.join(wanted)} cannot be installed here: not tried", flush=True)
            continue
        print(f"{name}: {' and '.join(wanted)}", flush=True)
        options = ["-q", "-m", "not long", "-n", "2", "--dist=loadfile", "-p", "no:cacheprovider"]
        run = subprocess.run([python, "-m", "pytest", *options, *ROOMS], cwd=ROOT)
        failed = failed or run.returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
