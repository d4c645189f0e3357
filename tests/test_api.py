"""The package's front door: what it names is there, has an executed example, and entering it costs nothing heavy."""

import doctest
import subprocess
import sys

import pytest

import hosim

NAMES = """
    CacheOp Graph GraphBuilder GraphError Hardware HardwareError HosimError InfeasibleError InputError Op Plan PlanError Result Tensor
    UnitError __version__ blame compare diff find_hardware find_workload fit frontier load load_hardware load_plan load_workload offload
    replay robustness save_plan save_workload sweep
"""


def test_every_public_name_is_there_and_listed() -> None:
    assert sorted(hosim.__all__) == sorted(NAMES.split())
    assert len(hosim.__all__) == len(set(hosim.__all__))
    assert all(getattr(hosim, name) is not None for name in hosim.__all__)
    assert set(hosim.__all__) <= set(dir(hosim))
    with pytest.raises(AttributeError, match="module 'hosim' has no attribute 'nonesuch'"):
        hosim.nonesuch  # noqa: B018


@pytest.mark.parametrize("name", [name for name in hosim.__all__ if name != "__version__"])
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    named = getattr(hosim, name)
    found = doctest.DocTestFinder(recurse=False).find(named, name, globs={**vars(sys.modules[named.__module__])})
    examples = [example for test in found for example in test.examples]
    assert examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in found:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_importing_it_loads_the_data_model_and_nothing_but_the_standard_library() -> None:
    listing = (
        "import sys; before = set(sys.modules); import hosim\n"
        "for name in set(sys.modules) - before: print(name, hasattr(sys.modules[name], '__path__'))"
    )
    lines = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.splitlines()
    loaded = {name: package == "True" for name, package in map(str.split, lines)}
    assert {name.partition(".")[0] for name in loaded} - {"hosim"} <= sys.stdlib_module_names
    assert [name for name, package in loaded.items() if package and name.partition(".")[0] == "hosim"] == ["hosim"]  # no room
