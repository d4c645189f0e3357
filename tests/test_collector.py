"""Python's collector after very many objects were made without it, in a process of its own: tests
freeze theirs.
"""

import subprocess
import sys

import pytest

CODE = """
import gc
from hosim.base.collector import no_collection

walked = []
gc.callbacks.append(lambda phase, info: walked.append(info["generation"]) if phase == "stop" else None)
if {frozen}:
    gc.freeze()
before = gc.get_freeze_count()
with no_collection():
    made = [[] for _ in range({count})]
first = [[] for _ in range(10)]
print(len(walked), gc.get_count()[0] < 1000, gc.get_freeze_count() == before, gc.isenabled())
"""


@pytest.mark.parametrize(
    ("count", "frozen", "walks"), [(600_000, False, 0), (600_000, True, 1), (10_000, False, 1)]
)
def test_what_was_made_counts_as_old_where_it_is_very_much(count, frozen, walks):
    """Who has frozen objects of his own keeps them so; then, and after fewer, the collector looks
    at what was made.
    """
    code = CODE.format(count=count, frozen=frozen)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(walks), "True", "True", "True"]
