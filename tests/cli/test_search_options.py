"""--within, --time, --work and Ctrl-C: what they end, what is said of it, and what is refused."""

import json
import os
import signal
from pathlib import Path

import pytest
from asked import questions
from rendered import facts
from typer.testing import CliRunner, Result

import hosim
from hosim.base.search_control import SearchProgress
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.io import load_hardware, load_named
from hosim.shipped import find_hardware
from hosim.study import compare
from hosim.study.asked import parse_choices, read_search_ends, searching

MACHINE = ("-H", "h100-80gb-sxm", "-b", "50%")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(
        app, [str(argument) for argument in arguments], env={"COLUMNS": "120"}
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two layers of Llama."""
    path = tmp_path_factory.mktemp("workload") / "llama.yaml"
    path.write_text(
        "format: hosim.spec/1\nname: llama\nbuilder: {model: llama-3.1-8b, phase: prefill, "
        "sequence: 4096, layers: 2}\n"
    )
    return str(path)


def test_the_plan_of_a_clock_is_made_again_by_its_work(llama: str, tmp_path: Path) -> None:
    timed, again = tmp_path / "timed.json", tmp_path / "again.json"
    ended = run("plan", llama, *MACHINE, "-o", timed, "--time", "1us")
    assert ended.exit_code == 0, ended.stderr
    search = json.loads(timed.read_text())["search"]
    assert search["ended"] == "time"
    assert f"{search['work']:,} of work" in ended.stderr
    assert run("plan", llama, *MACHINE, "-o", again, "--work", search["work"]).exit_code == 0
    first, second = json.loads(timed.read_text()), json.loads(again.read_text())
    assert second["search"] == {**search, "ended": "work"}
    assert {**first, "search": None} == {**second, "search": None}
    by_policy = run("plan", llama, *MACHINE, "-o", again, "-p", search["again"])
    assert by_policy.exit_code == 0
    assert json.loads(again.read_text()) == second


def test_a_comparison_says_how_its_search_ended(llama: str) -> None:
    shown = run(
        "compare-policies",
        llama,
        *MACHINE,
        "-p",
        "layerwise,hyperoffload",
        "--work",
        "1",
        "--within",
        "1%",
        "--json",
    )
    assert shown.exit_code == 0, shown.stderr
    labels = [result["policy"] for result in json.loads(shown.stdout)["results"]]
    assert labels == ["layerwise", "hyperoffload:effort=1000.0:within=0.01:work=1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--time", "0s"], "error: time: expected a time above 0"),
        (["--time", "soon"], "error: time: expected a time such as '2 s'"),
        (["--within", "2"], "error: within: expected a share from 0 to 1"),
        (["--within", "0%"], "error: within: expected a share above 0"),
        (
            ["--within", "1%", "-p", "static_split"],
            "error: policy: within, time and work end the search of hyperoffload",
        ),
        (
            ["--work", "2", "-p", "hyperoffload:work=3"],
            "error: policy hyperoffload:work=3: work is given twice",
        ),
        (
            ["--time", "1s", "--plan-against", "reserved"],
            "error: plan: --time and --plan-against exclude each other: several searches are made",
        ),
        (
            ["-p", "hyperoffload:within=300%"],
            "error: policy hyperoffload: within: expected a share from 0 to 1",
        ),
    ],
)
def test_what_is_refused(options: list[str], message: str, llama: str, tmp_path: Path) -> None:
    shown = run("plan", llama, *MACHINE, "-o", tmp_path / "plan.json", *options)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith(message)
    assert shown.stderr.count("\n") == 1
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [("within", True), ("within", 2), ("time", "x"), ("time", -1), ("work", 0), ("work", 1.5)],
)
def test_what_python_refuses(argument: str, wrong: object) -> None:
    with pytest.raises(InputError) as raised:
        read_search_ends(**{argument: wrong})
    assert raised.value.source == argument


class Interrupting:
    """Presses Ctrl-C once there is a plan."""

    def __init__(self) -> None:
        self.pressed = False

    def __call__(self, progress: SearchProgress) -> None:
        if progress.makespan_ns is not None and self.last is not None and not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)
        self.last = progress.makespan_ns

    last: int | None = None


@pytest.fixture
def default_handler() -> object:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_handler")
def test_an_interrupted_comparison_has_what_is_known(llama: str) -> None:
    table = hosim.compare(
        llama,
        "h100",
        "layerwise,hyperoffload,hyperoffload:effort=2,belady",
        "50%",
        progress=Interrupting(),
    )
    assert list(table["policy"]) == ["layerwise", "hyperoffload", "belady"]  # rules come first
    assert any("hyperoffload, 2" in facts(n, "hyperoffload") for n in table.attrs["notes"])
    assert any([line.startswith("search: ended after") for line in table.attrs["notes"]])


def interrupted_at(policy: str, policies: str, llama: str) -> list[str]:
    """The policies that a comparison has if Ctrl-C comes while ``policy`` is planned."""

    def begins(line: str) -> None:
        if line == f"{policy}: planning":
            raise KeyboardInterrupt

    machine = load_hardware(find_hardware("h100-80gb-sxm"))
    asked = questions(load_named(llama), machine, parse_choices(policies), "50%")
    with searching(read_search_ends(), print):
        return [result.policy for result in compare(asked, begins)]


def test_an_interrupted_comparison_has_no_answer_while_nothing_fits(llama: str) -> None:
    assert interrupted_at("belady", "resident,layerwise,belady", llama) == ["resident", "layerwise"]
    with pytest.raises(KeyboardInterrupt):  # layerwise fits, but nobody knows that yet
        interrupted_at("layerwise", "resident,layerwise,belady", llama)


@pytest.mark.usefixtures("default_handler")
def test_an_interrupted_plan_is_returned(llama: str) -> None:
    plan = hosim.plan(llama, "h100", "hyperoffload", "50%", progress=Interrupting())
    assert plan.search is not None
    assert plan.search.ended == "ctrl_c"
    again = hosim.plan(llama, "h100", plan.search.again, "50%")
    assert (again.cache_ops, again.initial) == (plan.cache_ops, plan.initial)


def test_python_takes_them_too(llama: str) -> None:
    first = hosim.plan(
        llama, "h100", "hyperoffload", "50%", progress=lambda at: at.makespan_ns is not None
    )
    assert first.search is not None
    assert first.search.ended == "callback"
    assert hosim.plan(llama, "h100", budget="50%", work=first.search.work).search.ended == "work"
    with pytest.raises(InputError, match="expected a function"):
        hosim.plan(llama, "h100", progress=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one machine"):
        hosim.compare(llama, ["h100", "a100"], time="1s")
