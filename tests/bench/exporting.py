"""Importing the shipped Llama graph costs less than exporting it from torch."""

from time import process_time

from measures import cpu_seconds, measure

from hosim.importers.torch_programs import import_exported
from hosim.io import import_spec
from hosim.io.spec import export_model
from hosim.io.spec_file import load_spec
from hosim.shipped import find_workload

NAME = "llama-3.1-8b-prefill-4k"


@measure("importing Llama-3.1-8B's prefill, in exports by torch.export", most=1)
def importing() -> float:
    import torch

    path = find_workload(NAME).with_suffix("").with_suffix(".yaml")
    spec = load_spec(path)
    small = {**spec["model"], "config": {**spec["model"]["config"], "num_hidden_layers": 1}}
    import_exported(export_model(small, spec["inputs"]), name="warm")  # both sides import modules on first use
    export, programs, seconds = torch.export.export, [], []

    def timed(*arguments, **named):
        begin = process_time()
        programs.append(export(*arguments, **named))
        seconds.append(process_time() - begin)
        return programs[-1]

    torch.export.export = timed
    import_spec(path)
    return cpu_seconds(lambda: import_exported(programs[0], name=NAME)) / seconds[0]
