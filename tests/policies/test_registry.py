"""The registry: names, parameters and plugins."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from hosim.cache_plan import CacheOp, Plan
from hosim.cli.main import app
from hosim.errors import InfeasibleError, InputError
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.io import save_workload
from hosim.policies import GROUP, Parameter, Policy, package_of, policy_named, policy_names

MACHINE = Hardware(
    "machine",
    (Tier("hbm", 100, 10**12, "device"), Tier("ddr", 1000, 10**11)),
    (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
    Compute({"bf16": 10**12}),
)


def toy():
    builder = GraphBuilder("toy")
    builder.tensor("w", 40, "parameter", home="ddr")
    builder.tensor("a", 30)
    builder.op("f", "matmul", inputs=["w"], outputs=["a"], duration_ns=50)
    return builder.build()


@pytest.fixture
def plugins(monkeypatch, tmp_path):
    """Installs a package that announces entry points; ``plugins(name="module:attribute")``."""

    def announce(**points: str) -> None:
        information = tmp_path / "site" / "theirs-1.2.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.2\n")
        (information / "entry_points.txt").write_text(
            "\n".join([f"[{GROUP}]", *(f"{name} = {value}" for name, value in points.items())])
        )
        monkeypatch.syspath_prepend(tmp_path / "site")

    return announce


def eager(graph, hardware, budget_bytes, *, twice):
    """What a stranger's policy may look like."""
    return Plan(graph, f"eager{2 if twice else 1}")


EAGER = Policy("eager", "a stranger's", eager, {"twice": Parameter(False, "bool", "do it twice")})
NO_POLICY = 7


def test_names_have_a_fixed_order_and_each_is_a_policy() -> None:
    names = policy_names()
    ours = [
        "resident",
        "on_demand",
        "lookahead",
        "layerwise",
        "distance",
        "memory_peak",
        "longest_gap",
        "belady",
        "g10",
    ]
    assert [name for name in names if name in ours] == ours
    assert len(set(names)) == len(names)
    for name in names:
        policy = policy_named(name)
        assert policy.name == name
        assert policy.summary
        assert policy.parameters == {
            key: setting.default for key, setting in policy.settings.items()
        }
        assert all(setting.help for setting in policy.settings.values())


def test_listing_imports_nothing_that_plans() -> None:
    code = (
        "import sys; from hosim.policies import policy_named, policy_names; "
        "[policy_named(n).summary for n in policy_names()];"
        "heavy = [m for m in sys.modules if m.split('.')[0] in ('numpy', 'simpy', 'networkx', "
        "'ortools') or m.startswith('hosim.planner.') and '.schedule' not in m];"
        "print(heavy); assert not heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_policy_has_near_names_and_the_list() -> None:
    with pytest.raises(InputError) as caught:
        policy_named("on-demand")
    assert str(caught.value).startswith(
        "unknown policy 'on-demand'; did you mean on_demand? (policies: "
    )
    with pytest.raises(InputError) as caught:
        policy_named("qqqq")
    assert "did you mean" not in str(caught.value)
    assert "layerwise" in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "key", "text", "value"),
    [
        ("lookahead", "k", "7", 7),
        ("memory_peak", "score_weight_size", "0.5", 0.5),
        ("memory_peak", "score_weight_size", "2", 2.0),
        ("memory_peak", "max_device_memory", "40 GiB", 40 * 2**30),
        ("memory_peak", "enable_adaptive_prefetch_distance", "true", True),
        ("hyperoffload", "within", "1%", 0.01),
    ],
)
def test_values_are_read_by_type(policy: str, key: str, text: str, value: object) -> None:
    read = policy_named(policy).read(key, text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("policy", "key", "text", "message"),
    [
        (
            "lookahead",
            "k",
            "many",
            "policy lookahead: k: expected a whole number of at least 0, got 'many'",
        ),
        (
            "lookahead",
            "k",
            "4.5",
            "policy lookahead: k: expected a whole number of at least 0, got '4.5'",
        ),
        (
            "lookahead",
            "k",
            "-1",
            "policy lookahead: k: expected a whole number of at least 0, got -1",
        ),
        (
            "lookahead",
            "depth",
            "4",
            "policy lookahead: no parameter 'depth' (parameters: k=4, placement=fastest)",
        ),
        (
            "hyperoffload",
            "efort",
            "1",
            "policy hyperoffload: no parameter 'efort'; did you mean 'effort'?",
        ),
        ("resident", "k", "4", "policy resident: no parameter 'k' (parameters: none)"),
        (
            "memory_peak",
            "score_weight_size",
            "nan",
            "policy memory_peak: score_weight_size: expected a number of at least 0, got nan",
        ),
        (
            "memory_peak",
            "enable_adaptive_release_distance",
            "yes",
            "expected true or false, got 'yes'",
        ),
        (
            "hyperoffload",
            "within",
            "2",
            "policy hyperoffload: within: expected a share from 0 to 1 such as '1%', got '2'",
        ),
    ],
)
def test_wrong_parameters_are_one_line(policy: str, key: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        policy_named(policy).read(key, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_size_needs_its_unit() -> None:
    with pytest.raises(
        InputError, match=r"policy memory_peak: max_device_memory: expected a size .* got '40'"
    ):
        policy_named("memory_peak").read("max_device_memory", "40")


@pytest.mark.parametrize(
    "parameters", [{"k": True}, {"k": "4"}, {"k": 4.0}, {"k": None}, {"kk": 4}]
)
def test_plan_checks_parameters_too(parameters) -> None:
    with pytest.raises(InputError):
        policy_named("lookahead").plan(toy(), MACHINE, 100, **parameters)


def test_a_plugin_is_a_policy_like_any_other(plugins) -> None:
    plugins(eager=f"{__name__}:EAGER")
    assert policy_names()[-1] == "eager"
    policy = policy_named("eager")
    assert policy.plan(toy(), MACHINE, 100).policy == "eager1"
    assert policy.plan(toy(), MACHINE, 100, twice=policy.read("twice", "true")).policy == "eager2"


def test_a_function_of_a_plugin_is_a_policy(plugins, caplog) -> None:
    plugins(quick=f"{__name__}:eager_or_not", odd=f"{__name__}:one_argument")
    assert policy_named("quick").plan(toy(), MACHINE, 100, twice=True).policy == "eager2"
    assert dict(policy_named("quick").parameters) == {"twice": False}
    assert "odd" not in policy_names()
    assert "policy one_argument: expected a function (graph, hardware, budget_bytes)" in caplog.text


def eager_or_not(graph, hardware, budget_bytes, *, twice=False):
    return eager(graph, hardware, budget_bytes, twice=twice)


def one_argument(graph):
    return Plan(graph)


def fails(graph, hardware, budget_bytes):
    return [][0]


def refuses(graph, hardware, budget_bytes):
    raise InputError("no such machine")


def hands_back_nothing(graph, hardware, budget_bytes):
    return None


FAILING = Policy("theirs", "a stranger's", fails)


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (
            fails,
            r"^policy theirs has a bug: IndexError: list index out of range "
            r"\(.*test_registry\.py, line \d+\)$",
        ),
        (math.sqrt, r"^policy theirs has a bug: TypeError: .*policy\.py, line \d+\)$"),
        (hands_back_nothing, "^policy theirs has a bug: expected a hosim.Plan, got NoneType$"),
        (refuses, "^no such machine$"),
    ],
)
def test_what_a_stranger_raises_is_no_bug_of_hosim(maker, message) -> None:
    with pytest.raises(InputError, match=message):
        Policy("theirs", "a stranger's", maker).plan(toy(), MACHINE, 100)


class Odd:
    """Decides during the replay, in one of several wrong ways."""

    def __init__(self, way):
        self.way = way
        if way == "not iterable positions":
            self.inspected = 3

    def before_op(self, op, view):
        if self.way == "makes room":
            return [CacheOp("prefetch", 0, "ddr", "hbm")]
        if self.way == "later":
            return (1 // 0 for _ in (1,))
        if self.way == "ends":
            raise SystemExit(0)
        if self.way == "index":
            return [view.is_resident(99)]
        return {"number": [3], "nothing": None, "far": [CacheOp("prefetch", 99, "ddr", "hbm")]}[
            self.way
        ]

    def make_room(self, op, wanted_bytes, view):
        raise KeyError("room")


def decides(graph, hardware, budget_bytes, *, way):
    if way == "makes nothing":
        return Plan(graph, "theirs", runtime=lambda: 1 // 0)
    return Plan(graph, "theirs", runtime=lambda: Odd(way))


THEIRS = Policy(
    "theirs",
    "a stranger's",
    decides,
    {"way": Parameter("number", "str", "what is wrong")},
    runtime=True,
)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("later", r"ZeroDivisionError: .* \(.*test_registry\.py, line \d+\)"),
        ("ends", r"SystemExit: 0 \(.*test_registry\.py, line \d+\)"),
        ("index", r"IndexError: .* \(.*test_registry\.py, line \d+\)"),
        ("makes room", r"KeyError: 'room' \(.*test_registry\.py, line \d+\)"),
        ("makes nothing", r"ZeroDivisionError: .* \(.*test_registry\.py, line \d+\)"),
        ("not iterable positions", r"TypeError: .*"),
        ("number", "expected cache ops to issue, got int"),
        ("nothing", "expected cache ops to issue, got NoneType"),
        ("far", "its prefetch names tensor 99; there are 2"),
    ],
)
def test_what_a_stranger_raises_during_a_replay_is_no_bug_of_hosim(
    plugins, tmp_path, way, message
) -> None:
    plugins(theirs=f"{__name__}:THEIRS")
    builder = GraphBuilder("toy")  # v leaves no room for w
    builder.tensor("w", 40, "parameter", home="ddr")
    builder.tensor("v", 40, "parameter")
    for name in "wv":
        builder.op(f"use {name}", "matmul", inputs=[name], duration_ns=50)
    save_workload(builder.build(), tmp_path / "w.json")
    asked = [
        "compare-policies",
        str(tmp_path / "w.json"),
        "-H",
        "toy",
        "-b",
        "75B",
        "--json",
        "-p",
        f"theirs:way={way},on_demand",
    ]
    done = CliRunner().invoke(app, asked)
    assert (
        done.exit_code,
        [line for line in done.stderr.splitlines() if not line.startswith("note: pinned: ")],
    ) == (2, [])
    theirs, ours = json.loads(done.stdout)["results"]
    assert re.fullmatch(f"policy theirs has a bug: {message}", theirs["error"]), theirs["error"]
    assert theirs["failed"]
    assert ours["feasible"]


def test_its_traceback_is_there_for_who_asks(plugins, tmp_path, monkeypatch) -> None:
    plugins(theirs=f"{__name__}:FAILING")
    save_workload(toy(), tmp_path / "w.json")
    asked = [
        "plan",
        str(tmp_path / "w.json"),
        "-H",
        "toy",
        "-p",
        "theirs",
        "-o",
        str(tmp_path / "plan.json"),
    ]
    short = CliRunner().invoke(app, asked)
    monkeypatch.setenv("HOSIM_DEBUG", "1")
    whole = CliRunner().invoke(app, asked)
    assert (short.exit_code, whole.exit_code) == (2, 2)
    assert len(short.stderr.splitlines()) == 1
    assert "Traceback (most recent call last):" in whole.stderr
    assert "return [][0]" in whole.stderr
    assert whole.stderr.endswith(short.stderr)


def test_a_policy_that_fails_is_named_and_fails_alone(plugins, tmp_path) -> None:
    plugins(theirs=f"{__name__}:FAILING")
    save_workload(toy(), tmp_path / "w.json")
    shown = {
        "theirs,resident": "resident is fastest within 100 B: 90 ns, which is the lower bound; "
        "theirs failed.",
        "theirs": "No policy made a plan: theirs failed.",
    }
    for policies, said in shown.items():
        done = CliRunner().invoke(
            app,
            ["compare-policies", str(tmp_path / "w.json"), "-H", "toy", "-p", policies, "--detail"],
        )
        assert (
            done.exit_code,
            [line for line in done.stderr.splitlines() if not line.startswith("note: pinned: ")],
        ) == (2, [])
        assert re.search(r"theirs +failed( +-)+", done.stdout)
        text = " ".join(done.stdout.split())
        assert "theirs failed: policy theirs has a bug: IndexError: list index out of range" in text
        assert "not fit" not in text
        assert said in text, text


def test_what_a_policy_of_hosim_raises_is_its_own_bug() -> None:
    with pytest.raises(TypeError):
        Policy("ours", "hosim's", "math:sqrt").plan(toy(), MACHINE, 100)


def test_the_package_of_a_plugin_is_listed(plugins, monkeypatch, tmp_path) -> None:
    (tmp_path / "theirs.py").write_text(f"from {__name__} import EAGER\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins(eager="theirs:EAGER")
    done = CliRunner().invoke(app, ["policies", "--detail"], env={"COLUMNS": "120"})
    (row,) = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["eager"]]
    assert row[:3] == ["eager", "theirs", "1.2"]
    assert package_of("layerwise") == "hosim"


def test_a_broken_plugin_is_one_warning_and_no_crash(plugins, caplog) -> None:
    plugins(
        gone="no_such_package_of_anybody:POLICY",
        odd=f"{__name__}:NO_POLICY",
        eager=f"{__name__}:EAGER",
    )
    assert policy_names()[-1] == "eager"
    assert {"gone", "odd"}.isdisjoint(policy_names())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith(
        "policy plugin 'gone' (no_such_package_of_anybody:POLICY) cannot be loaded: "
        "ModuleNotFoundError"
    )
    said = "is of type int: expected a hosim.policies.registry.Policy, or a function"
    assert lines[1] == f"policy plugin 'odd' ({__name__}:NO_POLICY) {said}"
    assert policy_names() == policy_names()
    assert len(caplog.records) == 2


def test_whoever_asks_for_a_broken_plugin_gets_an_error_and_no_warning(plugins, caplog) -> None:
    plugins(gone="no_such_package_of_anybody:POLICY", ends=f"{__name__}:THERE_IS_NONE")
    with pytest.raises(InputError, match="policy plugin 'gone'"):
        policy_named("gone")
    with pytest.raises(
        InputError, match=r"policy plugin 'ends' .* cannot be loaded: AttributeError"
    ):
        policy_named("ends")
    assert policy_named("layerwise").name == "layerwise"
    assert caplog.records == []


def test_a_plugin_does_not_replace_a_policy_of_hosim(plugins, caplog) -> None:
    plugins(mine=f"{__name__}:IMPOSTOR")
    assert policy_names().count("resident") == 1
    assert policy_named("resident").summary != IMPOSTOR.summary
    assert "there is a policy 'resident' already" in caplog.text


IMPOSTOR = Policy("resident", "an impostor", eager)


def test_what_cannot_fit_is_said_before_planning() -> None:
    with pytest.raises(InfeasibleError, match=r"op 'f' needs 70 B of hbm .* the budget is 69 B"):
        policy_named("on_demand").plan(toy(), MACHINE, 69)
    builder = GraphBuilder("full")
    for name in ("v", "w"):
        builder.tensor(name, 40, "parameter")
        builder.op(f"use {name}", "matmul", inputs=[name], duration_ns=1)
    with pytest.raises(
        InfeasibleError, match="resident has 80 B of tensors in hbm at time 0; there are 79 B"
    ):
        policy_named("resident").plan(builder.build(), MACHINE, 79)
