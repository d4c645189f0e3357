"""A tape writes the ops of a model into a graph, and records how to differentiate them.

Model code calls functions (:mod:`hosim.io.models.functions`) on :class:`Value` s. Each emits its
ops at once. In training it also records how to emit the ops of its gradient; :meth:`Tape.backward`
plays the records in reverse, as autograd does. A model's layers are thus written once, for
inference, training and recomputation. A training step keeps exactly the activations that an op of
the backward pass uses.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, repeat
from math import prod
from typing import TypedDict, Unpack

from hosim.data.graph_parts import part_name
from hosim.edits import BACKWARD, COLLECTIVE_KINDS, RECOMPUTE
from hosim.graph import Graph, GraphBuilder, Op
from hosim.io.models.config import Run, first_and_other
from hosim.io.models.packed import CACHES, PACKINGS
from hosim.io.models.stored_weights import StoredWeights
from hosim.io.models.value import ITEM_BYTES, Value
from hosim.limits import Budget

_WIDTH = {dtype: -rank for rank, dtype in enumerate([*ITEM_BYTES, *PACKINGS])}

__all__ = ["ITEM_BYTES", "Learned", "Note", "Tape", "Value"]

Note = tuple[Value, Callable[[Value], None]]
"""A result, and the function that passes its gradient on."""


Learned = list[tuple[Value, Value]]
"""Parameters with their gradients."""


class TapedWork(TypedDict, total=False):
    """The work and memory of an op, as :class:`hosim.graph.Op` has them.

    ``accessed`` defaults to the bytes that the op reads and writes; mutated tensors count twice.
    ``computes`` is its dtype; the default is that of its first input if it has FLOP, else the
    widest that it uses. The first gradient of the parameter ``gradient_of`` is of kind
    ``gradient``.
    """

    flops: int
    accessed: int | None
    workspace: int
    gradient_of: Value | None
    result_kind: str
    kernel: str
    sizes: tuple[int, ...]
    computes: str


class TapedOp(TapedWork, total=False):
    """The work of an op, its stream, the ops that it waits for (``deps``), its ``message`` with
    other stages, and its measured duration in nanoseconds, if there is one.
    """

    stream: str
    duration_ns: int | None
    deps: Sequence[str]
    message: str


class Tape:
    """The ops of a model while they are written. ``training``: functions note their gradients.

    ``main_gradients``: the gradients of parameters are added to fp32 ones that outlive the step, as
    in Megatron-LM. ``frozen``: only adapters learn. ``micro_batch`` begins the names of ops and
    inputs and so tells micro-batches apart; parameters are shared. ``in_parts``: tensors of which
    ops use parts are cut into these; otherwise all tensors are whole. ``stored``: the weights of a
    file, which give the bytes of tensors. ``last_ops`` has the name of the last op emitted on each
    stream.
    """

    def __init__(
        self,
        name: str,
        *,
        training: bool = False,
        main_gradients: bool = False,
        merged: bool = False,
        in_parts: bool = True,
        frozen: bool = False,
    ) -> None:
        self.builder = GraphBuilder(name)
        self.training = training
        self.merged = merged
        self.stored: StoredWeights | None = None
        self._main_gradients = main_gradients
        self._frozen = frozen
        self.adapted: set[str] = set()
        self._notes: list[Note] | None = [] if training else None
        self._nodes = 0
        self._gradients: dict[int, Value] = {}
        self._arrivals: dict[int, Callable[[Value], None]] = {}
        self._holders: Counter[str] = Counter()  # how many nodes a gradient's tensor stands for
        self._held: dict[str, Value] = {}
        self.parameters: dict[int, Value] = {}
        self.gates: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]] = {}
        self.choices: list[
            tuple[int, tuple[int, ...]]
        ] = []  # how many of its candidates each gate chooses, and the shape of its result
        self.in_parts = (
            in_parts and not training
        )  # gradients are whole, and so are the parameters that learn by them
        self._maker: dict[str, str] = {}
        self._own: set[str] = set()  # gradients made for a parameter
        self._learned: set[str] = set()  # gradients of parameters
        self._taken: set[str] = set()
        self._names = Budget("records")
        self._parts = Budget("model_parts")
        self._scope = self._phase = ""
        self.micro_batch = ""
        self.last_ops: dict[str, str] = {}
        self._processor = self._also_on = ""
        self._narrowed: dict[tuple[str, str, str], Value] = {}
        self._makers_again: dict[str, Callable[[], Value]] = {}
        # results that selective recomputation keeps; None for those that it recomputes
        self._keeps: deque[tuple[Value, ...] | None] | None = None
        self._keeps_next: Iterator[bool] = repeat(True)  # True if the next product's is kept

    def choose(
        self, gate: Value, candidates: Sequence[tuple[Sequence[Value], Sequence[Value]]], count: int
    ) -> None:
        """Record that the op which makes ``gate`` chooses ``count`` of ``candidates``. Each
        candidate has tensors of its own, and the results of its ops.

        If a candidate without ops is not chosen, ops do not read its tensors.
        """
        self.gates[self._maker[gate.tensor]] = [
            (
                tuple([name for v in tensors for name in v.tensors]),
                tuple([self._maker[v.tensor] for v in results]),
            )
            for tensors, results in candidates
        ]
        self.choices.append((min(count, len(candidates)), tuple(gate.shape)))

    # -- tensors
    # ----------------------------------------------------------------------------------------------

    def held(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        kind: str,
        home: str | None = None,
        *,
        group: int = 0,
        computes: str = "",
        parts: Mapping[str, Sequence[int]] | None = None,
        of: str = "",
    ) -> Value:
        """Return a tensor that exists from the start; it is made at first use. ``name`` is within
        the current scope.

        ``parts``: the shapes of the parts that ops use separately. Each part is a tensor of its own
        (docs/contract.md, rule 1), unless it has no elements. ``of``: the tensor that this one is a
        part of.
        """
        full = (
            (self.micro_batch if kind == "input" else "")
            + self._scope
            + (part_name(of, name) if of else name)
        )
        if full not in self._held:
            self.reserve(full)
            value = Value(full, tuple(shape), dtype, group=group, computes=computes)
            value = value if self.stored is None else self.stored.as_stored(value, kind)
            sizes = {
                part: replace(value, shape=tuple(own)).size
                for part, own in (parts or {}).items()
                if prod(own) and self.in_parts
            }
            value = replace(value, parts=tuple(sizes) if len(sizes) > 1 else ())
            for part, size in sizes.items() if value.parts else ():
                self._parts.draw()
                self.reserve(self.builder.tensor(part_name(full, part), size, kind, home, of=full))
            if not value.parts:
                self.builder.tensor(full, value.size, kind, home, of=of and self._scope + of)
            self._held[full] = value
        return self._held[full]

    def parameter(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        kind: str = "parameter",
        home: str | None = None,
        *,
        group: int = 0,
        computes: str = "",
        parts: Mapping[str, Sequence[int]] | None = None,
        adapter: bool = False,
    ) -> Value:
        """Return a parameter of the model. It learns, unless the tape is frozen and it is no
        ``adapter``.
        """
        full = self._scope + name
        if self._frozen and not adapter:
            return self.held(
                name, shape, dtype, kind, home, group=group, computes=computes, parts=parts
            )
        if full not in self._held:
            value = replace(
                self.held(
                    name, shape, dtype, kind, home, group=group, computes=computes, parts=parts
                ),
                node=self._node(),
            )
            self._held[full] = self.parameters[value.node] = value
        return self._held[full]

    def detached(self, value: Value) -> Value:
        """Return the same tensor with a gradient of its own, which is not passed on to the op that
        made it.
        """
        return replace(value, node=self._node())

    def alias(self, value: Value) -> Value:
        """Return the same tensor under a node of its own, for a function without ops in the forward
        pass.
        """
        return replace(value, node=self._node() if value.node and self._notes is not None else 0)

    def _node(self) -> int:
        self._nodes += 1
        return self._nodes

    # -- ops
    # ----------------------------------------------------------------------------------------------

    @contextmanager
    def on(self, processor: str | None) -> Iterator[None]:
        """Run the ops inside on the processor of this tier, on a stream of its name and without
        kernels of the device; ``None`` changes nothing.

        With ``device/TIER`` they run on the device or on the processor of that tier.
        """
        before = self._processor, self._also_on
        if processor is not None:
            self._processor, self._also_on = first_and_other(processor)
        try:
            yield
        finally:
            self._processor, self._also_on = before

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Begin the names inside with ``name`` and a dot; an empty name changes nothing."""
        before = self._scope
        self._scope = f"{before}{name}." if name else before
        try:
            yield
        finally:
            self._scope = before

    def ops(
        self,
        label: str,
        kind: str,
        inputs: Sequence[Value],
        results: Sequence[tuple[tuple[int, ...], str]],
        *,
        mutates: Sequence[Value] = (),
        overwrites: Sequence[Value] = (),
        **more: Unpack[TapedOp],
    ) -> tuple[Value, ...]:
        """Emit one op and return its results, each of (shape, dtype).

        ``overwrites`` are earlier tensors that it writes without reading them.
        """
        if self._phase == BACKWARD and self._makers_again:
            inputs = [self._made_again(v) for v in inputs]
        flops = more.get("flops", 0)
        keeps = self._keeps if flops or kind in COLLECTIVE_KINDS else None
        if keeps is not None and self._phase == RECOMPUTE:
            stands = keeps.popleft()
            if stands is not None:
                node = any([v.node for v in inputs])
                return tuple([replace(v, node=self._node() if node else 0) for v in stands])
            keeps = None
        name = self._unique(label)
        made = self._results(name, inputs, results, more)
        accessed = more.get("accessed")
        if accessed is None:
            accessed = (
                sum([v.size for v in inputs])
                + sum([v.size for v in (*made, *overwrites)])
                + 2 * sum([v.size for v in mutates])
            )
        written = {name for v in mutates for name in v.tensors}
        read = dict.fromkeys(name for v in inputs for name in v.tensors if name not in written)
        involved = inputs[:1] if flops else (*inputs, *mutates, *made)
        stream = self._processor or more.get("stream", "compute")
        duration_ns = more.get("duration_ns")
        self.builder.op(
            name,
            kind,
            inputs=list(read),
            outputs=[name for v in (*made, *overwrites) for name in v.tensors],
            mutates=list(dict.fromkeys(name for v in mutates for name in v.tensors)),
            flops=flops,
            bytes_accessed=accessed,
            dtype=more.get("computes")
            or max([v.dtype for v in involved], key=_WIDTH.__getitem__, default="bf16"),
            workspace_bytes=more.get("workspace", 0),
            stream=stream,
            duration_ns=duration_ns,
            kernel="" if self._processor else more.get("kernel", ""),
            sizes=() if self._processor else more.get("sizes", ()),
            deps=more.get("deps", ()),
            processor=self._processor,
            also_on={self._also_on: duration_ns} if self._also_on else None,
            message=more.get("message", ""),
        )
        self.last_ops[stream] = name
        if keeps is not None:
            keeps.append(tuple(made) if kind != "matmul" or next(self._keeps_next) else None)
        return tuple(made)

    def _results(
        self,
        op: str,
        inputs: Sequence[Value],
        results: Sequence[tuple[tuple[int, ...], str]],
        more: TapedOp,
    ) -> list[Value]:
        """Add the tensors that an op makes, each of (shape, dtype). The first gradient of a
        parameter gets the kind ``gradient``.
        """
        of = more.get("gradient_of")
        learned = of is not None and of.node in self.parameters and of.node not in self._gradients
        kind = "gradient" if learned else more.get("result_kind", "activation")
        has_node = self._notes is not None and any([v.node for v in inputs])
        made = []
        for i, (shape, dtype) in enumerate(results):
            name = op if len(results) == 1 else f"{op}.{i}"
            value = Value(name, shape, dtype, self._node() if has_node else 0)
            self.builder.tensor(value.tensor, value.size, kind)
            self._maker[value.tensor] = op
            if learned:
                self._own.add(value.tensor)
            made.append(value)
        return made

    def op(
        self,
        label: str,
        kind: str,
        inputs: Sequence[Value],
        shape: tuple[int, ...],
        dtype: str | None = None,
        **more: Unpack[TapedWork],
    ) -> Value:
        """Emit one op with one result, which has the first input's dtype unless
        ``dtype`` is given.
        """
        return self.ops(label, kind, inputs, [(shape, dtype or inputs[0].dtype)], **more)[0]

    def narrowed(self, x: Value, dtype: str, label: str = "quantise") -> Value:
        """Return ``x`` in a narrower dtype. It is converted once in each pass; with ``merged``
        kernels, the kernel that makes ``x`` converts it.
        """
        if self.merged:
            return replace(x, dtype=dtype)
        key = self._phase + self.micro_batch, x.tensor, dtype
        if key not in self._narrowed:
            self._narrowed[key] = self.op(label, "elementwise", [x], x.shape, dtype)
        return replace(self._narrowed[key], shape=x.shape)

    def kept(self, emit: Callable[[], tuple[Value, ...]]) -> tuple[Value, ...]:
        """Return the results of what ``emit`` writes. Selective recomputation keeps them like those
        of one op with FLOP, and keeps nothing inside.
        """
        keeps = self._keeps
        if keeps is None:
            return emit()
        if self._phase == RECOMPUTE:
            stands = keeps.popleft()
            assert stands is not None
            return tuple([replace(value, node=self._node()) for value in stands])
        self._keeps = None
        made = emit()
        self._keeps = keeps
        keeps.append(made)
        return made

    def _unique(self, label: str) -> str:
        wanted = name = f"{self._phase}{self.micro_batch}{self._scope}{label}"
        n = 1
        while name in self._taken:
            name = f"{wanted}_{n}"
            n += 1
        self.reserve(name)
        return name

    def reserve(self, name: str) -> None:
        """Reserve a name, so that nothing else gets it. Names are limited to the number of records
        that a file may have.
        """
        self._taken.add(name)
        self._names.draw()

    # -- gradients
    # ----------------------------------------------------------------------------------------------

    def note(self, result: Value, gradient: Callable[[Value], None]) -> Value:
        """Return ``result``. In the backward pass, call ``gradient`` with the result's gradient; it
        passes gradients on by :meth:`give`.
        """
        if self._notes is not None and result.node:
            scope = self._scope

            def scoped(g: Value) -> None:
                self._scope = scope
                gradient(g)

            self._notes.append((result, scoped))
        return result

    def give(self, value: Value, gradient: Value) -> None:
        """Add ``gradient`` to the gradient of ``value``, in place if its tensor has no
        other use.
        """
        if not value.node:
            return
        if value.node in self._arrivals:
            self._arrivals[value.node](gradient)
        before = self._gradients.get(value.node)
        if self._main_gradients and value.node in self.parameters:
            self._gradients[value.node] = main = before or self._main_gradient(value)
            self.ops("accumulate_main", "elementwise", [gradient], [], mutates=[main])
        elif before is None:
            if (
                value.node in self.parameters and gradient.tensor not in self._own
            ):  # its tensor has another use, too
                gradient = self.op("clone", "copy", [gradient], value.shape, gradient_of=value)
            self._gradients[value.node] = gradient
            self._holders[gradient.tensor] += 1
        elif self._holders[before.tensor] == 1:
            self.ops(
                "accumulate",
                "elementwise",
                [gradient],
                [],
                mutates=[before],
                accessed=3 * before.size,
            )
        else:
            total = self.op(
                "accumulate", "elementwise", [before, gradient], before.shape, gradient_of=None
            )
            self._holders[before.tensor] -= 1
            self._holders[total.tensor] += 1
            self._gradients[value.node] = total
        if value.node in self.parameters:
            self._learned.add(self._gradients[value.node].tensor)

    def on_gradient(self, value: Value, act: Callable[[Value], None]) -> None:
        """Call ``act`` with each gradient of ``value`` that :meth:`give` gets, before it is added
        to others.
        """
        if self._notes is not None or self._phase:
            self._arrivals[value.node] = act

    def _main_gradient(self, parameter: Value) -> Value:
        main = Value(f"{parameter.tensor}.main_grad", parameter.shape, "fp32")
        self.builder.tensor(main.tensor, main.size, "gradient", persistent=True)
        return main

    def take(self, value: Value) -> Value | None:
        """Return the gradient of ``value``, and forget it."""
        gradient = self._gradients.pop(value.node, None)
        if gradient is not None:
            self._holders[gradient.tensor] -= 1
        return gradient

    def recorded(self) -> list[Note]:
        """Return the notes so far, and forget them. With several micro-batches, they are those of
        one forward pass.
        """
        notes, self._notes = self._notes or [], []
        return notes

    def backward(self, result: Value, gradient: Value, notes: list[Note] | None = None) -> None:
        """Emit the ops that carry ``gradient``, the gradient of ``result``, to the parameters, by
        ``notes`` (default: all that were recorded).
        """
        notes, self._notes = self.recorded() if notes is None else notes, None
        before = self._scope, self._phase
        self._phase = BACKWARD
        self._play(result, gradient, notes)
        self._scope, self._phase = before
        self._notes = []

    def _play(self, result: Value, gradient: Value, notes: list[Note]) -> None:
        self.give(result, gradient)
        for value, passes_on in reversed(notes):
            if (arrived := self.take(value)) is not None:
                passes_on(arrived)

    def checkpointed(
        self, function: Callable[..., Value], *inputs: Value, run: Run | None = None
    ) -> Value:
        """Return ``function(*inputs)``, of which only the inputs are kept; the backward pass
        recomputes the rest (torch's activation checkpointing).

        ``run.kept_dtype``: the inputs are packed meanwhile, and unpacked when they are read again.
        ``run.selective``: the results of ops with FLOP and of collectives are kept, too, and only
        the other ops are recomputed. ``run.every_other_product``: of products, only the results of
        the first, the third and so on are kept.
        """
        if self._notes is None:
            return function(*inputs)
        kept: deque[tuple[Value, ...] | None] | None = (
            deque() if run is not None and run.selective else None
        )
        notes, self._notes, self._keeps = self._notes, None if kept is None else [], kept
        # an op keeps what it keeps in training, such as the statistics of a softmax
        self._keeps_next = cycle((True, run is None or not run.every_other_product))
        result = self.detached(
            function(*[replace(x, node=0) if kept is None else self.detached(x) for x in inputs])
        )
        self._notes, self._keeps = notes, None
        dtype = CACHES[run.kept_dtype] if run is not None and run.kept_dtype is not None else None
        packed = [
            x
            if dtype is None
            else self.op("pack_kept", "copy", [replace(x, node=0)], x.shape, dtype)
            for x in inputs
        ]

        def gradient(g: Value) -> None:
            self._notes, self._phase = [], RECOMPUTE
            pairs = zip(packed, inputs, strict=True)
            starts = [
                x
                if p is x
                else replace(self.op("unpack_kept", "copy", [p], x.shape, x.dtype), node=x.node)
                for p, x in pairs
            ]
            self._keeps = kept
            again = function(*starts)
            self._keeps = None
            notes, self._notes, self._phase = self._notes, None, BACKWARD
            self._play(again, g, notes)

        return self.note(result, gradient)

    def dropped(self, value: Value, make: Callable[[], Value]) -> None:
        """Do not keep ``value`` for the backward pass: before the first op there that reads it,
        ``make`` emits it again.
        """
        if self._notes is not None:
            self._makers_again[value.tensor] = make

    def _made_again(self, value: Value) -> Value:
        if value.tensor not in self._makers_again:
            return value
        again = self._makers_again[value.tensor]()
        self._makers_again[value.tensor] = lambda: again
        return replace(value, tensor=again.tensor)

    def learned(self) -> Learned:
        """Return parameters with their gradients, in the order of the parameters' first use."""
        return [
            (value, self._gradients[node])
            for node, value in self.parameters.items()
            if node in self._gradients
        ]

    def taken(self) -> Learned:
        """Return :meth:`learned`, and forget these gradients: later ones are not added to them."""
        learned = self.learned()
        for value, _ in learned:
            self.take(value)
        return learned

    def build(self) -> Graph:
        """Return the graph, without unused recomputed ops, because torch stops recomputing at the
        last kept tensor, and without gradients that only frozen parameters need.
        """
        graph = without_idle(self.builder.build(), RECOMPUTE)
        return without_idle(graph, BACKWARD, self._learned) if self._frozen else graph


def without_idle(graph: Graph, prefix: str, wanted: Collection[str] = ()) -> Graph:
    """Return the graph without idle ops whose names begin with ``prefix``: no op uses their results
    or waits for them. Ops without results stay. ``wanted`` are tensors that are used later.
    """
    if not any([name.startswith(prefix) for name in graph.op_index]):
        return graph
    needed, awaited = bytearray(len(graph.tensors)), bytearray(len(graph.ops))
    for name in wanted:
        needed[graph.tensor_index[name]] = 1
    keep = []
    for i in reversed(range(len(graph.ops))):
        op = graph.ops[i]
        if (
            op.name.startswith(prefix)
            and op.writes
            and not awaited[i]
            and not any([needed[t] for t in op.writes])
        ):
            continue
        keep.append(i)
        for t in op.reads:
            needed[t] = 1
        for d in op.deps:
            awaited[d] = 1
    if len(keep) == len(graph.ops):
        return graph
    number = {i: n for n, i in enumerate(reversed(keep))}
    used = sorted(
        {t for i in keep for t in graph.ops[i].uses}
        | {t for t, tensor in enumerate(graph.tensors) if tensor.persistent}
    )
    place = {t: i for i, t in enumerate(used)}

    def moved(op: Op) -> Op:
        inputs, outputs, mutates = [
            tuple([place[t] for t in part]) for part in (op.inputs, op.outputs, op.mutates)
        ]
        deps = tuple([number[d] for d in op.deps])
        return replace(op, inputs=inputs, outputs=outputs, mutates=mutates, deps=deps)

    return Graph(
        graph.name,
        tuple([graph.tensors[t] for t in used]),
        tuple([moved(graph.ops[i]) for i in number]),
        graph.meta,
    )
