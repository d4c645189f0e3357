"""Steps of the comparison with checkpointed layers: what is drawn for a seed, and what a line
says.
"""

import checkpointing
from checkpointing import MOST_OPS, Step, drawn, listed


def test_what_is_drawn_is_the_same_for_a_seed_and_small_enough():
    steps = list(drawn(2, 3))
    assert steps == list(drawn(2, 3))
    assert all(len(step.graph().ops) <= MOST_OPS for step in steps)
    assert len(list(listed())) == 15


def test_a_step_is_planned_with_and_without_checkpoints(monkeypatch, capsys):
    step = Step(
        {"model": "bert-large", "batch": 4, "sequence": 128, "layers": 2}, "rtx-4090", "100%"
    )
    assert len(step.graph(checkpoint=True).ops) > len(step.graph().ops)
    monkeypatch.setattr(checkpointing, "listed", lambda: iter([step]))
    assert checkpointing.main([]) == 0
    line, last = capsys.readouterr().out.splitlines()
    assert line.startswith("bert-large 4 128 2 on rtx-4090 at 100%: ")
    assert " ms, checkpointed " in line
    assert last.startswith("1 steps: largest ratio ")
