"""What is tried: of each format the file that is changed, how, and the commands that read it; also
options, names, surroundings.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import fuzz_seeds as seeds
import fuzz_stages
from fuzz_binaries import (
    changed_archive,
    changed_bytes,
    changed_database,
    changed_message,
    changed_stream,
    packed,
)
from fuzz_calls import PROGRAMS, changed_calls
from fuzz_case import Case
from fuzz_programs import changed_program
from fuzz_stages import changed_messages
from fuzz_trees import (
    changed_csv,
    changed_json,
    changed_json_line,
    changed_kernels,
    changed_lines,
    changed_pickle,
    changed_table,
    changed_toml,
    changed_yaml,
    mildly_changed_json,
)
from fuzz_values import TEXTS

Change = Callable[[Random, bytes], bytes]


@dataclass(frozen=True)
class Target:
    """``files`` are valid; those named in ``changed`` are changed by one of ``changes`` or byte by
    byte, and a ``command`` reads them.

    ``formats`` are titles of importers and names of schemas that it stands for. ``slow`` are
    commands for long runs only. A target is ``heavy`` if its commands import torch.
    """

    name: str
    files: Mapping[str, bytes]
    changed: Sequence[str]
    changes: Sequence[Change]
    commands: Sequence[str]
    slow: Sequence[str] = ()
    formats: Sequence[str] = ()
    zipped: bool = True
    bytewise: bool = True
    heavy: bool = False

    def valid(self) -> list[Case]:
        """Every command on the valid files."""
        return [
            Case(self.name, tuple(shlex.split(command)), self.files)
            for command in (*self.commands, *self.slow)
        ]

    def case(self, number: int, *, quick: bool) -> Case:
        """The case of a number: the same each time."""
        draw = Random(f"{self.name} {number}")
        files = dict(self.files)
        for name in draw.sample(self.changed, draw.choice((1, 1, 1, min(2, len(self.changed))))):
            files[name] = self._changed(draw, files[name])
        commands = self.commands if quick or draw.random() < 0.8 else (*self.commands, *self.slow)
        return Case(self.name, tuple(shlex.split(draw.choice(commands))), files)

    def _changed(self, draw: Random, content: bytes) -> bytes:
        if not self.changes or (draw.random() < 0.2 and self.bytewise):
            found = changed_bytes(draw, content, tuple(self.files.values()))
        else:
            found = draw.choice(self.changes)(draw, content)
        return packed(draw, found) if self.zipped and draw.random() < 0.06 else found


WORKLOAD_COMMANDS = (
    "import w.json -o out.json",
    "workload show w.json",
    "plan w.json -H m.yaml -p layerwise -b 75% -o out.json",
    "compare-policies w.json -H m.yaml -p layerwise,on_demand,resident -b 80%",
    "compare-policies w.json -H m.yaml -p longest_gap --allocator caching --json",
)
SLOW_COMMANDS = (
    "plan w.json -H m.yaml -b 75% --explain --all",
    "compare-policies w.json -H m.yaml -b 80% --html out.html",
    "compare-policies w.json -H m.yaml -p layerwise,on_demand --plot out.svg",
    "blame w.json -H m.yaml -p layerwise -b 80%",
    "frontier w.json -H m.yaml -p layerwise -n 3 --refine 1",
    "robustness w.json -H m.yaml -p layerwise,on_demand --runs 2 -b 80%",
    "pipeline w.json w.json -H m.yaml -p layerwise -b 80%",
    "export w.json -H m.yaml --mindspore --trials 2 -p layerwise -o out.sh",
    "fit w.json -H m.yaml -p layerwise --largest hardware.devices=1..4",
    "fits w.json -H m.yaml",
    "diff layerwise on_demand -w w.json -H m.yaml -b 80%",
    "plan w.json -H m.yaml -p layerwise -b 75% -o out.yaml --account program --plan-against "
    "reserved",
)
IMPORT = "import {} -o out.json"
STUDIES = (
    "sweep gpt2 --requests r.jsonl --set blocks=64 --vary token_budget=64,128 -j 1 -o rows.csv",
    "fit gpt2 --requests r.jsonl --set blocks=64 --smallest token_budget=64..128:3 --within "
    "ttft.p95=1000s",
    "frontier gpt2 --requests r.jsonl --vary blocks=64,128 --against devices -j 1",
)
"""Of serving, without the program's name."""


def targets(made: Mapping[str, bytes]) -> list[Target]:
    """All of them; ``made`` are the files that hosim wrote itself."""
    workload, hardware = made["w.json"], made["m.yaml"]
    pair = {"w.json": workload, "m.yaml": hardware}
    gate = pair | {"plan.json": made["plan.json"], "hosim.toml": made["hosim.toml"]}
    gate |= {name: content for name, content in made.items() if name.startswith("hosim-baselines/")}
    hosim_json = (changed_json, changed_yaml)
    replays = (
        "replay plan.json w.json -H m.yaml",
        "replay plan.json w.json -H m.yaml --json --account program",
        "replay plan.json w.json -H m.yaml --allocator caching",
        "diff plan.json other.json -w w.json",
    )
    pictures = (
        "replay plan.json w.json -H m.yaml --plot out.png --trace out.json",
        "replay plan.json w.json -H m.yaml --html out.html --certificate proof.json",
        "blame w.json -H m.yaml --plan plan.json --top 3",
        "replay plan.json w.json -H m.yaml --op-sigma 0.1 --memory-viz out.pickle --allocator "
        "static",
    )
    found = [
        Target(
            "workload",
            pair,
            ["w.json"],
            hosim_json,
            WORKLOAD_COMMANDS,
            SLOW_COMMANDS,
            ["workload", "workload (hosim.workload/1)"],
        ),
        Target(
            "hardware",
            pair,
            ["m.yaml"],
            hosim_json,
            (
                "hardware show m.yaml",
                "atlas gpt2:layers=1 -H m.yaml --contexts 8",
                *WORKLOAD_COMMANDS[2:],
                "replay plan.json w.json -H m.yaml",
            ),
            SLOW_COMMANDS,
            ["hardware"],
        ),
        Target(
            "spec",
            {"s.yaml": seeds.SPEC.encode()},
            ["s.yaml"],
            [changed_yaml],
            ("workload show s.yaml", IMPORT.format("s.yaml")),
        ),
        Target(
            "plan",
            pair | {"plan.json": made["plan.json"], "other.json": seeds.text(seeds.EDITED)},
            ["plan.json", "other.json"],
            hosim_json,
            replays,
            pictures,
            ["plan"],
        ),
        Target(
            "edited plan",
            pair | {"plan.json": seeds.text(seeds.EDITED), "other.json": made["plan.json"]},
            ["plan.json"],
            hosim_json,
            replays,
            pictures,
        ),
        Target(
            "result",
            {"a.json": made["result.json"], "b.json": made["result.json"]},
            ["a.json"],
            hosim_json,
            ("diff a.json b.json", "diff b.json a.json --json"),
            (),
            ["result"],
        ),
        Target(
            "comparison",
            {"a.json": made["comparison.json"], "b.json": made["result.json"]},
            ["a.json"],
            hosim_json,
            ("diff a.json b.json",),
            (),
            ["comparison"],
        ),
        Target(
            "runtime",
            {"rt.yaml": seeds.RUNTIME.encode()},
            ["rt.yaml"],
            [changed_yaml],
            (
                "runtime show rt.yaml",
                "runtime show rt.yaml --json",
                f"compare-policies {seeds.TRAINED} -H h100 -p resident --runtime rt.yaml",
            ),
            (),
            ["runtime"],
        ),
    ]
    found[1] = _with(found[1], files={**pair, "plan.json": made["plan.json"]})
    found[2] = _with(found[2], formats=["spec (hosim.spec/1)"])
    routed = (
        "compare-policies moe.json -H m.yaml -p on_demand,lookahead --routing r.json",
        "compare-policies moe.json -H m.yaml -p layerwise --routing r.json --steps 0:2 --json",
    )
    for name, routing in (("routing", seeds.ROUTING), ("generated routing", seeds.GENERATED)):
        files = {
            "moe.json": seeds.text(seeds.MOE),
            "m.yaml": hardware,
            "r.json": seeds.text(routing),
        }
        found.append(
            Target(
                name,
                files,
                ["r.json"],
                (*hosim_json, mildly_changed_json, mildly_changed_json),
                routed,
                (),
                ["routing"],
            )
        )
    checks = (
        "check -j 1 --no-cache",
        "check step -j 1 --no-cache --json --strict",
        "baseline show step",
        "check wide -j 1 --no-cache --summary out.md --junit out.xml",
    )
    more = (
        "check -j 1 --html out.html",
        "baseline update -j 1 --no-cache",
        "check -j 1 --no-cache --sarif out.json --github",
    )
    found += [
        Target(
            "cases", gate, ["hosim.toml"], [changed_toml], checks, (more[0], more[2]), ["cases"]
        ),
        Target(
            "baseline",
            gate,
            ["hosim-baselines/step.toml"],
            [changed_toml],
            (checks[1], checks[2]),
            more,
            ["baseline"],
        ),
        Target(
            "baselines",
            gate,
            ["hosim-baselines/wide.toml"],
            [changed_toml],
            (checks[3], "check wide -j 1 --no-cache"),
            more,
            ["baselines"],
        ),
        Target(
            "rows",
            pair | {"rows.csv": made["rows.csv"]},
            ["rows.csv"],
            [changed_csv],
            ("sweep w.json -H m.yaml -p layerwise --vary budget=60%,80%,100% -o rows.csv -j 1",),
            zipped=False,
        ),
        Target(
            "points",
            pair | {"p.csv": seeds.POINTS},
            ["p.csv"],
            [changed_csv],
            (
                "sweep w.json -H m.yaml -p layerwise --points p.csv -j 1",
                "sweep w.json -H m.yaml -p layerwise --points p.csv -j 1 -o rows.csv --json",
            ),
        ),
    ]
    return [
        *found,
        *_kernels(hardware),
        *_imports(),
        *_recordings(),
        *(_Options(name, gate) for name in ("options", "surroundings", "names")),
        _ServingOptions(),
        *_together(),
        *(
            Target(
                f"objects: {name}",
                {"call.py": text.encode()},
                ["call.py"],
                [changed_calls],
                ["python call.py"],
                zipped=False,
                bytewise=False,
            )
            for name, text in PROGRAMS.items()
        ),
    ]


def _with(target: Target, **changes: Any) -> Target:
    from dataclasses import replace

    return replace(target, **changes)


def _kernels(plain: bytes) -> list[Target]:
    """Tables of kernel times, and what has kernels: workloads and profiles."""
    files = {
        "k.csv": seeds.KERNELS.encode(),
        "w.json": seeds.text(seeds.KERNEL_WORKLOAD),
        "m.yaml": seeds.text(seeds.KERNEL_HARDWARE),
    }
    used = (
        "workload show w.json -H m.yaml --ops",
        "plan w.json -H m.yaml -p layerwise -b 1500B -o out.json",
    )
    converted = (
        "import-kernels k.csv -o out.csv",
        "import-kernels k.csv -o out.csv.gz --machine A",
    )
    fitted = (
        "calibrate --kernels k.csv --base m.yaml -o out.yaml",
        "calibrate --kernels k.csv --machine A --base m.yaml --json",
    )
    return [
        Target(
            "kernels", files, ["w.json", "m.yaml"], [changed_json, *[mildly_changed_json] * 3], used
        ),
        Target(
            "kernel tables",
            files,
            ["k.csv"],
            [changed_csv, *[changed_table] * 3],
            (*converted, *used),
            fitted,
            ["kernel table"],
        ),
        Target(
            "requests",
            {
                "r.jsonl": seeds.REQUESTS,
                "m.yaml": seeds.text(seeds.KERNEL_HARDWARE),
                "k.csv": seeds.KERNELS.encode(),
            },
            ["r.jsonl"],
            [changed_lines, *[changed_json_line] * 3],
            (
                "serve gpt2 -H m.yaml --requests r.jsonl --measured r.jsonl --blocks 64 "
                "--token-budget 1024 --scheduling-policy priority",
            ),
            [f"serve-{command} -H m.yaml --set scheduling_policy=priority" for command in STUDIES],
        ),
        Target(
            "conversations",
            {
                "c.json": seeds.CONVERSATIONS,
                "m.yaml": seeds.text(seeds.KERNEL_HARDWARE),
                "k.csv": seeds.KERNELS.encode(),
            },
            ["c.json"],
            [changed_json, *[mildly_changed_json] * 3],
            ("serve gpt2 -H m.yaml --requests c.json --blocks 64",),
        ),
        Target(
            "products",
            {"k.csv": seeds.PRODUCTS.encode(), "m.yaml": plain},
            ["k.csv"],
            [changed_csv, changed_table],
            (converted[1],),
        ),
    ]


def _imports() -> list[Target]:
    def of(
        name: str, file: str, content: bytes, change: Sequence[Change], title: str, *more: str
    ) -> Target:
        return Target(
            name, {file: content}, [file], change, (IMPORT.format(file), *more), (), [title]
        )

    g10 = {f"g10/{name}": content for name, content in seeds.g10().items()}
    return [
        of("chakra", "t.et", seeds.chakra(), [changed_stream], "Chakra trace"),
        of(
            "chakra in json",
            "t.json",
            seeds.text(seeds.CHAKRA_JSON),
            [changed_json],
            "Chakra trace",
        ),
        of(
            "inductor",
            "t.json",
            seeds.unpacked("inductor_mlp.json"),
            [changed_json],
            "inductor graph",
        ),
        of(
            "hyper-parallel",
            "t.json",
            seeds.hyper_parallel(),
            [changed_json],
            "hyper-parallel trace",
        ),
        of(
            "execution trace",
            "t.json",
            seeds.small_torch_trace(),
            [changed_json],
            "PyTorch execution trace",
        ),
        *(
            of(
                f"config of {kind}",
                "config.json",
                seeds.text(config),
                [changed_json, mildly_changed_json],
                "config.json of transformers",
            )
            for kind, config in seeds.CONFIGS.items()
        ),
        of("gguf", "m.gguf", seeds.gguf(), [], "GGUF"),
        of(
            "mindir",
            "m.mindir",
            seeds.unpacked("mindir_mlp.mindir"),
            [changed_message],
            "MindIR model",
        ),
        of(
            "mindir with branches",
            "m.mindir",
            seeds.unpacked("mindir_branches.mindir"),
            [changed_message],
            "MindIR model",
        ),
        of(
            "onnx",
            "m.onnx",
            seeds.unpacked("onnx_mlp.onnx.gz"),
            [changed_message],
            "ONNX model",
            "import m.onnx -o out.json --dim batch=3",
        ),
        Target(
            "larger onnx",
            {"m.onnx": seeds.unpacked("onnx_conv.onnx.gz")},
            ["m.onnx"],
            [changed_message],
            ("import m.onnx -o out.json --dim batch=1",),
        ),
        Target(
            "generated onnx",
            {"m.onnx": seeds.unpacked("onnx_genai_llama.onnx.gz")},
            ["m.onnx"],
            [changed_message],
            (
                "import m.onnx -o out.json --dim batch_size=1 --dim sequence_length=2 --dim "
                "total_sequence_length=5 "
                "--dim past_sequence_length=3 --dim kv_cache_dim=16",
            ),
        ),
        Target(
            "g10",
            g10,
            list(g10),
            [changed_lines, changed_kernels, changed_kernels],
            (IMPORT.format("g10"),),
            (),
            ["G10 folder"],
        ),
        _with(
            of(
                "pt2",
                "toy.pt2",
                seeds.pt2(),
                [changed_archive, *[changed_program] * 3],
                "torch.export program (.pt2)",
            ),
            heavy=True,
        ),
    ]


def _recordings() -> list[Target]:
    kineto = seeds.kineto()
    title = "PyTorch profile (Kineto)"
    snapshot = seeds.SNAPSHOT
    kit = {f"kit/{name}": content for name, content in seeds.recording().items()}
    small = [name for name in kit if not name.endswith(".gz")]
    profile = " --base m.yaml -o out.yaml"
    kit_files = kit | {"m.yaml": seeds.text(seeds.HARDWARE)}
    return [
        Target(
            "kineto",
            {"t.json": kineto, "m.yaml": seeds.text(seeds.HARDWARE)},
            ["t.json"],
            [changed_json],
            (
                "import t.json -o out.json",
                "validate t.json",
                "calibrate t.json --json",
                "calibrate t.json" + profile,
            ),
            ("validate t.json --html out.html", "calibrate t.json --hold-out 0.5 --predict t.json"),
            [title],
        ),
        Target(
            "kineto beside an execution trace",
            {"t.json": kineto, "e.json": seeds.beside_kineto()},
            ["t.json", "e.json"],
            [changed_json],
            ("import t.json -o out.json --execution-trace e.json",),
            (),
            [title],
        ),
        Target(
            "nsys",
            {"t.sqlite": seeds.nsys(), "m.yaml": seeds.text(seeds.HARDWARE)},
            ["t.sqlite"],
            [changed_database],
            ("validate t.sqlite", "calibrate t.sqlite --json", "calibrate t.sqlite" + profile),
            ("validate t.sqlite --html out.html",),
            ["nsys"],
            zipped=False,
        ),
        Target(
            "snapshot",
            {"t.pickle": seeds.pickled(snapshot)},
            ["t.pickle"],
            [changed_pickle],
            ("validate t.pickle", "validate t.pickle --json"),
            ("validate t.pickle --html out.html",),
            ["snapshot"],
        ),
        Target(
            "snapshot in json",
            {"t.json": seeds.text(snapshot)},
            ["t.json"],
            [changed_json],
            ("validate t.json", "validate t.json --device 0"),
            (),
            ["snapshot"],
        ),
        Target(
            "recording",
            kit_files,
            small,
            [changed_json],
            ("validate kit", "calibrate kit --json", "calibrate kit/bandwidth.json" + profile),
            (),
            ["recording"],
        ),
    ]


def _together() -> list[Target]:
    """Several files that belong together."""
    traces, tied = fuzz_stages.ranks(), fuzz_stages.stages()
    both, stages = " ".join(traces), " ".join(tied)
    return [
        Target(
            "ranks",
            traces,
            list(traces),
            [changed_json, changed_json, mildly_changed_json],
            (f"validate {both}", f"validate {both} --json", f"validate {both} --max-error 1%"),
            (f"validate {both} r0.json", f"calibrate {both} --json", f"validate {both} --device 0"),
        ),
        Target(
            "messages",
            tied | {"m.yaml": seeds.text(seeds.HARDWARE)},
            list(tied),
            [changed_json, mildly_changed_json, *[changed_messages] * 4],
            (
                f"pipeline {stages} -H m.yaml -p layerwise -b 80%",
                f"pipeline {stages} -H m.yaml -p on_demand --json",
                "pipeline s0.json s2.json -H m.yaml -p layerwise",
            ),
            (
                f"pipeline {stages} -H m.yaml",
                f"pipeline {stages} -H m.yaml -p layerwise --trace out.json",
                "plan s1.json -H m.yaml -p layerwise -o out.json",
            ),
        ),
    ]


# ---- what is no file

OPTIONS = (
    *(
        "-b",
        "--budget",
        "-p",
        "--policy",
        "--policies",
        "--devices",
        "--allocator",
        "--account",
        "--plan-against",
        "--top",
        "--steps",
        "--vary",
    ),
    *(
        "--op-sigma",
        "--transfer-sigma",
        "--seed",
        "--runs",
        "--points",
        "--refine",
        "--largest",
        "--smallest",
        "--slowdown",
        "--trials",
        "--plot",
    ),
    *(
        "--html",
        "-o",
        "--json",
        "--explain",
        "--all",
        "--trace",
        "--memory-viz",
        "--certificate",
        "--more-memory",
        "--more-bandwidth",
        "--strict",
        "--junit",
    ),
    *(
        "--config",
        "--github",
        "--summary",
        "--dim",
        "--device",
        "--base",
        "--hold-out",
        "--mindspore",
        "--version",
        "--help",
        "--routing",
        "-j",
    ),
)
VALUES = (
    *(
        "1",
        "0",
        "-1",
        "2",
        "1e9",
        "1e300",
        "1e999",
        "nan",
        "inf",
        "-inf",
        "5e-324",
        "99999999999999999999",
        "0.5",
        "75%",
        "0%",
        "1e-9%",
        "1 B",
        "1kB",
    ),
    *(
        "1e30 GB",
        "800 B",
        "layerwise",
        "lookahead:k=1",
        "lookahead:k=0",
        "lookahead:k=99999999999",
        "on_demand,layerwise",
        "layerwise,layerwise",
        ",",
    ),
    *(
        "budget=1..2kB:3",
        "budget=10%,20%",
        "channels.h2d.bandwidth=1..2GB/s:2",
        "policy.k=1,2",
        "budget=1..1",
        "budget=..",
        "budget=1..2:1000000000",
    ),
    *(
        "budget=80%,80%",
        "devices=1,2",
        "hardware.devices=1,2",
        "a=b=c",
        "a+b=1,2",
        "tiers.hbm.capacity=1..3kB:2",
        "name=x",
        "workload.batch=1..2",
    ),
    *(
        "out.png",
        "out.svg",
        "out.pdf",
        "out.html",
        "out.json",
        "out.csv",
        "out.parquet",
        "out.yaml",
        "out.x",
        "out",
        "/dev/null",
        ".",
        "no/out.json",
    ),
    *(
        "w.json",
        "m.yaml",
        "plan.json",
        "hosim.toml",
        "/dev/full",
        "ledger",
        "caching",
        "static",
        "program",
        "reserved",
        "0:1",
        "1:0",
        ":",
        "a:b",
    ),
)
PLAIN = (
    "plan w.json -H m.yaml -p layerwise -b 75% -o out.json",
    "replay plan.json w.json -H m.yaml",
    "replay plan.json w.json -H m.yaml --json",
    "compare-policies w.json -H m.yaml -p layerwise,on_demand -b 80%",
    "sweep w.json -H m.yaml -p layerwise --vary budget=60%,80% -j 1",
    "diff plan.json plan.json -w w.json --top 3",
    "check step -j 1 --no-cache",
    "baseline show step",
    "import w.json -o out.json",
    "hardware show m.yaml",
    "workload show w.json",
    "hardware list",
    "policies",
    "schema plan",
    "doctor",
    "hardware list --json",
    "notebooks out.books",
    "compare-policies w.json -H m.yaml,toy -p layerwise -b 80%",
)
WIDE = (
    "workload list",
    "frontier w.json -H m.yaml -p layerwise -n 3 --refine 1",
    "fit w.json -H m.yaml -p layerwise --smallest tiers.hbm.capacity=1..3kB:3",
    "robustness w.json -H m.yaml -p layerwise --runs 2",
    "blame w.json -H m.yaml -p layerwise --top 2",
    "export w.json -H m.yaml --mindspore --trials 2 -p layerwise",
    "compare-policies w.json -H m.yaml -p layerwise --plot out.svg",
    # whose fonts take libraries of their own
    "compare-policies w.json -H m.yaml -p layerwise --plot out.pdf",
    "replay plan.json w.json -H m.yaml --html out.html",
)
SURROUNDINGS: Mapping[str, Sequence[str | None]] = {
    "COLUMNS": ("1", "0", "-1", "5", "20", "100000", "x", ""),
    "LINES": ("0", "x"),
    "LANG": ("C", "xx_YY", "de_DE.UTF-8", ""),
    "LC_ALL": ("C", "POSIX"),
    "PYTHONIOENCODING": ("ascii", "latin-1", "utf-8:strict", "ascii:strict", "cp1252", "koi8-r"),
    "HOME": (None, "/proc/nonexistent", "/dev/null", ""),  # where root can make no folder either
    "XDG_CACHE_HOME": ("/dev/null", "/proc/nonexistent/x", "/proc/x", "w.json"),
    "HOSIM_CACHE": ("/dev/null/x", "/proc/x", "w.json", "cache"),
    "HOSIM_LIMITS": (
        "devices=1",
        "values=1",
        "file_bytes=1B",
        "x=1",
        "devices",
        "devices=-1",
        "devices=1,devices=2",
        "runs=1e9",
        "name_length=1",
        ",",
    ),
    "GITHUB_ACTIONS": ("true",),
    "GITHUB_STEP_SUMMARY": ("/dev/null", "/nonexistent/x", "out.md"),
    "NO_COLOR": ("1",),
    "TERM": ("dumb", "xterm-256color", ""),
    "FORCE_COLOR": ("",),
    "TZ": ("x",),
    "MPLBACKEND": ("agg",),
    "TMPDIR": ("/nonexistent",),
}
STREAMS = (("file", "file"),) * 4 + (
    ("closed", "file"),
    ("full", "file"),
    ("file", "closed"),
    ("file", "full"),
    ("closed", "closed"),
)


class _Options(Target):
    """Options, names in files, or what is around a command."""

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        super().__init__(name, files, [], [], PLAIN, WIDE)

    def case(self, number: int, *, quick: bool) -> Case:
        draw = Random(f"{self.name} {number}")
        arguments = shlex.split(draw.choice(PLAIN if quick or draw.random() < 0.7 else WIDE))
        files, environment, streams = dict(self.files), {}, ("file", "file")
        if self.name == "options":
            for _ in range(draw.choice((1, 1, 2, 3))):
                _other_options(draw, arguments)
        elif self.name == "names":
            files = _renamed(draw, files)
            environment = {"GITHUB_ACTIONS": "true"} if draw.random() < 0.3 else {}
        else:
            for variable in draw.sample(sorted(SURROUNDINGS), draw.choice((1, 2, 4))):
                environment[variable] = draw.choice(SURROUNDINGS[variable])
            streams = draw.choice(STREAMS)
            own_cache = bool(
                environment.get("HOME", "as it is")
            )  # without HOME hosim finds the user's
            if own_cache and "-j" in arguments and draw.random() < 0.5:
                arguments = [argument for argument in arguments if argument != "--no-cache"]
        return Case(
            self.name, tuple(a.replace("\0", "") for a in arguments), files, environment, streams
        )


SERVING = (
    "serve gpt2 -H m.yaml --requests r.jsonl --blocks 64 --scheduling-policy priority",
    "serve gpt2 -H m.yaml --requests poisson:rate=10:count=3:prompt=40:output=3 --blocks 64",
    *(f"serve-{study} -H m.yaml --set scheduling_policy=priority" for study in STUDIES),
)
SERVING_OPTIONS = (
    *(
        "--set",
        "--set",
        "--set",
        "--requests",
        "--vary",
        "--vary",
        "--limit",
        "--within",
        "--largest",
        "--smallest",
        "--seeds",
        "--blocks",
    ),
    *(
        "--block-tokens",
        "--token-budget",
        "--max-sequences",
        "--memory-share",
        "--overhead",
        "--instances",
        "--router",
        "--kv",
        "--tensor",
    ),
    *(
        "--preemption",
        "--prefill-instances",
        "--decode-instances",
        "--kv-link",
        "--kv-sending",
        "--weights",
        "--weights-memory",
        "--of",
    ),
    *("--against", "--expert", "--fit-first", "--measured", "--iterations", "--json"),
)
_NAMES = (
    "blocks",
    "token_budget",
    "kv_block",
    "kv_top",
    "model",
    "requests",
    "layers",
    "tensor",
    "overhead",
    "x",
    "model.layers",
    "hardware",
)
SERVING_VALUES = (
    *(
        f"{name}={value}"
        for name in (*_NAMES, "requests.rate", "kv", "instances")
        for value in ("1", "0", "-1", "64,128", "1..4:2", "x", "")
    ),
    *(
        "poisson:rate=1:count=2",
        "bursts:rate=10:duration=1s:size=999999999999",
        "poisson:rate=1e300:count=2",
        "closed:users=2:count=3",
        "conversations:rate=9:count=2:turns=1..3:system=16:prompt=8:output=2:think=1ms:tools=1",
        "conversations:rate=9:turns=999999999",
    ),
    *(
        "poisson:rate=0:count=2",
        "gamma:rate=1:count=99999999999",
        "poisson:count=1:prompt=99999999999",
        "lru:tiers=ddr",
        "write_through",
    ),
    *(
        "lru:tiers=ddr=1kB",
        "lru:tiers=nvme",
        "ttft=2s",
        "ttft.p95=1s,tpot.mean=1ms",
        "ttft=nan",
        "prefix",
        "swap",
        "50GB/s",
        "by_layers",
    ),
)


class _ServingOptions(Target):
    """Options of serving and of its studies."""

    def __init__(self) -> None:
        files = {
            "r.jsonl": seeds.REQUESTS,
            "m.yaml": seeds.text(seeds.KERNEL_HARDWARE),
            "k.csv": seeds.KERNELS.encode(),
        }
        super().__init__("serving options", files, [], [], SERVING)

    def case(self, number: int, *, quick: bool) -> Case:
        draw = Random(f"{self.name} {number}")
        arguments = shlex.split(draw.choice(SERVING))
        for _ in range(draw.choice((1, 1, 2))):
            option = draw.choice(SERVING_OPTIONS)
            odd = (*SERVING_VALUES, *VALUES, *(t for t in TEXTS if len(t) < 400))
            value = draw.choice(
                ("2", "3", "16", "64", "0.5", "1ms", "blocks=32", "token_budget=32")
                if draw.random() < 0.5
                else odd
            )
            if not value.startswith("http"):
                arguments += [option] if option == "--json" else [option, value.replace("\0", "")]
        return Case(self.name, tuple(arguments), self.files)


def _other_options(draw: Random, arguments: list[str]) -> None:
    at = draw.randrange(len(arguments))
    way = draw.randrange(6)
    text = draw.choice((*VALUES, *VALUES, *(t for t in TEXTS if len(t) < 400)))
    if text.startswith(("tcp:", "http")) or (way >= 2 and at == 0):
        return
    if way < 2:
        option = draw.choice(OPTIONS)
        arguments += (
            [option]
            if draw.random() < 0.3
            else [option, "1" if option in ("-j", "--jobs") else text]
        )
    elif way < 5 and arguments[at - 1] not in ("-j", "--jobs"):
        arguments[at] = text
    elif (
        way == 5
        and arguments[at] not in ("-j", "--jobs")
        and arguments[at - 1] not in ("-j", "--jobs")
    ):
        arguments.insert(at, arguments[at]) if draw.random() < 0.5 else arguments.pop(at)


NAMES = (
    "toy",
    "x",
    "w",
    "v",
    "a",
    "f",
    "g",
    "compute",
    "other",
    "matmul",
    "ddr",
    "hbm",
    "h2d",
    "d2h",
    "small",
    "by hand",
    "pcie",
    "bf16",
    "nvme",
    "up",
)


def _renamed(draw: Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """Names replaced wherever they stand, so that files go on agreeing."""
    for old in draw.sample(NAMES, draw.choice((1, 2, 5))):
        new = draw.choice([text for text in TEXTS if text]) + draw.choice(("", old))
        for file in ("w.json", "m.yaml", "plan.json"):
            files[file] = files[file].replace(json.dumps(old).encode(), json.dumps(new).encode())
    return files
