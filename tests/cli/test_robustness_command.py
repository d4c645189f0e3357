"""``hosim robustness`` end to end."""

import json

from typer.testing import CliRunner

from hosim.cli.main import app

run = CliRunner().invoke
ARGUMENTS = [
    "robustness",
    "w.json",
    "--hardware",
    "toy",
    "--budget",
    "90 B",
    "--policies",
    "resident,on_demand,lookahead:k=1",
    "--runs",
    "6",
]
WORKLOAD = {
    "format": "hosim.workload/1",
    "name": "four",
    "tensors": [
        {"name": f"w{i}", "bytes": 30, "kind": "parameter", "home": "hbm"} for i in range(4)
    ],
    "ops": [
        {"name": f"f{i}", "kind": "any", "inputs": [f"w{i}"], "duration_ns": 1000 * i + 500}
        for i in range(4)
    ],
}


def test_json_and_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.json").write_text(json.dumps(WORKLOAD))
    done = run(app, [*ARGUMENTS, "--seed", "5", "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert done.stdout == run(app, [*ARGUMENTS, "--seed", "5", "--json"]).stdout  # to the byte
    assert (data["format"], data["workload"], data["hardware"], data["devices"]) == (
        "hosim.robustness/1",
        "four",
        "toy",
        1,
    )
    assert data["budget_bytes"] == 90
    assert data["jitter"] == {"seed": 5, "op_sigma": 0.05, "transfer_sigma": 0.1}
    resident, on_demand, lookahead = data["policies"]
    assert (resident["policy"], resident["runs"], resident["infeasible"]) == ("resident", 6, 6)
    assert resident["makespan_ns"] == {"nominal": None, "p50": None, "p95": None}
    for row in (on_demand, lookahead):
        assert (row["runs"], row["infeasible"]) == (6, 0)
        assert row["makespan_ns"]["p50"] <= row["makespan_ns"]["p95"]
        assert row["peak_bytes"]["nominal"] <= 90
    table = run(app, ARGUMENTS, env={"COLUMNS": "120"})
    assert table.exit_code == 0
    assert "0 of 6" in table.stdout
    assert "6 of 6" in table.stdout
    assert "lookahead:k=1" in table.stdout


def test_exit_codes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.json").write_text(json.dumps(WORKLOAD))
    assert (
        run(
            app,
            [
                "robustness",
                "w.json",
                "--hardware",
                "toy",
                "--budget",
                "90 B",
                "--policies",
                "resident",
            ],
        ).exit_code
        == 3
    )
    nothing = run(app, [*ARGUMENTS, "--op-sigma", "0", "--transfer-sigma", "0"])
    assert nothing.exit_code == 2
    assert "without jitter all runs are the same" in nothing.output


def test_orders_of_ops(tmp_path, monkeypatch):
    """The ops of the workload are free: what is kept in memory holds in every order, and takes as
    long; with --order jitter may be none.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.json").write_text(json.dumps(WORKLOAD))
    asked = [
        "robustness",
        "w.json",
        "-H",
        "h100-80gb-sxm",
        "-p",
        "resident",
        "--runs",
        "4",
        "--op-sigma",
        "0",
        "--transfer-sigma",
        "0",
        "--order",
    ]
    data = json.loads(run(app, [*asked, "--json"]).stdout)
    (row,) = data["policies"]
    assert (data["order"], row["infeasible"], set(row["makespan_ns"].values())) == (True, 0, {8000})
