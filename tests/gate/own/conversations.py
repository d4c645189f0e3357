"""``python tests/gate/own/conversations.py`` writes conversations.jsonl, whose turns begin with
what was said before, for the own gate.
"""

import json
from pathlib import Path

COUNT, TURNS, BLOCK = 12, 4, 16


def lines() -> str:
    """Conversations take turns, each longer than the one before by some blocks; they come faster
    than a small cache can hold.
    """
    rows = []
    for turn in range(TURNS):
        for one in range(COUNT):
            blocks = 6 + 5 * turn + one % 4
            row = {
                "arrival_s": round(0.004 * (turn * COUNT + one), 3),
                "prompt_tokens": BLOCK * blocks + 3,
                "output_tokens": 8 + one,
            }
            rows.append(
                {**row, "prefix_blocks_of_16": [1000 * one + block for block in range(blocks)]}
            )
    return "".join(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    Path(__file__).with_name("conversations.jsonl").write_text(lines())
