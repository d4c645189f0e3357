"""Ten families under hosim's plans on the strict stand-in for a GPU: what they hold, what waits,
what is reserved, beside the budget.

``python tests/lower/physical.py`` takes some minutes; results and parameters have to be the eager
model's to the bit, and no rule of torch may be broken. One byte of the small models stands for as
many as make the resident peak some GiB, so that the allocator's segments count as little as they do
for real models.
"""

import logging
import sys
import tempfile
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[n]) for n in (2, 1, 0)]

import fake_cuda
import pytest
import torch
from exported_models import MODELS
from fake_cuda import Launched
from lowering import GIB, MACHINE, captured, model_of, same, values_of
from steps import case, inputs_of

from hosim.analysis import static_peak
from hosim.data import allocator_blocks
from hosim.on_torch.lower import Executor, insert, planned, within_reserved
from hosim.on_torch.lower.devices import CudaDevice
from hosim.on_torch.lower.tiers import RunMemory
from hosim.result import CACHING, EXPANDABLE

SHARES = (90, 75, 50)
LARGE = 16 * GIB
GPU = replace(
    MACHINE, tiers=(replace(MACHINE.tiers[0], capacity_bytes=80 * GIB), *MACHINE.tiers[1:])
)
NS_PER_BYTE = 1e9 / MACHINE.channels[0].bandwidth_bytes_per_s


@dataclass(frozen=True)
class Physical:
    """Bytes of the device tier, as the small model has them."""

    budget_bytes: int
    cache_ops: int
    use: RunMemory
    reserved_bytes: int
    exact: bool

    def row(self):
        use, whole = self.use, self.budget_bytes
        parts = (use.allocated_bytes, use.pending_bytes, use.held_bytes, self.reserved_bytes)
        return (
            " ".join(f"{part / whole:10.3f}" for part in parts)
            + f" {'same' if self.exact else 'OTHER'} {use.over_budget_bytes / whole:6.3f}"
        )


def program_of(name, training):
    return case(name).step.program if training else captured(name)


def plan_of(program, share, allocator, policy):
    """How many bytes one byte stands for, the budget in bytes of the small model, and the plan for
    it.
    """
    peak = static_peak(program.graph).bytes
    scale = 1 << max(0, (LARGE // peak).bit_length() - 1)
    tensors = tuple(replace(t, size_bytes=t.size_bytes * scale) for t in program.graph.tensors)
    ops = tuple(replace(op, workspace_bytes=op.workspace_bytes * scale) for op in program.graph.ops)
    large = replace(program.graph, tensors=tensors, ops=ops)
    budget = peak * share // 100
    plan, _ = planned(
        large,
        GPU,
        budget * scale,
        policy,
        {"effort": 0.0} if policy == "hyperoffload" else {},
        replayed=partial(within_reserved, allocator=allocator),
    )
    if plan.edits is None:
        return scale, budget, replace(plan, graph=program.graph)
    edits = replace(plan.edits, base=program.graph)
    return scale, budget, replace(plan, graph=edits.graph(), edits=edits)


def run(name, training, share, policy="hyperoffload", runs=3, **options):
    """Run a family under a plan for a share of its resident peak."""
    program = program_of(name, training)
    scale, budget, plan = plan_of(
        program, share, EXPANDABLE if options.get("expandable") else CACHING, policy
    )
    values = case(name).values(name) if training else values_of(name)
    given = dict(zip([given.placeholder for given in program.givens], values, strict=True))
    inputs = {one.placeholder: given[one.placeholder] for one in program.givens if not one.own}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        cuda = fake_cuda.install(
            patch, capacity=80 * GIB // scale, scale=scale, ns_per_byte=NS_PER_BYTE, **options
        )
        patch.setattr(
            allocator_blocks, "MIN_BLOCK", 1
        )  # the stand-in rounds what a byte stands for
        machine = CudaDevice(MACHINE, directories={"nvme": folder})
        uses = []
        with Launched(cuda), Executor(insert(program, plan), MACHINE, machine, budget) as executor:
            executor.place({name: value for name, value in given.items() if name not in inputs})
            for n in range(1 if training else runs):
                if n == 0:
                    cuda.empty_cache()
                    cuda.reset_peak_memory_stats()
                results = None  # those of the run before are the caller's
                torch.manual_seed(1)
                results = executor.run(inputs)
                uses.append(machine.memory)
            reserved = cuda.max_memory_reserved()
    if training:
        exact = torch.equal(results[0], case(name).loss) and same(case(name).live, case(name).end)
    else:
        with torch.no_grad():
            exact = same(results, model_of(name)(**inputs_of(name)))
    use = RunMemory(*(max(getattr(use, name) for use in uses) for name in RunMemory.__slots__))
    return Physical(budget, len(plan.cache_ops), use, reserved, exact)


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    columns = " ".join(f"{name:>10}" for name in ("allocated", "pending", "held", "reserved"))
    print(f"{'family':12} {'':9} {'share':>5} {'cache ops':>9} {columns}")
    for name in [a for a in sys.argv[1:] if a != "--all"] or MODELS:
        for training in (False, True):
            for share in SHARES:
                what = "training" if training else "inference"
                for expandable in (True,) if "--all" not in sys.argv else (False, True):
                    try:
                        got = run(name, training, share, expandable=expandable)
                        print(
                            f"{name:12} {what:9} {share:4}% {got.cache_ops:9} {got.row()} "
                            f"{'expandable' if expandable else ''}",
                            flush=True,
                        )
                    except Exception as error:
                        print(
                            f"{name:12} {what:9} {share:4}% {type(error).__name__}: {error}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
