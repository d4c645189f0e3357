"""Python's cyclic garbage collector, and when not to let it run."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 500_000
"""New objects after which the collector looks at the youngest, where cycles are few: by default it
does so after 700.
"""


@contextmanager
def no_collection() -> Iterator[None]:
    """Pauses the cyclic garbage collector.

    What makes a million objects without a cycle among them takes twice as long if the collector
    walks them again and again. Where it has made very many, they count as old afterwards, so that
    the collector does not walk them as soon as it is back.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if gc.get_count()[0] > _OBJECTS and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # what was frozen is old
            gc.enable()


@contextmanager
def rare_collection() -> Iterator[None]:
    """Lets the cyclic garbage collector run seldom: for work that makes many objects that stay, and
    now and then some cycles.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _OBJECTS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
