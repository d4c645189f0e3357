"""Importing the shipped Llama graph costs less than exporting it from torch."""

from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import yaml
from measures import cpu_seconds, measure

from hosim.io import import_spec
from hosim.io.importers.torch_programs import import_exported
from hosim.shipped import find_workload

NAME = "llama-3.1-8b-prefill-4k"


@measure("importing Llama-3.1-8B's prefill, in exports by torch.export", most=1)
def importing() -> float:
    import torch

    path = find_workload(NAME).with_suffix("").with_suffix(".yaml")
    small = yaml.safe_load(path.read_text())
    small["model"]["config"]["num_hidden_layers"] = 1
    with TemporaryDirectory() as folder:  # both sides import modules on first use
        warm = Path(folder) / "warm.yaml"
        warm.write_text(yaml.safe_dump(small))
        import_spec(warm)
    export, programs, seconds = torch.export.export, [], []

    def timed(*arguments, **named):
        begin = process_time()
        programs.append(export(*arguments, **named))
        seconds.append(process_time() - begin)
        return programs[-1]

    torch.export.export = timed
    import_spec(path)
    return cpu_seconds(lambda: import_exported(programs[0], name=NAME)) / seconds[0]
