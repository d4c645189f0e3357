"""The core without the rooms beside it: it names none of them, and its tests pass where they have
been taken out.
"""

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
"""The rooms beside the core: formats of other programs; plans on torch, and the kit for GPU
machines; serving.
"""

DOORS = ("gpu.py", "lower.py")
"""Where the second one is called by other names."""

PART = ("golden/test_ops.py", "golden/test_transfers.py", "io/test_plan_edits.py")
"""What of the core's tests is run each time; all of them are among the long ones."""

OF_THE_WHOLE = (
    "fuzz", "gate/test_adoption.py", "gate/test_own_gate.py", "importers/test_damaged_files.py", "importers/test_onnx_parts.py",
    "importers/test_written_out.py", "kept/test_kept_damage.py", "kept/test_kept_imports.py", "kept/test_kept_schedules.py", "mutants",
    "policies/test_every_policy.py", "test_core_alone.py", "test_docs.py", "test_hostile_arguments.py", "test_notebooks.py",
    "test_declared_options.py", "test_packaging.py", "test_public_docstrings.py", "test_rooms.py", "test_structure_of_hosim.py",
    "test_whole_numbers.py",
)  # fmt: skip
"""Tests that are about the whole project, or that need another room throughout."""

WITH_OTHERS = (
    "cli/test_main.py::test_help_imports_the_commands_and_no_other_room",
    "cli/test_odd_recordings.py::test_an_inductor_graph_whose_ops_contradict_each_other",
    "cli/test_options.py::test_each_section_of_the_help_has_an_example_of_its_own",
    "cli/test_options.py::test_flags_are_off_and_what_says_its_default_itself_shows_no_other",
    "cli/test_options.py::test_numbers",
    "cli/test_output_targets.py::test_no_command_overwrites_what_it_is_given",
    "cli/test_output_targets.py::test_no_page_in_a_file_of_another_ending",
    "cli/test_output_targets.py::test_which_options_write",
    "costmodel/test_guessed_collectives.py::test_a_server_counts_the_links_between_its_devices",
    "costmodel/test_guessed_collectives.py::test_a_server_says_which_collectives_are_guesses",
    "costmodel/test_guessed_collectives.py::test_requests_that_are_served_say_so",
    "files/test_bounded.py::test_a_text_of_json_is_refused_before_it_is_parsed",
    "files/test_bounded.py::test_lists_that_are_never_closed",
    "importers/test_named_workload.py::test_a_config_is_a_model_wherever_a_model_is_named",
    "importers/test_real_files.py::test_a_file_of_each_kind",
    "planner/test_rewrites_by_default.py::test_export_plans_for_a_runtime_that_keeps_the_graph",
    "policies/test_laws_of_answers.py::test_order_of_rows_and_numbers_of_blocks_mean_nothing_to_serving",
    "study/test_study_api.py::test_what_is_not_given",
    "study/test_wrong_arguments.py::test_what_is_no_argument",
    "test_api.py::test_a_wrong_argument_is_one_clear_error",
    "test_api.py::test_every_public_name_has_an_example",
    "test_api.py::test_every_public_name_is_there_and_listed",
    "test_api.py::test_public_functions_stay_functions_whatever_is_imported",
    "validate/test_calibration.py::test_what_the_kit_writes_is_read",
)
"""Tests of the core that have a case with another room."""


def core_files() -> list[Path]:
    return [
        file
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.relative_to(PACKAGE).parts[0] not in (*OTHERS, *DOORS, "__init__.py")
    ]


def test_nothing_of_the_core_imports_another_room() -> None:
    modules = grimp.build_graph("hosim", exclude_type_checking_imports=False, cache_dir=None)
    rooms = tuple(f"hosim.{room.removesuffix('.py')}." for room in (*OTHERS, *DOORS))
    core = [
        module
        for module in modules.modules
        if module != "hosim" and not f"{module}.".startswith(rooms)
    ]
    imported = {
        (module, one)
        for module in core
        for one in modules.find_modules_directly_imported_by(module)
    }
    assert [(module, one) for module, one in sorted(imported) if f"{one}.".startswith(rooms)] == []


def test_nothing_of_the_core_names_another_room_to_import_it() -> None:
    named = re.compile(rf"hosim\.({'|'.join(OTHERS)})(\.\w+)*(:\w+)?")
    texts = [
        (file.name, node.value)
        for file in core_files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and named.fullmatch(node.value)
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
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=known,
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )


def test_every_module_of_the_core_can_be_imported_without_them(alone: Path) -> None:
    """But for those that import what an extra installs."""
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in core_files()
    ]
    heavy = (
        "torch_",
        "storage_graph",
        "pt2_",
        "traced_tensors",
        "cache_nodes",
        "__main__",
        "onnx",
        "exact",
        "compiled_loop",
        "compiled_search",
    )
    listed = [name for name in names if not any(part in name for part in heavy)]
    ended = run(
        alone,
        "-c",
        f"import importlib, hosim\nprint(hosim.__file__)\nfor name in {listed}:\n    "
        "importlib.import_module(name)",
    )
    assert (ended.returncode, ended.stdout) == (0, f"{alone}/hosim/__init__.py\n"), ended.stderr


def test_the_program_runs_without_them(alone: Path) -> None:
    told = run(alone, "-m", "hosim", "--help").stdout
    assert "compare-policies" in told
    assert "serve" not in told
    assert "\n  export" not in told
    ended = run(
        alone,
        "-m",
        "hosim",
        "compare-policies",
        "llama-3.1-8b-prefill-4k",
        "-H",
        "h100",
        "-p",
        "resident,layerwise",
        "--json",
    )
    whole = run(
        ROOT,
        "-m",
        "hosim",
        "compare-policies",
        "llama-3.1-8b-prefill-4k",
        "-H",
        "h100",
        "-p",
        "resident,layerwise",
        "--json",
    )
    assert ended.returncode == 0, ended.stderr
    timed = re.compile(r'"(planning|replay)_s": [\d.e-]+')
    assert timed.sub("", ended.stdout) == timed.sub("", whole.stdout)


def test_what_another_room_reads_is_refused(alone: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"workload_graph": []}')
    refused = run(alone, "-m", "hosim", "import", str(trace), "-o", str(tmp_path / "w.json"))
    assert refused.returncode == 2
    assert (
        "its format is unknown; a graph can be read from: workload (hosim.workload/1);"
        in refused.stderr
    )
    (tmp_path / "hosim.toml").write_text(
        '[cases.chat]\nhardware = "h100"\nserve = {model = "gpt2", requests = "poisson:rate=1"}\n'
    )
    refused = run(alone, "-m", "hosim", "check", "--config", str(tmp_path / "hosim.toml"))
    assert refused.returncode == 2
    assert "cannot serve" in refused.stderr


def test_a_part_of_the_cores_tests_passes_without_them(alone: Path) -> None:
    ended = run(
        alone,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not long",
        "-p",
        "no:cacheprovider",
        *(f"tests/{part}" for part in PART),
    )
    assert ended.returncode == 0, ended.stdout[-4000:]


@pytest.mark.long
def test_all_of_the_cores_tests_pass_without_them(alone: Path) -> None:
    left_out = [f"--ignore=tests/{name}" for name in OF_THE_WHOLE] + [
        f"--deselect=tests/{name}" for name in WITH_OTHERS
    ]
    ended = run(alone, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", *left_out)
    assert ended.returncode == 0, ended.stdout[-4000:]
