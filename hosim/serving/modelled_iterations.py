"""Times of iterations from the cost model: everything but attention by the tokens of the iteration,
attention by its own shape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import exp
from typing import Any

from hosim.analysis import static_peak
from hosim.analysis.costmodel import guessed_collectives, machine_under, op_durations
from hosim.analysis.costmodel.kernels import CLASSES
from hosim.analysis.costmodel.kernels.op_families import expected_loads, share_touched
from hosim.analysis.costmodel.spreads import DrawnTimes, has_draws, normal_draws
from hosim.data.draws import FEW_DRAWS
from hosim.data.runtime import RUNTIME, RuntimeFigure, from_data
from hosim.errors import GraphError, InputError
from hosim.graph import Graph, Op
from hosim.hardware import Hardware
from hosim.io.importers import name_of
from hosim.io.models import RoutingDraw, Run, build
from hosim.notes import Note, notes
from hosim.serving.block_gate import BlockGate, gate_of, is_gate
from hosim.serving.blocks import AttendedTokens
from hosim.serving.scheduler import Iteration

WEIGHTS = frozenset({"parameter", "expert", "buffer"})
_PROMPTS = {"context_attention": "generation_attention", "context_latent": "latent_attention"}
"""Classes of attention over prompts, and those of one query over a cache."""
ATTENTION = {*_PROMPTS, *_PROMPTS.values()}
_EXPERTS = {"moe", "expert_product"}
"""Classes of products of experts, whose first size is the tokens of all devices."""
_ROUTING = "routing"
_BLOCKS = ("kv_block", "sink_blocks", "window_blocks", "chosen_blocks")
"""Parameters of attention that reads few blocks."""
_PROMPT = 16
"""Tokens of a prompt that shows which kernels there are."""
_KEYS = 1024
"""Keys of a sequence whose attention stands for all of its class in a draw."""
_CALLS = "", "host"
"""The place of what calls of the host are multiplied by."""


@dataclass(frozen=True, eq=False)
class ModelledIterations:
    """Iterations of a model on a machine. It is called with an iteration; ``overhead_ns`` is what
    the host adds to each. ``connected`` says that a connector keeps the cache below the device, too,
    or sends it to other engines: the runtime says how much longer each iteration then takes.

    ``model`` are the parameters of a builder (:func:`hosim.io.models.builder.build`), without phase,
    batch and lengths. What depends on tokens alone is built for some counts of tokens, and linear
    between them; decoding sequences have the mean of their keys. With ``expert`` the ``tensor``
    devices share the experts by whole ones, and an iteration waits for the busiest of them; all
    have its tokens, as with vLLM's expert parallelism among them. Some experts are more popular
    than others, as in a trace that a builder draws; ``routing`` of the model says how much
    (``zipf``; ``None``: all are alike). Raises :class:`InputError` for a model whose attention has
    no class of kernels, or that is no decoder, and for stages of a pipeline.
    """

    model: Mapping[str, Any]
    hardware: Hardware
    overhead_ns: int = 0
    connected: bool = False
    _connector_ns: int = field(default=0, init=False, repr=False)
    _dense: dict[int, int] = field(default_factory=dict, repr=False)
    _between: dict[int, int] = field(default_factory=dict, repr=False)
    _drawn: dict[int, list[int]] = field(default_factory=dict, repr=False)
    _times: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict, repr=False)
    _factors: dict[tuple[str, str], list[float]] = field(default_factory=dict, repr=False)
    _draw: int | None = None

    def __post_init__(self) -> None:
        name = self.name
        tensor, expert, pipeline = (
            self.model.get(part, 1) for part in ("tensor", "expert", "pipeline")
        )
        if pipeline != 1:
            raise InputError(
                "hosim does not serve on stages of a pipeline: leave it out",
                source=name,
                where="pipeline",
            )
        if expert not in (1, tensor):
            raise InputError(
                "hosim serves experts on the devices that share layers alone: expected 1, or "
                f"what tensor is ({tensor}), got {expert!r}",
                source=name,
                where="expert",
            )
        try:
            known = bool(self._attention)
        except InputError as error:
            if error.where not in (
                "phase",
                "sequence",
            ):  # other models have no such parameter, or no such phase
                raise
            known = False
        if not known:
            raise InputError(
                "expected a decoder, which continues a prompt; hosim cannot serve this model",
                source=name,
            )
        if self.model.get(_ROUTING) and not any(
            [op.kernel in _EXPERTS for op in self.graph(_PROMPT).ops]
        ):
            raise InputError("the model has no experts", source=name, where=_ROUTING)
        machine = self.hardware
        if RUNTIME in self.model:
            machine = machine_under(machine, from_data(self.model[RUNTIME]))
        object.__setattr__(self, "hardware", replace(machine, devices=self.devices))
        if self.connected and self.hardware.software is not None:
            object.__setattr__(self, "_connector_ns", round(self.hardware.software.connector.value))

    @property
    def name(self) -> str:
        """The name of the model."""
        return name_of({"model": self.model.get("model")})

    def check_processor(self) -> None:
        """Raise :class:`InputError` for a machine on which attention has no time."""
        if self.hardware.compute.processor is None:
            raise InputError(
                "the profile does not describe the processor (compute.processor), by which "
                "attention is timed; "
                "take another machine, or give recorded kernel times (--iterations)",
                source=self.hardware.name,
            )

    def check_lengths(self, budget: int, longest: int) -> None:
        """Raise :class:`InputError` if the model has no positions for requests of ``longest``
        tokens, or cannot be built for a budget.
        """
        for source, tokens, what, build_it in (
            ("token_budget", budget, "iterations", self.graph),
            ("requests", longest, "a request", self._prompt),
        ):
            try:
                build_it(tokens)
            except InputError as error:
                raise InputError(
                    f"cannot build {what} of {tokens:,} tokens: {error.message}", source=source
                ) from None
            except GraphError as error:  # more FLOP than there are whole numbers for
                raise InputError(
                    f"cannot build {what} of {tokens:,} tokens: {error}", source=source
                ) from None

    @property
    def beside_ns(self) -> int:
        """Nanoseconds of each iteration beside its kernels: of the host, and of a connector."""
        return self.overhead_ns + self._connector_ns

    def __call__(self, iteration: Iteration) -> int:
        """Nanoseconds of an iteration."""
        kernels, runtime = (
            self.head_ns(iteration) + self.attention_ns(iteration),
            self.hardware.software,
        )
        if runtime is None:
            return self.dense_ns(iteration.tokens) + kernels + self.overhead_ns
        tokens, sizes = iteration.tokens, runtime.graph_sizes
        if sizes and tokens <= sizes[-1]:
            tokens = sizes[bisect_left(sizes, tokens)]
        kernels = round(kernels / runtime.speed.value)  # as the times of ops already are
        issued = 0
        if runtime.host.value:
            issued = self._call_ns(runtime.host.value) * len(self.graph(iteration.tokens).ops)
        return max(self.dense_ns(tokens) + kernels, issued) + self.beside_ns

    def in_draw(self, draw: int) -> ModelledIterations:
        """These iterations in a draw of what is uncertain in the times of kernels and of the host.

        All attention of a class has one error there, and so has the head.
        """
        found = copy(self)
        object.__setattr__(found, "_draw", draw)
        object.__setattr__(found, "_between", {})
        if self._connector_ns:
            object.__setattr__(found, "_connector_ns", self.figure_ns("connector", draw))
        return found

    def figure_ns(self, name: str, draw: int) -> int:
        """Nanoseconds that the runtime's figure of this name has in a draw; 0 without a runtime."""
        if self.hardware.software is None:
            return 0
        figure: RuntimeFigure = getattr(self.hardware.software, name)
        off = normal_draws(f"runtime {self.hardware.software.name}, {name}")[draw]
        return round(figure.value * exp(figure.spread * float(off)))

    @property
    def layers(self) -> int:
        """Layers with attention."""
        return len(self._attention)

    @property
    def devices(self) -> int:
        """Devices that run an iteration together."""
        return int(self.model.get("tensor", 1))

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of what stays on the device: parameters, experts and constants."""
        return sum(tensor.size_bytes for tensor in self.graph(1).tensors if tensor.kind in WEIGHTS)

    @cached_property
    def attended(self) -> AttendedTokens | None:
        """Return the tokens that a step reads of a long cache; ``None``: all of it."""
        if self.model.get("kv_block") is None:
            return None
        block, sinks, window, chosen = (
            self.model.get(name, getattr(Run(), name)) for name in _BLOCKS
        )
        return AttendedTokens(block * sinks, block * window, block * chosen)

    @cached_property
    def gate(self) -> BlockGate | None:
        """Return the gate that chooses the blocks; ``None`` if all are read."""
        return None if self.attended is None else gate_of(self._parameters)

    @property
    def summary_bytes_per_token(self) -> Fraction:
        """Return the bytes that a token has, beside the cache, of the summaries by which attention
        chooses blocks; the device holds all of them.
        """
        return (
            Fraction(0)
            if self.gate is None
            else Fraction(self.gate.block_bytes * self.gate.layers, self.gate.block_tokens)
        )

    @cached_property
    def _cache(self) -> Mapping[str, int]:
        """Bytes of the cache of 1,024 tokens, by layer and half."""
        whole = {name: value for name, value in self._parameters.items() if name not in _BLOCKS}
        graph = build("cache", {**whole, "phase": "decode", "context": 1024})
        found: Counter[str] = Counter()
        for tensor in graph.tensors:
            if tensor.kind == "kv_cache":
                found[tensor.of or tensor.name] += tensor.size_bytes
        return found

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes that a token has in the cache of keys and values."""
        return sum(self._cache.values()) // 1024

    def machine_of_blocks(self, tokens: int) -> Hardware:
        """The machine on which blocks of so many tokens move in copies, if its runtime moves a
        cache so (``cache_copy``): one of a block's keys in a layer, one of its values.
        """
        runtime = self.hardware.software
        if runtime is None or not runtime.cache_copy.value:
            return self.hardware
        size = max(self._cache.values()) * tokens // 1024
        copied = replace(runtime.cache_copy, value=float(max(1, size)))
        return replace(self.hardware, software=replace(runtime, cache_copy=copied))

    @property
    def logit_bytes(self) -> int:
        """Bytes of the logits of one sequence in fp32, of the device's part of the vocabulary."""
        return 4 * sum([head.sizes[1] for head in self._heads])

    @property
    def mxfp4_experts(self) -> tuple[int, int, int] | None:
        """Bytes of the experts of a device that are packed in mxfp4, and an expert's sizes there;
        ``None`` without such.
        """
        graph = self.graph(1)
        found = next((op.sizes for op in graph.ops if op.kernel == "moe"), None)
        if self.model.get("weights") != "mxfp4" or found is None:
            return None
        size = sum(tensor.size_bytes for tensor in graph.tensors if tensor.kind == "expert")
        return size, found[1], found[2] // max(1, found[5])

    def working_bytes(self, tokens: int) -> int:
        """Bytes that an iteration of so many new tokens takes beside weights and cache."""
        graph = self.graph(tokens)
        return max(
            0, static_peak(graph).bytes - self.weight_bytes - tokens * self.cache_bytes_per_token
        )

    def collective_bytes(self, tokens: int) -> int:
        """Bytes that an iteration of so many new tokens gives to streams of collectives in all."""
        graph = self.graph(tokens)
        used = {t for op in graph.ops if op.stream != graph.main_stream for t in op.uses}
        return sum([graph.tensors[t].size_bytes for t in used])

    def dense_ns(self, tokens: int) -> int:
        """Everything but attention and head, between the counts of tokens around ``tokens``."""
        if tokens not in self._between:
            self._between[tokens] = self._dense_between(tokens)
        return self._between[tokens]

    def _dense_between(self, tokens: int) -> int:
        high = bisect_left(COUNTS, tokens)
        if (high < len(COUNTS) and COUNTS[high] == tokens) or not high:
            return self._at(tokens)
        low, up = COUNTS[high - 1], COUNTS[high] if high < len(COUNTS) else 2 * COUNTS[-1]
        first, last = self._at(low), self._at(up)
        return first + (last - first) * (tokens - low) // (up - low)

    @cached_property
    def guessed_collectives(self) -> int:
        """Return the number of collectives of an iteration that are timed as if links were as fast
        as the device tier, as nothing says how fast they are.
        """
        return len(guessed_collectives(self.graph(_PROMPT), self.hardware))

    @property
    def notes(self) -> tuple[Note, ...]:
        """Return the notes for readers of the figures on the model and its times on the machine."""
        return notes(self.graph(_PROMPT), self.hardware)

    def _at(self, tokens: int) -> int:
        if self._draw is None:
            if tokens not in self._dense:
                graph = self.graph(tokens)
                times = op_durations(graph, self.hardware)
                self._dense[tokens] = sum([times[i] for i in _dense_ops(graph)])
            return self._dense[tokens]
        if tokens not in self._drawn:
            graph = self.graph(tokens)
            drawn = DrawnTimes(graph, self.hardware).durations(
                op_durations(graph, self.hardware), FEW_DRAWS
            )
            self._drawn[tokens] = drawn[:, _dense_ops(graph)].sum(axis=1).tolist()
        return self._drawn[tokens][self._draw]

    @cached_property
    def is_drawn(self) -> bool:
        """Return whether something of an iteration's times is drawn."""
        return has_draws(self.graph(_PROMPT), self.hardware)

    def _in_draw(self, ns: int, place: tuple[str, str], op: Callable[[], Op]) -> int:
        """The time of a kernel in the draw, which errs as this one of its class and dtype does."""
        if self._draw is None:
            return ns
        if place not in self._factors:
            times = DrawnTimes(Graph("kernel", (), (op(),)), self.hardware)
            self._factors[place] = times.kernels(FEW_DRAWS)[0].tolist()
        return round(ns * self._factors[place][self._draw])

    def _call_ns(self, ns: float) -> int:
        """The time of a call of the host in the draw."""
        if self._draw is None:
            return round(ns)
        if _CALLS not in self._factors:
            times = DrawnTimes(self.graph(_PROMPT), self.hardware)
            self._factors[_CALLS] = times.calls(FEW_DRAWS).tolist()
        return round(ns * self._factors[_CALLS][self._draw])

    def head_ns(self, iteration: Iteration) -> int:
        """The head, which makes the logits of each sequence."""
        return sum(
            self._ns(head.kernel, (iteration.sequences, *head.sizes[1:]), 0, head.dtype)
            for head in self._heads
        )

    def attention_ns(self, iteration: Iteration) -> int:
        """Attention of all layers."""
        total = 0
        for (kernel, rest, dtype), layers in self._layers.items():
            window = 1 << 60 if self.attended is None else self.attended.total
            if kernel == "context_attention":
                window = rest[-1]
            for new, before in iteration.prefills:
                read = self._token_bytes * (new + min(before, window))
                found = self._ns(kernel, (1, new, _rounded(before), *rest), read, dtype)
                if (
                    kernel == "context_latent" and window < before
                ):  # or each query reads latents of its own
                    found = min(
                        found,
                        self._ns(
                            _PROMPTS[kernel],
                            (new, window, *rest),
                            new * window * self._token_bytes,
                            dtype,
                        ),
                    )
                total += layers * found
            if iteration.decodes:
                keys = min(_rounded(-(-iteration.decode_keys // iteration.decodes)), window)
                sizes = (
                    iteration.decodes,
                    keys,
                    *(rest[:-1] if kernel == "context_attention" else rest),
                )
                total += layers * self._ns(
                    _PROMPTS[kernel], sizes, iteration.decodes * keys * self._token_bytes, dtype
                )
        if self.gate is not None:
            total += sum(self._gate_ns(new, 1, new + before) for new, before in iteration.prefills)
            if iteration.decodes:
                total += self._gate_ns(
                    iteration.decodes,
                    iteration.decodes,
                    -(-iteration.decode_keys // iteration.decodes),
                )
        return total

    def _gate_ns(self, queries: int, sequences: int, keys: int) -> int:
        """Return the time in all layers to choose blocks for queries of sequences that have so many
        keys each.
        """
        assert self.gate is not None
        older = -(-_rounded(keys) // self.gate.block_tokens) - self.gate.always_blocks
        if older <= 0:
            return 0
        place, gate = ("select", (queries, sequences, older)), self.gate
        if place not in self._times:
            op = Op(
                "select",
                "sort",
                dtype=gate.dtype,
                flops=queries * older * gate.flops,
                bytes_accessed=queries * gate.query_bytes + sequences * older * gate.block_bytes,
            )
            (found,) = op_durations(Graph("select", (), (op,)), self.hardware)
            self._times[place] = found * gate.layers
        return self._in_draw(
            self._times[place],
            ("select", gate.dtype),
            lambda: Op("select", "sort", dtype=gate.dtype, flops=1),
        )

    def _ns(self, kernel: str, sizes: tuple[int, ...], read: int, dtype: str) -> int:
        """A kernel that reads ``read`` bytes of the cache, without launches; no kernel is faster
        than the memory.
        """
        found = self._times.get((kernel, sizes))
        if found is None:
            op = Op(
                "kernel", "attention", dtype=dtype, kernel=kernel, sizes=sizes, bytes_accessed=read
            )
            (found,) = op_durations(Graph("kernel", (), (op,)), self.hardware)
            self._times[kernel, sizes] = found
        return self._in_draw(
            found,
            (kernel, dtype),
            lambda: Op(
                "kernel", "attention", dtype=dtype, kernel=kernel, sizes=_usual(kernel, sizes)
            ),
        )

    @cached_property
    def _layers(self) -> Counter[tuple[str, tuple[int, ...], str]]:
        """Return the number of layers that have an attention: its kernel, its sizes but those of
        the requests, and its dtype.
        """
        return Counter((op.kernel, op.sizes[3:], op.dtype) for op in self._attention)

    @cached_property
    def _token_bytes(self) -> int:
        """Bytes that a token has in the cache of one layer."""
        return self.cache_bytes_per_token // len(self._attention)

    @cached_property
    def _attention(self) -> tuple[Op, ...]:
        return tuple(op for op in self.graph(_PROMPT).ops if op.kernel in _PROMPTS)

    @cached_property
    def _heads(self) -> tuple[Op, ...]:
        return tuple(op for op in self.graph(_PROMPT).ops if is_head(op))

    @cached_property
    def _parameters(self) -> dict[str, Any]:
        """Kernels are those of inference engines, where hosim knows them for the model."""
        plain = {"fused": True, **self.model, _ROUTING: None, "expert": 1}
        if "expert" not in self.model:
            del plain["expert"]
        try:
            build("iteration", {"merged": True, **plain, "phase": "prefill", "sequence": 1})
        except InputError as error:
            if error.where != "merged":
                raise
            return plain
        return {"merged": True, **plain}

    def graph(self, tokens: int) -> Graph:
        """An iteration of so many tokens: of one prompt, or of several equal ones if the model has
        fewer positions.
        """
        prompts = 1
        while True:
            try:
                return self._prompt(-(-tokens // prompts), prompts)
            except InputError as error:
                if error.where != "sequence" or prompts >= tokens:
                    raise
                prompts *= 2

    def _prompt(self, tokens: int, prompts: int = 1) -> Graph:
        graph = build(
            "iteration",
            {**self._parameters, "phase": "prefill", "sequence": tokens, "batch": prompts},
        )
        if not any([op.kernel in _EXPERTS for op in graph.ops]):
            return graph
        ops = [self._of_experts(graph, op) if op.kernel in _EXPERTS else op for op in graph.ops]
        meta = {**graph.meta, "routing_distribution": self._distribution}
        return Graph(graph.name, graph.tensors, ops, meta)

    def _of_experts(self, graph: Graph, op: Op) -> Op:
        """Popular experts are read, where a builder counts the bytes of experts chosen evenly."""
        asked = dict(zip(CLASSES[op.kernel].sizes, op.sizes, strict=True))
        tokens, top, experts = (asked[name] for name in ("tokens", "top", "experts"))
        popular = expected_loads(tokens, top, experts, 1, self._distribution).touched / experts
        fewer = share_touched(tokens, top, experts) - popular
        whole = sum(
            [graph.tensors[i].size_bytes for i in op.inputs if graph.tensors[i].kind in WEIGHTS]
        )
        return replace(
            op,
            sizes=(op.sizes[0], *self._whole_experts.get(op.name, op.sizes[1:])),
            bytes_accessed=op.bytes_accessed - round(whole * fewer),
        )

    @cached_property
    def _distribution(self) -> str:
        """The cost model's name for the way in which tokens choose experts."""
        routing = self.model.get(_ROUTING, {})
        if routing is None:
            return "uniform"
        if not isinstance(routing, Mapping) or set(routing) - {"zipf"}:
            raise InputError(
                "expected zipf alone, or null: all experts are chosen alike. Serving draws no trace",
                source=self.name,
                where=_ROUTING,
            )
        zipf = routing.get("zipf", RoutingDraw().zipf)
        if type(zipf) not in (int, float) or not 0 <= zipf < 100:
            raise InputError(
                f"expected a number from 0 to below 100, got {zipf!r}",
                source=self.name,
                where=f"{_ROUTING}.zipf",
            )
        return f"zipf_{zipf:f}"

    @cached_property
    def _whole_experts(self) -> dict[str, tuple[int, ...]]:
        """Of the ops of experts that devices share by whole ones, the sizes but the tokens. Flop
        and bytes are those of parts of each.
        """
        if self.model.get("expert", 1) == 1:
            return {}
        shared = build(
            "experts",
            {**self._parameters, "expert": self.model["expert"], "phase": "prefill", "sequence": 1},
        )
        return {op.name: op.sizes[1:] for op in shared.ops if op.kernel in _EXPERTS}


COUNTS = (
    1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384,
)  # fmt: skip


def _rounded(tokens: int) -> int:
    """A count of tokens to its first seven bits, so that kernels of nearly equal shapes are timed
    once.
    """
    step = 1 << max(0, tokens.bit_length() - 7)
    return -(-tokens // step) * step


def _dense_ops(graph: Graph) -> list[int]:
    """The positions of all ops but those of attention, head and gate."""
    return [
        i
        for i, op in enumerate(graph.ops)
        if op.kernel not in ATTENTION and not is_head(op) and not is_gate(op)
    ]


def _usual(kernel: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of a kernel for one sequence, by which all of its class err."""
    if kernel in _PROMPTS:
        return (1, _PROMPT, 0, *sizes[3:])
    return (1, _KEYS, *sizes[2:]) if kernel in ATTENTION else (1, *sizes[1:])


def is_head(op: Op) -> bool:
    """Return whether it makes logits, of which each sequence needs one row."""
    return op.name.endswith("lm_head") and op.kernel == "gemm"
