"""The pytest plugin, in projects of its own: silent until used, its failures are explanations, and
xdist changes nothing.

The plugin is named on the command line and no other is loaded, so that it is tested whether or not
its entry point is installed.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rendered import facts

TESTS = """
import pytest
from hosim import GraphBuilder

SIZE = {size}


def graph(size=SIZE):
    b = GraphBuilder("g")
    b.tensor("w", 40, "parameter")
    b.tensor("layers.0.act", size)
    b.op("f", "matmul", inputs=["w"], outputs=["layers.0.act"], duration_ns=50)
    b.op("g", "relu", inputs=["layers.0.act"], duration_ns=50)
    return b.build()


@pytest.mark.hosim(hardware="toy", policy="resident")
@pytest.mark.parametrize("extra", [0, 5], ids=["a/b", "c"])
def test_baseline(hosim_gate, extra):
    hosim_gate.model(graph(SIZE + extra)).assert_matches_baseline()


@pytest.mark.hosim(hardware="toy", policy="resident")
class TestMore:
    def test_peak(self, hosim_gate):
        hosim_gate.model(graph()).assert_peak_below("90 B")
        assert hosim_gate.metrics["makespan"] == 100

    @pytest.mark.hosim(hardware="toy", policy="resident", workload="g.json")
    def test_named(self, hosim_gate):
        hosim_gate.assert_matches_baseline("named", tolerance={{"peak": "20 B"}})
"""

WORKLOAD = (
    '{"format": "hosim.workload/1", "name": "g", "tensors": [{"name": "a", "bytes": %d}],'
    ' "ops": [{"name": "f", "kind": "relu", "outputs": ["a"], "duration_ns": 5}]}'
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path, 30)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n"
    )
    return tmp_path


def write(folder: Path, size: int) -> None:
    (folder / "test_memory.py").write_text(TESTS.format(size=size))
    (folder / "g.json").write_text(WORKLOAD % size)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "HOSIM_CACHE": str(folder / "kept"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "hosim.gate.plugin",
        *arguments,
    ]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.long
def test_baselines_are_written_compared_and_the_same_under_xdist(project: Path) -> None:
    assert "4 passed" in run(project, "--hosim-update", "-p", "xdist", "-n", "2").stdout
    written = {
        path.name: path.read_bytes()
        for path in sorted((project / "hosim-baselines").glob("*.toml"))
    }
    lost, *others = written
    assert lost == "named.toml"
    assert [name.partition("-")[0] for name in others] == ["test_memory.test_baseline"] * 2
    (project / "hosim-baselines" / lost).unlink()
    write(project, 45)
    worse = run(project).stdout
    assert "3 failed, 1 passed" in worse
    assert "named.toml; pytest --hosim-update writes it" in worse
    assert "peak.hbm: 85 B, was 70 B (+15 B, +21.4 %) at op `f` (#0)" in worse
    assert "layers.0.act, 45 B, 30 B, +15 B" in facts(worse)
    assert "Traceback" not in worse
    assert "testing.py" not in worse
    write(project, 30)
    assert "4 passed" in run(project, "--hosim-update").stdout
    assert {
        path.name: path.read_bytes()
        for path in sorted((project / "hosim-baselines").glob("*.toml"))
    } == written
    write(project, 40)
    tolerant = run(project, "-k", "named").stdout
    assert "1 passed" in tolerant  # of the one that tolerates 20 B


def test_what_is_wrong_is_said_without_a_traceback(project: Path) -> None:
    (project / "test_memory.py").write_text(
        "import pytest\n"
        "def test_no_marker(hosim_gate): pass\n"
        "@pytest.mark.hosim(policy='resident')\ndef test_no_machine(hosim_gate): pass\n"
        "@pytest.mark.hosim(hardware='toy', colour=3)\ndef test_unknown(hosim_gate): pass\n"
        "@pytest.mark.hosim(hardware='toy')\ndef test_nothing(hosim_gate): "
        "hosim_gate.assert_peak_below('3 B')\n"
        "@pytest.mark.hosim(hardware='toy', workload='g.json')\ndef test_unit(hosim_gate): "
        "hosim_gate.assert_peak_below('3')\n"
        "@pytest.mark.hosim(hardware='toy', workload='g.json')\ndef test_peak(hosim_gate): "
        "hosim_gate.assert_peak_below('30 B')\n"
        "@pytest.mark.hosim(hardware='toy', workload='g.json', budget='20 B')\n"
        "def test_fits(hosim_gate): hosim_gate.assert_peak_below('30 B')\n"
    )
    out = run(project).stdout
    for expected in (
        "needs a marker such as @pytest.mark.hosim(hardware=",
        "got no hardware",
        "got colour",
        "nothing to measure",
        "expected a size with its unit",
        "peak of hbm is 30 B (30 B), not below 30 B",
        "`a` (activation) 30 B",
        "does not fit",
    ):
        assert expected in out, out
    assert "Traceback" not in out


def test_it_is_silent_and_light_until_used(project: Path) -> None:
    heavy = (
        "numpy",
        "pandas",
        "simpy",
        "pydantic",
        "torch",
        "networkx",
        "rich",
        "hosim.gate.testing",
    )
    (project / "test_memory.py").write_text(
        f"import sys\ndef test_nothing_heavy_is_loaded(): assert not [m for m in {heavy!r} if m "
        "in sys.modules]\n"
    )
    ran = run(project)
    assert "1 passed" in ran.stdout, ran.stdout
    assert "hosim" not in ran.stdout
