"""The package's front door: what it names is there, has an executed example, and entering it costs nothing heavy."""

import doctest
import subprocess
import sys
import time

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
    begin = time.process_time()
    for test in found:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
    assert time.process_time() - begin < 10  # a second at most, on a machine that is not busy


def test_importing_it_loads_nothing_but_the_standard_library() -> None:
    listing = (
        "import sys; before = set(sys.modules); import hosim; print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    loaded = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) - {"hosim"} <= sys.stdlib_module_names


def test_importing_it_takes_little_more_than_python_itself() -> None:
    def best_of(code: str) -> float:
        seconds = []
        for _ in range(5):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            seconds.append(time.perf_counter() - begin)
        return min(seconds)

    # dataclasses and the like come with the standard library, and take most of it
    importing, nothing = best_of("import hosim"), best_of("import dataclasses, typing, inspect")
    print(f"import hosim {importing:.3f} s, of which Python itself {nothing:.3f} s")
    assert importing - nothing < 0.15
