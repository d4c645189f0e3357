"""Build a workload from the name of a model and parameters, as in the ``builder`` of a spec
(:mod:`hosim.io.spec_file`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from typing import Any, TypeVar, get_args, get_type_hints

from hosim.analysis.costmodel.kernels.op_families import FLASH
from hosim.data.expert_routing import Gate, gates_of, realise, with_draw_spread
from hosim.data.runtime import RUNTIME, Runtime, as_data, from_data
from hosim.devices_of_graph import DEVICES, LAYERS
from hosim.edits import REPEATABLE
from hosim.errors import InputError, UnitError
from hosim.graph import Graph
from hosim.io.models.attention import MODES
from hosim.io.models.collectives import (
    arrived,
    of_own_tokens,
    summed_at_both_ends,
    summed_over_tokens,
)
from hosim.io.models.config import Gpt2, Layered, RoutingDraw, Run, layers_of_all
from hosim.io.models.config_keys import QUANTISED, Keys
from hosim.io.models.data_parallel import shared_step
from hosim.io.models.families import FAMILIES, Family
from hosim.io.models.functions import LOSSES
from hosim.io.models.mixers import MIXERS
from hosim.io.models.names import NAMES
from hosim.io.models.optimizer import UPDATES, adamw, has_master, moments_by_parts, update_by_parts
from hosim.io.models.packed import (
    ACTIVATIONS,
    CACHES,
    PACKED,
    SEPARATE,
    WEIGHTS,
    covers,
    kept_modules,
    packing_of,
)
from hosim.io.models.pipeline_schedule import SCHEDULES, bubble, passes
from hosim.io.models.presets import PRESETS, left_out_of
from hosim.io.models.processors_of_run import at_home
from hosim.io.models.routing_draw import Chosen, draw_spread, generate
from hosim.io.models.run_checks import check_given, check_sizes, positions_of
from hosim.io.models.stored_weights import StoredWeights, stored_weights
from hosim.io.models.tape import Learned, Note, Tape, Value
from hosim.io.models.weight_bytes import INDEX, WEIGHTS_OF_MODELS, other_bytes
from hosim.notes import ASSUMED, LEFT_OUT
from hosim.plain_text import shown
from hosim.units import parse_rate

# -- step
# --------------------------------------------------------------------------------------------------
# One step of a model: its forward pass, or in training the passes of every micro-batch and the
# optimizer.

Config = TypeVar("Config")


def _check_adapted(t: Tape, run: Run) -> None:
    """Raise :class:`InputError` for names of adapters that no projection has. A pipeline stage may
    lack projections that other stages have.
    """
    asked = {*run.lora_modules.split("/")} if run.lora_modules is not None else t.adapted
    unknown = sorted(asked - t.adapted)
    if unknown and (run.pipeline == 1 or not t.adapted):
        raise InputError(f"no projection is called {shown(unknown[0])}", where="lora_modules")


def step(
    name: str,
    forward: Callable[[Tape, Config, Run], Value],
    config: Config,
    run: Run,
    meta: Mapping[str, Any],
    *,
    in_parts: bool = True,
    stored: StoredWeights | None = None,
) -> tuple[Graph, tuple[Gate, ...], tuple[Chosen, ...]]:
    """Return the graph of ``forward`` on a new tape, in training with its backward pass and the
    optimizer; its gates; and the number of candidates that each gate chooses.

    ``in_parts`` and ``stored`` are those of :class:`Tape`.
    """
    main = run.main_gradients and run.zero < 2
    t = Tape(
        name,
        training=run.training,
        main_gradients=main,
        merged=run.merged,
        in_parts=in_parts,
        frozen=run.lora_rank is not None,
    )
    t.stored = stored
    t.builder.meta = dict(meta)
    if not run.training:
        forward(t, config, run)
        graph = t.build()
        return graph, gates_of(graph, t.gates), _chosen(t, run)
    apart = _passes(t, forward, config, run)
    _check_adapted(t, run)
    summed_at_both_ends(t, config, run)
    gradients = apart or [t.learned()]
    own = [g for learned in gradients for g in of_own_tokens(config, run, learned)]
    if run.zero < 2:
        summed_over_tokens(t, run, "all_reduce_norms", own)
    if run.replicas > 1:
        shared = replace(run, data=run.replicas)
        return shared_step(t.build(), list(t.parameters.values()), gradients, own, shared), (), ()
    if run.optimizer == "adamw" and run.foreach:
        update_by_parts(t, moments_by_parts(t, run, t.learned(), has_master(run)))
    elif run.optimizer == "adamw":
        adamw(t, run, t.learned(), master=has_master(run))
    graph = t.build()
    return graph, gates_of(graph, t.gates), _chosen(t, run)


def _chosen(t: Tape, run: Run) -> tuple[Chosen, ...]:
    """Return the choices of each gate. Experts are chosen by each token if all of them are on one
    device; blocks are chosen by all tokens together.
    """
    found = []
    for count, shape in t.choices:
        by_token = run.expert == 1 and len(shape) == 2 and shape[1] <= count
        found.append(Chosen(count, *(shape if by_token else (1, count))))
    return tuple(found)


def _passes(
    t: Tape, forward: Callable[[Tape, Config, Run], Value], config: Config, run: Run
) -> list[Learned]:
    """Emit the forward and backward passes of the device's micro-batches, in the order of the
    schedule.

    Gradients add up on the tape. If devices reduce the gradients of each micro-batch, these are
    returned instead.
    """
    count = run.micro_batches_of_step
    apart: list[Learned] = []
    kept: dict[tuple[int, int], tuple[Value, list[Note]]] = {}
    for each in passes(run.schedule, run.pipeline, run.stage, count, run.chunks):
        t.micro_batch = f"micro{each.micro_batch}." if count > 1 else ""
        place = each.micro_batch, each.chunk
        if each.backward:
            result, notes = kept.pop(place)
            if result.shape:  # not the last stage: the gradient of what it sent comes back
                behind = each.chunk * run.pipeline + run.stage + 1
                start = arrived(t, run, result.shape, "recv_grad", f"gradient.{behind}")
            else:
                start = t.ops("loss.grad", "fill", [], [((), result.dtype)])[0]
            t.backward(result, start, notes)
            if run.zero >= 2 and run.sync_each_batch:
                apart.append(t.taken())
        else:
            part = replace(
                run, pipeline=run.pipeline * run.chunks, stage=each.chunk * run.pipeline + run.stage
            )
            kept[place] = forward(t, config, part), t.recorded()
    t.micro_batch = ""
    return apart


Data = TypeVar("Data")

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "phase": ("train", "forward", "prefill", "decode"),
    "dtype": ("bf16", "fp16", "fp32"),
    "attention": MODES,
    "attention_kernel": tuple(FLASH),
    "logits": ("last", "all"),
    "loss": LOSSES,
    "optimizer": ("adamw", "none"),
    "states_dtype": ("bf16", "int8"),
    "norm": ("rms", "layer", "layer_without_bias", "layer_without_weight", "rms_without_weight"),
    "qk_norm_over": ("head", "each", "all", "plain"),
    "positions": ("rotary", "learned", "alibi", "none"),
    "mixer": ("attention", "attention+mamba2", "none", *MIXERS),
    "attention_gate": ("", "queries", "own", "heads"),
    "router": ("", "softmax", "sigmoid"),
    "router_correction": ("", "none", "buffer", "parameter"),
    "hidden_act": ("silu", "gelu", "gelu_new", "relu", "relu2", "xielu"),
    "names": tuple(NAMES),
    "weights": WEIGHTS,
    "packed": PACKED,
    "activations": tuple(ACTIVATIONS),
    "products": ("fp8",),
    "cache_dtype": tuple(CACHES),
    "kept_dtype": tuple(CACHES),
    "schedule": SCHEDULES,
    "update": UPDATES,
}
_PACKING = frozenset(("weights", "group", "packed", "activations"))
_OF_TRAINING = frozenset(
    (
        "attention_kernel",
        "loss",
        "states_dtype",
        "foreach",
        "optimizer",
        "main_gradients",
        "lora_rank",
        "lora_modules",
        "checkpoint",
        "zero",
    )
)
"""Parameters of a training step that a runtime may set and that an inference does not use."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_CANDIDATES = {"expert": "experts", "kv_cache": "blocks of the cache"}
_SHARES = ("dropout", "embedding_dropout", "attention_dropout", "optimizer_share")
_FROM_ZERO = (
    "sliding_window",
    "stage",
    "seed",
    "sink_blocks",
    "num_experts",
    "n_shared_experts",
    "first_k_dense_replace",
    "n_group",
    "q_lora_rank",
    "rotary_width",
    "max_position_embeddings",
    "extra_positions",
    "full_attention_every",
    "prefetch",
)


def _run_of(named: object, config: Layered, given: Mapping[str, Any], family: Family) -> Run:
    """Return the run with the ``given`` parameters. Raises :class:`InputError` for parameters that
    the family does not take.
    """
    longest = positions_of(config)
    short = (
        {key: min(getattr(Run(), key), longest) for key in ("sequence", "context")}
        if longest
        else {}
    )
    run = changed(
        Run(**{**short, **family.defaults}),
        given,
        "",
        extra=("model", "config", "link", "routing", RUNTIME),
    )
    for key in given:
        if key not in family.takes:
            raise InputError(
                f"{named} takes no {key!r}; it takes {', '.join(sorted(family.takes))}", where=key
            )
    if run.phase not in family.phases:
        raise InputError(
            f"{named} is built for {', '.join(family.phases)}; got {run.phase!r}", where="phase"
        )
    return run


def build(name: str, parameters: Mapping[str, Any]) -> Graph:
    """Return the graph of one run of a model; ``name`` is the graph's.

    ``parameters`` are ``model``, one of :data:`~hosim.io.models.presets.PRESETS` or a mapping with
    the keys of a transformers ``config.json`` (:mod:`hosim.io.models.config_json`); ``config``,
    values that replace some of the preset's; ``link``, a rate such as ``400 GB/s``, for
    ``link_bytes_per_s``; ``routing``, fields of :class:`~hosim.io.models.config.RoutingDraw`, for
    models with gates (without it, its defaults, which a note states; ``None``: every candidate
    runs); and any field of :class:`~hosim.io.models.config.Run`. Equal parameters give equal
    graphs. ``meta`` has the parameters. Raises :class:`InputError`, which names the parameter.
    """
    given = dict(parameters)
    model = given.pop("model", None)
    runtime = from_data(given.pop(RUNTIME)) if RUNTIME in given else None
    preset, read, left_out = _preset(model)
    overrides = given.pop("config", {})
    if not isinstance(overrides, Mapping):
        raise InputError("expected a mapping of the model's sizes", where="config")
    config: Layered = changed(preset, overrides, "config.")
    if isinstance(config, Gpt2):
        config = config.decoder()
    if "link" in given:
        given["link_bytes_per_s"] = _link(given.pop("link"))
    family = FAMILIES[type(preset)]
    given = {**_as_published(model, given, family), **_set_by(runtime, given, family), **given}
    drawn = "routing" not in given
    trace = given.pop("routing", None)
    if trace is not None and not isinstance(trace, Mapping):
        raise InputError("expected a mapping: steps, seed, zipf, persistence", where="routing")
    routed = None if trace is None else changed(RoutingDraw(), trace, "routing.")
    run = _run_of(_named(model), config, given, family)
    check_given(given, config, run)
    run = at_home(given, config, run)
    if run.weights == "mxfp4" and run.packed is None and int(getattr(config, "num_experts", 0)):
        run = replace(run, packed="experts")
    check_sizes(config, run)
    if run.weights is not None:
        left_out = tuple([line for line in left_out if not line.startswith(QUANTISED)])
    left_out = (*left_out, *_left_out_of(run), *other_bytes(model, given, build))
    assumed = _assumed_of(run)
    meta = {
        "source": "hosim.models",
        REPEATABLE: True,
        "builder": {**{key: parameters[key] for key in sorted(parameters)}, "model": read},
        **({DEVICES: run.devices} if run.devices > 1 else {}),
        **({LAYERS: layers_of_all(config, run)} if run.layers_on and run.pipeline > 1 else {}),
        **({} if runtime is None else {RUNTIME: as_data(runtime)}),
        **({LEFT_OUT: list(left_out)} if left_out else {}),
        **({ASSUMED: assumed} if assumed else {}),
    }
    stored = (
        None
        if run.training or run.weights is not None or not isinstance(model, Mapping)
        else stored_weights(Keys(model))
    )
    graph, gates, choices = step(
        name, family.forward, config, run, meta, in_parts=drawn or routed is not None, stored=stored
    )
    if stored is not None and (lines := stored.left_out(run.layers)):
        graph = replace(
            graph, meta={**graph.meta, LEFT_OUT: [*graph.meta.get(LEFT_OUT, ()), *lines]}
        )
    if drawn and gates:
        routed = RoutingDraw()
        graph = replace(graph, meta=_drawn(graph, gates, [each.count for each in choices], routed))
    return graph if routed is None else replace(_realised(graph, gates, choices, routed), name=name)


def parameters_of(parameters: Mapping[str, Any]) -> list[str]:
    """Return the names of all parameters that :func:`build` takes for the model of ``parameters``;
    those inside mappings have a dot.

    >>> parameters_of({"model": "gpt2-xl"})[:2]
    ['activations', 'attention']
    """
    preset, *_ = _preset(parameters.get("model"))
    inside = [f"config.{name}" for name in get_type_hints(type(preset))] + [
        f"routing.{name}" for name in get_type_hints(RoutingDraw)
    ]
    return [*sorted(FAMILIES[type(preset)].takes), "model", "link", *inside]


def _preset(model: object) -> tuple[Layered, object, tuple[str, ...]]:
    """Return the sizes of a model, its entry in the graph's ``meta``, and the parts of its config
    that the graph omits.
    """
    if isinstance(model, Mapping):
        from hosim.io.models.config_json import sizes_of  # presets need no family of configs

        try:
            return sizes_of(model)
        except InputError as error:
            raise InputError(error.message, where=f"model.{error.where}") from None
    if not isinstance(model, str) or model not in PRESETS:
        raise InputError(
            f"expected a model ('hosim workload models' lists {len(PRESETS)}) or the path of a "
            f"config.json, got {model!r}"
            f"{_near(model, PRESETS)}",
            where="model",
        )
    return PRESETS[model], model, left_out_of(model)


def _as_published(model: object, given: Mapping[str, Any], family: Family) -> Mapping[str, Any]:
    """Return the dtype of a ``config.json``, and its packing of weights for an inference whose
    builder can pack them.
    """
    if not isinstance(model, Mapping):
        return {}
    from hosim.io.models.config_json import dtype_of

    dtype = dtype_of(model)
    said = {} if dtype is None else {"dtype": dtype}
    phase = given.get("phase", family.defaults.get("phase", Run().phase))
    if phase == "train" or "weights" not in family.takes or _PACKING & given.keys():
        return said
    found = packing_of(model) or {}
    mixed = any([model.get(key) for key in _EXPERTS])
    if (found.get("weights") in SEPARATE and mixed) or (
        found and _are_packed(model, found, kept_modules(model))
    ):
        return said
    return {**said, **found}


def _set_by(runtime: Runtime | None, given: Mapping[str, Any], family: Family) -> Mapping[str, Any]:
    """Return the parameters of a run that a runtime sets: all of them for a training step; for an
    inference, those that apply to it.
    """
    if runtime is None:
        return {}
    training = given.get("phase", family.defaults.get("phase", Run().phase)) == "train"
    return {
        key: value
        for key, value in runtime.options.items()
        if key in family.takes and (training or key not in _OF_TRAINING)
    }


def _are_packed(model: Mapping[str, Any], packing: Mapping[str, Any], kept: Sequence[str]) -> bool:
    """Return whether packing would also pack modules that the checkpoint keeps unpacked
    (``kept``).
    """
    if not kept:
        return False
    plain = {
        key: value for key, value in model.items() if key not in ("quantization_config", INDEX)
    }
    packed, whole = (
        build("whole", {"model": plain, **more, "sequence": 1}) for more in (packing, {})
    )
    sizes = {
        tensor.name: tensor.size_bytes
        for tensor in whole.tensors
        if tensor.kind in WEIGHTS_OF_MODELS
    }
    other = [
        tensor.name
        for tensor in packed.tensors
        if sizes.get(tensor.name, tensor.size_bytes) != tensor.size_bytes
    ]
    return any([covers(module, name) for module in kept for name in other])


def _named(model: object) -> object:
    return model["model_type"] if isinstance(model, Mapping) else model


def _drawn(
    graph: Graph, gates: tuple[Gate, ...], choices: Sequence[int], routed: RoutingDraw
) -> dict[str, Any]:
    """Return the ``meta`` of a graph whose routing was not given: its builder gets the routing that
    is drawn, and a note says so.
    """
    meta, fields = graph.meta, asdict(routed)
    kinds = [graph.tensors[gate.experts[0].tensors[0]].kind for gate in gates]
    many = dict.fromkeys(
        [
            (n, len(gate.experts), _CANDIDATES[kind])
            for gate, n, kind in zip(gates, choices, kinds, strict=True)
        ]
    )
    said = ", ".join(f"{key}: {value}" for key, value in fields.items())
    which = " and ".join([f"{count} of {all_} {what}" for count, all_, what in many])
    line = (
        f"which {which} each gate chooses is drawn (routing: {{{said}}}); routing: null reads all"
    )
    return {
        **meta,
        "builder": {**meta["builder"], "routing": fields},
        ASSUMED: [*meta.get(ASSUMED, ()), line],
    }


def _realised(
    graph: Graph, gates: tuple[Gate, ...], choices: Sequence[Chosen], routed: RoutingDraw
) -> Graph:
    """Return the graph of the steps of a generated trace, with only the candidates that gates chose
    and the spread over other draws.
    """
    if not gates:
        raise InputError(
            "no gate chooses in this run: all experts are read, and there are no blocks to choose",
            where="routing",
        )
    seed, zipf, persistence = routed.seed, routed.zipf, routed.persistence
    routing = generate(
        graph,
        gates,
        steps=routed.steps,
        top=[each.count for each in choices],
        seed=seed,
        zipf=zipf,
        persistence=persistence,
    )
    realised = realise(routing, range(routed.steps))
    spread = draw_spread(routing, choices, seed=seed, zipf=zipf, persistence=persistence)
    return with_draw_spread(realised, spread) if spread else realised


def changed(data: Data, values: Mapping[str, Any], prefix: str, extra: Iterable[str] = ()) -> Data:
    """Return the dataclass instance ``data`` with other values. Raises :class:`InputError` for an
    unknown field or a value of another type.
    """
    hints = get_type_hints(type(data))
    for key, value in values.items():
        if key not in hints:
            known = [*hints, *extra]
            hint = _near(key, known) or f" (known: {', '.join(known)})"
            raise InputError(f"unknown parameter {key!r}{hint}", where=f"{prefix}{key}")
        least = 0 if key in _FROM_ZERO or getattr(data, key) == 0 else 1
        _check(f"{prefix}{key}", key, value, get_args(hints[key]) or (hints[key],), least)
    return replace(data, **values)  # type: ignore[type-var]


def _check(where: str, key: str, value: Any, types: tuple[type, ...], least: int) -> None:
    if key in _CHOICES and not (value is None and type(None) in types):
        if value not in _CHOICES[key]:
            raise InputError(
                f"expected one of {', '.join(_CHOICES[key])}; got {value!r}", where=where
            )
    elif key in ("kinds", "pattern"):
        raise InputError(
            "which layers differ, and in what, is said by the config of the model alone",
            where=where,
        )
    elif type(value) not in types and not (float in types and type(value) is int):
        expected = " or ".join(
            {int: "an integer", bool: "true or false", str: "text", float: "a number"}.get(
                t, "null"
            )
            for t in types
        )
        raise InputError(f"expected {expected}, got {value!r}", where=where)
    elif key in _SHARES and value is not None and not 0 <= value <= 1:
        raise InputError(f"expected a share from 0 to 1, got {value}", where=where)
    elif int in types and type(value) is int and value < least:
        raise InputError(f"expected at least {least}, got {value}", where=where)
    elif type(value) is int and value > 2**40:
        raise InputError(f"expected at most 2^40, got {value}", where=where)


def _assumed_of(run: Run) -> list[str]:
    """Return the assumptions of a training step about its optimizer and its gradients, as far as
    its parameters do not state them.
    """
    if not run.training:
        return []
    lines = []
    if run.optimizer == "adamw":
        master = ", of fp32 shards" if run.zero == 3 else ""
        if has_master(run):
            master = f" and an fp32 copy of each {run.dtype} parameter"
        how = (
            "done for all parameters part by part (foreach), with a root of each second moment"
            if run.foreach
            else "one fused kernel for each parameter"
        )
        lines.append(f"AdamW is {how}, with two moments in {run.states_dtype or 'fp32'}{master}")
    if run.zero >= 2 and run.micro_batches_of_step > 1 and run.sync_each_batch:
        whole = (
            "sync_each_batch=false, the default of accelerate, keeps whole gradients until "
            "the last one"
        )
        lines.append(f"gradients are reduced in each micro-batch; {whole}")
    return lines


def _left_out_of(run: Run) -> tuple[str, ...]:
    if run.weights == "nvfp4":
        return ("rounding activations to 4 bits: products read them in 16",)
    if not run.training or run.pipeline == 1 or run.tied:
        return ()
    longer = 100 * bubble(run.pipeline, run.micro_batches_of_step, run.chunks)
    return (
        f"waits of a stage for other stages: they make the step of equal stages {longer:.1f} % "
        "longer",
    )


def _link(value: object) -> int:
    try:
        return parse_rate(value)
    except UnitError as error:
        raise InputError(error.message, where="link") from None


def _near(name: object, known: Iterable[str]) -> str:
    near = get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
