"""The commands that look up what there is: ``hosim policies``, ``schema``, ``notebooks``, ``doctor``,
``workload``, ``hardware`` and ``runtime``, which also fits one.
"""

from dataclasses import replace
from pathlib import Path

import typer

from hosim import api, gate, io
from hosim.base import files
from hosim.cli.answers import print_answer, show_answer
from hosim.cli.commands import NAMES, command
from hosim.cli.options import console, graph_of, hardware_of, print_json
from hosim.cli.progress import progress
from hosim.cli.targets import DATA
from hosim.cli.terminal import say, warn
from hosim.extensions import added
from hosim.io import models, runtimes
from hosim.io.options import OPTIONS, REQUIRED, Given, Option, declared
from hosim.report import listed

_KV = Option("kv", of=bool, default=False, help="Those for the cache of 'hosim serve' instead.")


@command(*declared("kv detail json", _KV))
def policies(given: Given) -> None:
    """List the policies and their parameters.

    --detail has the parameters, whose systems policies model, and the packages of plugins.
    """
    if given.kv:
        _kv_policies(given)
        return
    from hosim.policies import package_of, policy_named, policy_names

    names = policy_names()
    known, packages = [policy_named(name) for name in names], [package_of(name) for name in names]
    answer = listed.policies_in_short(
        known, [p.name for p in known if p.by_name_only or p.needs_routing], _next("policies")
    )
    data = {"policies": list(map(listed.policy_figures, known, packages))}
    show_answer(answer, given, lambda: data, lambda: [listed.policies(known, packages)])


def _next(what: str) -> list[tuple[str, str]]:
    return [(f"hosim {what} --detail", "parameters, and whose systems they model")]


def _kv_policies(given: Given) -> None:
    known = [policy for table in added("kv_policies") for policy in table]
    packages = ["hosim"] * len(known)
    data = {"kv_policies": list(map(listed.policy_figures, known, packages))}
    answer = listed.policies_in_short(known, (), _next("policies --kv"))
    show_answer(answer, given, lambda: data, lambda: [listed.policies(known, packages)])


_FORMAT = Option(
    "name",
    default=REQUIRED,
    argument=True,
    metavar="NAME",
    help="workload, hardware, plan, result, comparison or routing.",
)


@command(_FORMAT)
def schema(given: Given) -> None:
    """Print the JSON Schema of a format."""
    from hosim import io

    typer.echo(io.to_json(io.schema(given.name)))


_FOLDER = Option(
    "folder",
    of=Path,
    default=REQUIRED,
    argument=True,
    metavar="FOLDER",
    help="Where to write them; it is made if it is not there.",
)


@command(_FOLDER)
def notebooks(given: Given) -> None:
    """Write the worked notebooks to a folder.

    It never overwrites a file that differs: move such a file away first.
    """
    from hosim import shipped
    from hosim.errors import InputError

    folder = given.folder
    copies = {path: folder / path.name for path in shipped.notebook_paths()}
    for path, copy in copies.items():
        if copy.exists() and copy.read_bytes() != path.read_bytes():
            raise InputError(
                "there is another file of that name: move it away, or name another folder",
                source=str(copy),
            )
    if folder.exists() and not folder.is_dir():
        raise InputError("expected a folder, found a file", source=str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    for path, copy in copies.items():
        files.write_bytes(copy, path.read_bytes())
    count = sum(copy.suffix == ".ipynb" for copy in copies.values())
    say(
        f"wrote {count} notebooks to {folder}; jupyter lab "
        f"{folder / next(iter(copies.values())).name} opens the first one"
    )


@command(*declared("json"))
def doctor(given: Given) -> None:
    """Show what is installed, and what is missing for what."""
    from hosim import shipped

    found = listed.installation(gate.kept_in(), len(shipped.workloads()), len(shipped.hardware()))
    if given.json:
        print_json(found)
    else:
        console().print(listed.installation_table(found))


workload_app = typer.Typer(help="List the shipped workloads, or show one.", no_args_is_help=True)


@workload_app.command("list")
@command(*declared("detail json"))
def list_workloads(given: Given) -> None:
    """List the shipped workloads."""
    from hosim import shipped

    names = shipped.workloads()
    if given.json:
        graphs = [graph_of(name) for name in names]
        print_json({"workloads": [listed.workload_figures(graph) for graph in graphs]})
    else:
        asked_on = (("hosim workload list --detail", "ops, work and memory of each"),)
        short = listed.workloads_in_short(names, models.PRESETS, asked_on)
        print_answer(short, given, lambda: [listed.workloads(map(graph_of, names))])


@workload_app.command("models")
@command(*declared("detail json"))
def list_models(given: Given) -> None:
    """List the models that hosim can build by name."""
    if given.json:
        print_json({"models": [listed.model_figures(model) for model in models.listed_models()]})
    else:
        short = listed.models_in_short(
            {name: models.FAMILIES[type(sizes)].phases for name, sizes in models.PRESETS.items()},
            (("hosim workload models --detail", "parameters, weights, what is left out"),),
        )
        print_answer(short, given, lambda: [listed.models(models.listed_models())])


_SHOWN = declared(
    "workload hardware ops detail json",
    replace(
        OPTIONS["hardware"],
        default=None,
        help="Show how long ops take on this machine, and where that is from.",
    ),
    Option(
        "ops",
        of=bool,
        default=False,
        needs=("hardware",),
        help="With --hardware: a row for each op.",
    ),
    replace(OPTIONS["json"], excludes={"hardware": "it shows a workload alone"}),
)


@workload_app.command("show")
@command(*_SHOWN)
def show_workload(given: Given) -> None:
    """Show a workload: its live memory, tensors, ops and source.

    --detail prints every table.
    """
    from hosim.devices_of_graph import on_devices

    width, graph = console().width, graph_of(given.workload)
    if given.json:
        print_json(listed.workload_figures(graph))
        return
    where = on_devices(graph, hardware_of(given.hardware)) if given.hardware is not None else None
    given.detail = given.detail or given.ops
    print_answer(
        listed.workload_in_short(graph, width, where),
        given,
        lambda: [
            listed.workload(graph, width),
            *([] if where is None else [listed.op_times(graph, where, given.ops)]),
        ],
    )


hardware_app = typer.Typer(
    help="List the shipped hardware profiles, or show one.", no_args_is_help=True
)

_PROFILE = replace(
    OPTIONS["hardware"], argument=True, help="A hardware profile: a path, or a shipped name."
)


@hardware_app.command("list")
@command(*declared("detail json"))
def list_hardware(given: Given) -> None:
    """List the shipped hardware profiles."""
    from hosim import shipped

    profiles = [hardware_of(name) for name in shipped.hardware()]
    asked_on = (("hosim hardware list --detail", "compute, memory and links of each"),)
    answer = listed.machines_in_short(profiles, shipped.ALIASES, asked_on)
    data = {
        "hardware": [io.hardware_to_dict(each) for each in profiles],
        "aliases": shipped.ALIASES,
    }
    show_answer(answer, given, lambda: data, lambda: [listed.machines(profiles, shipped.ALIASES)])


@hardware_app.command("show")
@command(*declared("hardware detail json", _PROFILE))
def show_hardware(given: Given) -> None:
    """Show a profile: tiers, channels, fabrics and sources.

    --detail shows all.
    """
    profile = hardware_of(given.hardware)
    data = io.hardware_to_dict(profile)
    show_answer(
        listed.machine_in_short(profile), given, lambda: data, lambda: [listed.machine(profile)]
    )


runtime_app = typer.Typer(
    help="List the shipped runtimes, show one, or fit one to logs.", no_args_is_help=True
)

_RUNTIME = Option(
    "name",
    default=REQUIRED,
    argument=True,
    metavar="NAME",
    help="A runtime: a path, or a shipped name.",
    completes=NAMES["runtime"],
)

_FITTED = (
    Option(
        "log",
        of=Path,
        default=REQUIRED,
        argument=True,
        metavar="LOG",
        help="Runs: of each a line 'run WORKLOAD -H HARDWARE [-p POLICY]' and lines of its log, or "
        "of a page of a server's metrics.",
    ),
    Option(
        "base",
        default=REQUIRED,
        metavar="NAME",
        help="The runtime that supplies what the log lacks: a path, or a shipped name.",
        completes=NAMES["runtime"],
    ),
    Option(
        "output",
        of=Path,
        flags=("--output", "-o"),
        endings=DATA,
        help="Where to write the runtime: .yaml or .json.",
    ),
)


@runtime_app.command("list")
@command(*declared("detail json"))
def list_runtimes(given: Given) -> None:
    """List the shipped runtimes."""
    from hosim import shipped

    found = [runtimes.runtime_named(name) for name in shipped.runtimes()]
    answer = listed.runtimes_in_short(found, (("hosim runtime show vllm", "its figures"),))
    data = {"runtimes": [runtimes.runtime_to_dict(each) for each in found]}
    show_answer(answer, given, lambda: data, lambda: [listed.runtimes(found)])


@runtime_app.command("show")
@command(*declared("name detail json", _RUNTIME))
def show_runtime(given: Given) -> None:
    """Show a runtime: what it sets, and its figures.

    --detail shows the source of each.
    """
    found = runtimes.runtime_named(given.name)
    data = runtimes.runtime_to_dict(found)
    answer = listed.runtime_in_short(found, data)
    show_answer(answer, given, lambda: data, lambda: [listed.runtime(found, data)])


@runtime_app.command("fit")
@command(*declared("log base output detail json", *_FITTED))
def fit_runtime(given: Given) -> None:
    """Fit a runtime to lines of your own logs."""
    output = given.output
    name = "mine" if output is None else output.name.removesuffix(".gz").rpartition(".")[0]
    with progress("replaying runs"):
        found = api.runtime_fit(given.log, given.base, name)
    for warning in found.warnings:
        warn(warning)
    data = runtimes.runtime_to_dict(found.runtime)
    if output is not None:
        files.write(output, data)
        say(f"wrote {output}")
    fitted = found.runtime, data, found.left, found.moved
    said = {
        "runtime": data,
        "left": dict(found.left),
        "moved": {key: list(values) for key, values in found.moved.items()},
        "warnings": list(found.warnings),
    }
    show_answer(
        listed.runtime_in_short(*fitted), given, lambda: said, lambda: [listed.runtime(*fitted)]
    )
