"""The core without the rooms beside it: it names none of them, and its tests pass where they have been taken out."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import hosim

PACKAGE = Path(hosim.__file__).parent
ROOT = PACKAGE.parent
OTHERS = ("formats", "on_torch", "serving")
"""The rooms beside the core: formats of other programs; plans on torch, and the kit for GPU machines; serving."""

DOORS = ("gpu.py", "lower.py")
"""Where the second one is called by other names."""

PART = ("golden", "engine/test_allocators_of_replays.py", "engine/test_runtime_view.py", "io/test_plan_edits.py")
"""What of the core's tests is run each time; all of them are among the long ones."""


def core_files() -> list[Path]:
    return [file for file in sorted(PACKAGE.rglob("*.py")) if file.relative_to(PACKAGE).parts[0] not in (*OTHERS, *DOORS, "__init__.py")]


def test_nothing_of_the_core_imports_another_room() -> None:
    modules = grimp.build_graph("hosim", exclude_type_checking_imports=False, cache_dir=None)
    rooms = tuple(f"hosim.{room.removesuffix('.py')}." for room in (*OTHERS, *DOORS))
    core = [module for module in modules.modules if module != "hosim" and not f"{module}.".startswith(rooms)]
    imported = {(module, one) for module in core for one in modules.find_modules_directly_imported_by(module)}
    assert [(module, one) for module, one in sorted(imported) if f"{one}.".startswith(rooms)] == []


def test_nothing_of_the_core_names_another_room_to_import_it() -> None:
    named = re.compile(rf"hosim\.({'|'.join(OTHERS)})(\.\w+)*(:\w+)?")
    texts = [
        (file.name, node.value)
        for file in core_files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and named.fullmatch(node.value)
    ]
    assert texts == []


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project without the other rooms and without their tests."""
    folder = tmp_path_factory.mktemp("alone")
    if (ROOT.parent / "shared").is_dir():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    left_out = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("hosim", "tests", "hardware_profiles", "workloads", "docs"):
        shutil.copytree(ROOT / name, folder / "core" / name, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", folder / "core")
    for room in OTHERS:
        shutil.rmtree(folder / "core/hosim" / room)
    for door in DOORS:
        (folder / "core/hosim" / door).unlink()
    for room in ("formats", "gpu", "lower", "serving"):
        shutil.rmtree(folder / "core/tests" / room)
    return folder / "core"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A Python program that finds the copy, and not the hosim that is installed."""
    known = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "120"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=known, capture_output=True, text=True, timeout=3000, check=False)


def test_every_module_of_the_core_can_be_imported_without_them(alone: Path) -> None:
    """But for those that import what an extra installs."""
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in core_files()]
    heavy = ("torch_", "storage_graph", "pt2_", "traced_tensors", "cache_nodes", "__main__", "onnx", "exact", "compiled_loop")
    listed = [name for name in names if not any(part in name for part in heavy)]
    ended = run(alone, "-c", f"import importlib, hosim\nprint(hosim.__file__)\nfor name in {listed}:\n    importlib.import_module(name)")
    assert (ended.returncode, ended.stdout) == (0, f"{alone}/hosim/__init__.py\n"), ended.stderr


def test_the_program_runs_without_them(alone: Path) -> None:
    told = run(alone, "-m", "hosim", "--help").stdout
    assert "compare-policies" in told
    assert "serve" not in told
    assert "\n  export" not in told
    ended = run(alone, "-m", "hosim", "compare-policies", "llama-3.1-8b-prefill-4k", "-H", "h100", "-p", "resident,layerwise", "--json")
    whole = run(ROOT, "-m", "hosim", "compare-policies", "llama-3.1-8b-prefill-4k", "-H", "h100", "-p", "resident,layerwise", "--json")
    assert ended.returncode == 0, ended.stderr
    timed = re.compile(r'"(planning|replay)_s": [\d.e-]+')
    assert timed.sub("", ended.stdout) == timed.sub("", whole.stdout)


def test_what_another_room_reads_is_refused(alone: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"workload_graph": []}')
    refused = run(alone, "-m", "hosim", "import", str(trace), "-o", str(tmp_path / "w.json"))
    assert refused.returncode == 2
    assert "its format is unknown; a graph can be read from: workload (hosim.workload/1);" in refused.stderr
    (tmp_path / "hosim.toml").write_text('[cases.chat]\nhardware = "h100"\nserve = {model = "gpt2", requests = "poisson:rate=1"}\n')
    refused = run(alone, "-m", "hosim", "check", "--config", str(tmp_path / "hosim.toml"))
    assert refused.returncode == 2
    assert "cannot serve" in refused.stderr


def test_a_part_of_the_cores_tests_passes_without_them(alone: Path) -> None:
    ended = run(alone, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", *(f"tests/{part}" for part in PART))
    assert ended.returncode == 0, ended.stdout[-4000:]
