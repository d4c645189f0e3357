"""The optimizer step: AdamW as one kernel per parameter, on the device or on the processor of a
lower tier.

On another processor (``run.optimizer_on``) it is that of ZeRO-Offload (J. Ren et al., ATC 2021): it
reads the gradient, reads and writes the fp32 parameter and moments in that tier, and writes the
parameter there in the dtype of the step; the parameter then returns to the device. ``run.update``
is one of :data:`UPDATES`:

``synchronous``
    It begins once all gradients are there, as overflow checks and clipping by the norm of all
    gradients require (DeepSpeed).
``speculative``
    It begins with the first gradient, and takes gradients in the order in which the backward pass
    makes them. A step that a check rejects would be undone (SuperOffload, X. Lian et al., arXiv
    2509.21271). Undoing is not modelled.
``delayed``
    It runs beside the passes with the gradients of the previous step, and the parameters change at
    the end of the step (ZeRO-Offload's delayed parameter update). For a while the tier of the
    processor has two copies of a parameter, and of a gradient, too. The new gradient replaces the
    old one by a change of pointers.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod

from hosim.errors import InputError
from hosim.io.models.config import Run
from hosim.io.models.tape import Learned, Tape, TapedOp, Value

UPDATES = ("synchronous", "speculative", "delayed")
"""The times at which an optimizer on another processor than the device may run."""


def has_master(run: Run) -> bool:
    """Return whether an fp32 copy of each parameter is kept beside it. With ZeRO stage 3 the shard
    itself is fp32.
    """
    return run.dtype != "fp32" and run.states_dtype is None and run.zero != 3


def adamw(
    t: Tape,
    run: Run,
    learned: Learned,
    *,
    master: bool,
    after: Sequence[str] | None = None,
    is_shard: bool = False,
    elsewhere: Collection[str] | None = None,
) -> list[Value]:
    """Emit the updates of parameters, or of shards of them, that have gradients. The states of each
    are two moments and, with ``master``, the fp32 parameter that is rounded.

    The states are fp32 (moments in ``run.states_dtype``, if it is given) and live in
    ``run.states_home``. The kernel reads the gradient, and reads and writes the states. On another
    processor a ``synchronous`` update waits for the ops ``after``, by default the last ones of all
    streams. With ``is_shard`` it writes the device's parts of the parameters there as new tensors,
    which are returned; other devices have the other parts. ``elsewhere`` has the names of the
    parameters that are updated there, by default the first share of ``learned``
    (:func:`first_share`).
    """
    with t.scope("optimizer"):
        if run.optimizer_on is not None:
            either = (
                "/" in run.optimizer_on
            )  # as on the device, where an update waits only for its gradient
            waits = [] if either else list(t.last_ops.values()) if after is None else list(after)
            chosen = first_share(learned, run.optimizer_share) if elsewhere is None else elsewhere
            there = [pair for pair in learned if pair[0].tensor in chosen]
            here = [pair for pair in learned if pair[0].tensor not in chosen]
            shards = _on_another(
                t,
                run,
                run.optimizer_on,
                there,
                master,
                waits if run.update == "synchronous" else [],
                is_shard,
            )
            _on_device(t, replace(run, states_home=None), here, master)
            return shards
        _on_device(t, run, learned, master)
    return []


@dataclass(frozen=True)
class RootedParameter:
    """A parameter with new moments and the ``root`` of the second one. ``changed`` has the
    parameter and its fp32 copy, if it has one. Its ``gradient`` lives until they have changed,
    because users free it after the step.
    """

    parameter: Value
    gradient: Value
    changed: list[Value]
    first: Value
    root: Value


def moments_by_parts(t: Tape, run: Run, learned: Learned, master: bool) -> list[RootedParameter]:
    """The first part of AdamW in torch's ``foreach`` implementation: the new moments of all
    parameters, and the roots of the second ones, which all live until :func:`update_by_parts`.

    Each elementwise function is a pass over memory. The first moment is read and written with the
    gradient; the second one is passed three times (it is scaled, the gradient's square is added,
    its root is taken).
    """
    found = []
    with t.scope("optimizer"):
        for parameter, gradient in learned:
            *copies, first, second = _states(t, parameter, master, run)
            (root,) = t.ops(
                f"{parameter.tensor}.moments",
                "optimizer",
                [gradient],
                [(second.shape, second.dtype)],
                mutates=[first, second],
                accessed=2 * gradient.size + 2 * first.size + 5 * second.size + second.size,
            )
            found.append(RootedParameter(parameter, gradient, [parameter, *copies], first, root))
    return found


def update_by_parts(t: Tape, rooted: Sequence[RootedParameter]) -> None:
    """The rest of AdamW: the parameter decays, the root is corrected and bounded, and the first
    moment over the root is subtracted from the parameter. Each is a pass over memory.
    """
    with t.scope("optimizer"):
        for each in rooted:
            full = each.changed[-1]
            rounded = each.parameter.size if full is not each.parameter else 0
            t.ops(
                each.parameter.tensor,
                "optimizer",
                [each.first, each.root, each.gradient],
                [],
                mutates=each.changed,
                accessed=4 * full.size + 5 * each.root.size + each.first.size + rounded,
            )


def first_share(learned: Learned, share: float) -> frozenset[str]:
    """The names of the first parameters that have at most that share of all elements. Raises
    :class:`InputError` if the first parameter has more.
    """
    most, so_far = share * sum([prod(p.shape) for p, _ in learned]), 0
    found: list[str] = []
    for parameter, _ in learned:
        so_far += prod(parameter.shape)
        if so_far > most:
            if share and not found:
                raise InputError(
                    f"the first parameter, {parameter.tensor}, has more than that of all",
                    where="optimizer_share",
                )
            break
        found.append(parameter.tensor)
    return frozenset(found)


def _on_device(t: Tape, run: Run, learned: Learned, master: bool) -> None:
    for parameter, gradient in learned:
        states = _states(t, parameter, master, run)
        written = sum([2 * state.size for state in states]) + parameter.size * (1 if master else 2)
        t.ops(
            parameter.tensor,
            "optimizer",
            [gradient],
            [],
            mutates=[parameter, *states],
            accessed=gradient.size + written,
        )


def _states(t: Tape, parameter: Value, master: bool, run: Run) -> list[Value]:
    moments = run.states_dtype or "fp32"
    kept = [("master", "fp32")] * master + [("exp_avg", moments), ("exp_avg_sq", moments)]
    size = (prod(parameter.shape),)
    return [
        t.held(f"{parameter.tensor}.{name}", size, dtype, "optimizer_state", run.states_home)
        for name, dtype in kept
    ]


def _on_another(
    t: Tape,
    run: Run,
    processor: str,
    learned: Learned,
    master: bool,
    after: Sequence[str],
    is_shard: bool,
) -> list[Value]:
    """Emit the updates on the processor of a tier, and return their shards; without ``master`` they
    write the parameter that they have read.
    """
    shards: list[Value] = []
    applied: list[tuple[Value, Value]] = []
    kept: list[tuple[Value, Value]] = []
    for parameter, gradient in learned if run.update == "synchronous" else reversed(learned):
        states = _states(t, parameter, master, run)
        read, written = gradient, parameter
        if run.update == "delayed":
            read = Value(f"{parameter.tensor}.previous_grad", gradient.shape, gradient.dtype)
            t.builder.tensor(read.tensor, read.size, "gradient", processor, persistent=True)
            written = replace(parameter, tensor=f"{parameter.tensor}.next")
            t.builder.tensor(written.tensor, written.size, "activation")
            applied.append((parameter, written))
            kept.append((gradient, read))
        elif is_shard:
            written = replace(parameter, tensor=f"{parameter.tensor}.shard")
            t.builder.tensor(written.tensor, written.size, "activation")
            shards.append(written)
        of_states = sum([2 * state.size for state in states])
        accessed = read.size + of_states + parameter.size * (1 if master else 2)
        changed, replaced = (states, [written]) if master else ([parameter, *states], [])
        with t.on(processor):
            t.ops(
                parameter.tensor,
                "optimizer",
                [read],
                [],
                mutates=changed,
                overwrites=replaced,
                accessed=accessed,
                deps=after,
            )
    with t.on(processor):
        for gradient, previous in kept:
            name, at_once = f"{gradient.tensor}.keep", TapedOp(accessed=0, duration_ns=0)
            t.ops(name, "copy", [gradient], [], overwrites=[previous], **at_once)
    for parameter, new in applied:
        name, accessed = f"{parameter.tensor}.apply", 2 * parameter.size
        t.ops(name, "copy", [new], [], overwrites=[parameter], accessed=accessed)
    return shards
