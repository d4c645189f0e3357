"""The compiled loop and its source interpreted: the same plans and results; what is missing or
stale is said and not used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hosim

pytestmark = pytest.mark.slow

ROOT = Path(hosim.__file__).parents[1]

SAID = """
import sys
{first}
import hosim
from hosim.engine import replay
from hosim.engine.cells import COMPILED

b = hosim.GraphBuilder("a training step of twelve ops, whose activations have to leave")
for i in range(6):
    b.tensor(f"w{{i}}", 4, "parameter")
    b.tensor(f"a{{i}}", 6)
    b.op(f"f{{i}}", "matmul", inputs=[f"w{{i}}", *([f"a{{i - 1}}"] if i else [])], outputs=[f"a{{i}}"], duration_ns=50 + 7 * i)
for i in reversed(range(6)):
    b.tensor(f"g{{i}}", 2)
    b.op(f"b{{i}}", "matmul", inputs=[f"w{{i}}", f"a{{i}}", *([f"g{{i + 1}}"] if i < 5 else [])], outputs=[f"g{{i}}"], duration_ns=90)
machine = hosim.load_hardware(hosim.find_hardware("toy"))
plan = hosim.plan(b.build(), machine, "hyperoffload", budget=42)
result = replay(plan, machine, 42, engine="loop")
print(COMPILED, [(c.op, c.tensor, c.after) for c in plan.cache_ops], result.makespan_ns, result.peak_bytes, result.engine)
"""

WITHOUT = """
import importlib.util
spec = importlib.util.spec_from_file_location("hosim.engine.compiled_loop", {path!r})
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
""".format(path=str(ROOT / "hosim" / "engine" / "compiled_loop.py"))


def run(folder: Path, first: str) -> tuple[list[str], str]:
    ran = subprocess.run(
        [sys.executable, "-c", SAID.format(first=first)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.split(" ", 1), ran.stderr


@pytest.fixture(scope="module")
def usual() -> tuple[str, str]:
    """What the loop of this installation finds, after whether it is compiled."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(SAID.format(first=""), {})
    compiled, _, found = said.getvalue().partition(" ")
    return compiled, found


def test_without_the_extension_plans_and_results_are_the_same(
    tmp_path: Path, usual: tuple[str, str]
) -> None:
    (compiled, found), said = run(tmp_path, WITHOUT)
    assert compiled == "False"
    assert found == usual[1]
    assert said.count("\n") == 1
    assert "compiled loop: not compiled" in said


def compiled_at(folder: Path, **wanted: str) -> subprocess.CompletedProcess[str]:
    """Compile the loop of a copy of the package, as an installation does."""
    shutil.copy(ROOT / "hatch_build.py", folder)
    for room in ("engine", "planner/hyperoffload"):
        shutil.copytree(
            ROOT / "hosim" / room,
            folder / "hosim" / room,
            ignore=shutil.ignore_patterns("*.so", "__pycache__", "reference"),
        )
    code = (
        "from pathlib import Path; from hatch_build import compile_loops; "
        "print(compile_loops(Path.cwd(), checked=True)[0])"
    )
    env = os.environ | wanted
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def loading(path: str) -> str:
    """Code that takes the extension at a path for the compiled loop."""
    place = (
        f"import importlib.machinery, importlib.util; path = {path!r}; name = "
        "'hosim.engine.compiled_loop'\n"
    )
    load = (
        "loader = importlib.machinery.ExtensionFileLoader(name, path); spec = "
        "importlib.util.spec_from_loader(name, loader)\n"
    )
    return (
        place + load + "sys.modules[name] = module = importlib.util.module_from_spec(spec); "
        "loader.exec_module(module)\n"
    )


def test_a_stale_extension_is_refused(usual: tuple[str, str]) -> None:
    compiled, expected = usual
    if compiled == "False":
        pytest.skip("no C compiler was here at installation")
    path = importlib.util.find_spec("hosim.engine.compiled_loop").origin
    (compiled, found), said = run(ROOT, loading(path) + "module.SOURCE = 'of another source'")
    assert (compiled, found) == ("False", expected)
    assert "from another source" in said


@pytest.mark.long
@pytest.mark.skipif(not (ROOT / "hatch_build.py").exists(), reason="hatch_build.py: not a clone")
def test_a_stale_extension_is_refused_and_one_with_checks_of_bounds_finds_nothing(
    tmp_path: Path, usual: tuple[str, str]
) -> None:
    """Compiling takes half a minute. The interpreted loop, which finds the same above, checks
    bounds of its own accord.
    """
    compiled, expected = usual
    if compiled == "False":
        pytest.skip("no C compiler was here at installation")
    built = compiled_at(tmp_path)
    assert built.returncode == 0, built.stderr
    load = loading(built.stdout.strip())
    (compiled, found), said = run(tmp_path, load)
    assert (compiled, found, said) == ("True", expected, "")
    (compiled, found), said = run(tmp_path, load + "module.SOURCE = 'of another source'")
    assert (compiled, found) == ("False", expected)
    assert "from another source" in said


def test_without_a_compiler_the_installation_goes_on(tmp_path: Path) -> None:
    failed = compiled_at(tmp_path, CC="no-such-compiler")
    assert failed.returncode != 0  # what the hook catches: the wheel is pure then
