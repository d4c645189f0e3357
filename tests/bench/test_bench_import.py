"""Importing the shipped Llama graph costs less than exporting it, and gives the shipped file again."""

import gzip
import time

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hosim.importers.spec import export_model, import_spec  # noqa: E402
from hosim.importers.torch_export import import_exported  # noqa: E402
from hosim.io import load_workload, save_workload  # noqa: E402
from hosim.io.spec_file import load_spec  # noqa: E402

NAME = "llama-3.1-8b-prefill-4k"


@pytest.mark.slow
def test_the_shipped_workload_is_made_again_in_less_time_than_its_export(root, tmp_path, monkeypatch):
    path = root / f"workloads/{NAME}.yaml"
    spec = load_spec(path)
    small = {**spec["model"], "config": {**spec["model"]["config"], "num_hidden_layers": 1}}
    import_exported(export_model(small, spec["inputs"]), name="warm")  # both sides import modules on first use

    export, programs, seconds = torch.export.export, [], []

    def timed_export(*args, **kwargs):
        start = time.process_time()
        programs.append(export(*args, **kwargs))
        seconds.append(time.process_time() - start)
        return programs[-1]

    monkeypatch.setattr(torch.export, "export", timed_export)
    graph = import_spec(path)
    start = time.process_time()
    import_exported(programs[0], name=NAME)
    imported = time.process_time() - start
    print(f"{NAME}: {len(programs[0].graph.nodes)} nodes, export {seconds[0]:.2f} s, import {imported:.2f} s")
    assert len(programs[0].graph.nodes) == 2401
    assert imported < seconds[0]

    shipped = root / f"workloads/{NAME}.json.gz"
    made_with = load_workload(shipped).meta
    here = {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}
    if here != {key: made_with[key] for key in here}:
        pytest.skip(f"the workload was made with torch {made_with['torch']} and transformers {made_with['transformers']}; here are {here}")
    save_workload(graph, tmp_path / "again.json.gz")
    # unpacked: zlib builds differ in how they pack the same bytes
    assert gzip.decompress((tmp_path / "again.json.gz").read_bytes()) == gzip.decompress(shipped.read_bytes())
