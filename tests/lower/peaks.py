"""Ten families under hosim's plans, with copy threads: the tracked peak beside the replay's in
program order.

``python tests/lower/peaks.py`` takes about a minute; results and parameters have to be the eager
model's to the bit.
"""

import logging
import sys
import tempfile
import warnings
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[n]) for n in (2, 1, 0)]

import torch
from exported_models import MODELS
from lowering import MACHINE, captured, model_of, same, values_of
from steps import case, inputs_of
from test_families import executed

from hosim.analysis import static_peak
from hosim.on_torch.lower import planned


def run(name, training):
    """Cache ops of the plan at three quarters of the resident peak, tracked and predicted peak, and
    whether results are the same.
    """
    program = case(name).step.program if training else captured(name)
    plan, _ = planned(program.graph, MACHINE, static_peak(program.graph).bytes * 3 // 4)
    values = case(name).values(name) if training else values_of(name)
    with tempfile.TemporaryDirectory() as folder:
        results, peak, predicted = executed(program, plan, values, False, Path(folder))
    if training:
        exact = torch.equal(results[0], case(name).loss) and same(case(name).live, case(name).end)
    else:
        with torch.no_grad():
            exact = same(results, model_of(name)(**inputs_of(name)))
    return len(plan.cache_ops), peak, predicted, exact


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(
        f"{'family':12} {'':9} {'cache ops':>9} {'tracked':>11} {'predicted':>11} {'ratio':>9}  "
        "bits"
    )
    for name in MODELS:
        for training in (False, True):
            count, peak, predicted, exact = run(name, training)
            what = "training" if training else "inference"
            print(
                f"{name:12} {what:9} {count:9} {peak:11,} {predicted:11,} {peak / predicted:9.5f} "
                f" {'same' if exact else 'OTHER'}"
            )


if __name__ == "__main__":
    main()
