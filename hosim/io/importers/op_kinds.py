"""The kind of an op, from the name of its operator: ``linear`` is a ``matmul``.

Tables and policies group ops by kind; a kind says nothing about time. The names are those of aten
and of a few custom ops, without namespace, overload and the trailing underscore of in-place
variants. A name that is not in the table is its own kind.
"""

import re

_PACKED = frozenset(("qweight", "qzeros", "scales", "g_idx"))
"""Last parts of the names of GPTQ's and AWQ's tensors."""


def kind_of(role: str, name: str) -> str:
    """The kind of a parameter, buffer or input, from its role and its qualified name. A parameter
    with ``experts`` as a part of its name is an ``expert``.

    GPTQ and AWQ register packed weights, zeros, scales and each row's group as buffers; these count
    as parameters.

    >>> (
    ...     kind_of("parameter", "layers.0.experts.1.weight"),
    ...     kind_of("buffer", "layers.0.q_proj.qweight"),
    ... )
    ('expert', 'parameter')
    """
    *_, last = parts = name.split(".")
    role = "parameter" if role == "buffer" and last in _PACKED else role
    return "expert" if role == "parameter" and "experts" in parts else role


_NAMES = {
    "matmul": """mm bmm addmm baddbmm addmv mv dot matmul linear einsum grouped_mm grouped_mm_fallback scaled_mm int_mm tensordot
        weight_int4pack_mm weight_int4pack_mm_for_cpu weight_int4pack_mm_with_scales_and_zeros weight_int8pack_mm bf16i4bf16_rowwise
        bf16i4bf16_shuffled""",
    "attention": """scaled_dot_product_attention scaled_dot_product_flash_attention scaled_dot_product_efficient_attention
        scaled_dot_product_cudnn_attention scaled_dot_product_flash_attention_for_cpu flash_attention_forward
        efficient_attention_forward""",
    "convolution": "convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d",
    "rnn": "mkldnn_rnn_layer cudnn_rnn miopen_rnn lstm gru rnn_tanh rnn_relu quantized_lstm "
    "quantized_gru",
    "norm": """layer_norm native_layer_norm rms_norm fused_rms_norm group_norm native_group_norm batch_norm native_batch_norm
        instance_norm""",
    "softmax": "softmax log_softmax safe_softmax",
    "embedding": "embedding embedding_bag",
    "gather": "gather index index_select take take_along_dim",
    "scatter": "index_put index_copy index_add index_fill scatter scatter_add scatter_reduce "
    "masked_scatter",
    "elementwise": """add sub rsub mul div floor_divide remainder fmod pow neg abs sign sqrt rsqrt reciprocal exp exp2 expm1 log log1p log2
        sin cos tan tanh sigmoid relu relu6 gelu silu mish elu leaky_relu hardswish hardsigmoid hardtanh softplus clamp clamp_min clamp_max
        maximum minimum erf floor ceil round trunc square addcmul addcdiv lerp where masked_fill eq ne lt le gt ge logical_and logical_or
        logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor __and__ __or__ __xor__ isnan isinf isfinite
        tril triu sinc polar complex nan_to_num bitwise_right_shift bitwise_left_shift __rshift__ __lshift__ quantize_affine
        dequantize_affine""",
    "reduction": """sum mean max min amax amin prod any all var std var_mean norm linalg_vector_norm argmax argmin cumsum cumprod diff histc
        bincount logsumexp choose_qparams_affine""",
    "sort": "sort topk argsort unique",
    "copy": """clone copy contiguous to to_copy reshape cat stack repeat repeat_interleave roll flip constant_pad_nd pad type_as flatten
        lift_fresh""",
    "fill": """zeros ones full arange linspace zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor eye fill zero""",
    "random": """rand randn randint rand_like randn_like randint_like randperm dropout native_dropout alpha_dropout feature_dropout
        bernoulli normal multinomial poisson exponential geometric uniform rrelu_with_noise""",
    "allocate": "empty empty_like empty_strided new_empty new_empty_strided empty_permuted",
    "pool": "max_pool2d max_pool2d_with_indices avg_pool2d adaptive_avg_pool2d "
    "adaptive_max_pool2d adaptive_avg_pool1d avg_pool1d",
    "resize": "upsample_bicubic2d upsample_bilinear2d upsample_nearest2d grid_sampler_2d",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def op_kind(name: str) -> str:
    """The kind of an op from its name, such as ``aten.addmm.default``, ``add_`` or ``_softmax``.

    >>> (
    ...     op_kind("aten.linear.default"),
    ...     op_kind("add_"),
    ...     op_kind("aten._softmax.default"),
    ...     op_kind("aten.lift.default"),
    ... )
    ('matmul', 'elementwise', 'softmax', 'lift')
    """
    parts = name.split(".")
    bare = parts[1] if len(parts) > 1 else parts[0]
    for known in (bare, bare.strip("_"), bare.strip("_").removesuffix("_copy")):
        if known in _KINDS:
            return _KINDS[known]
    return bare.strip("_") or bare


_OPERATOR_NAMES = {
    "matmul": "matmul gemm batchmatmul dense qlinearmatmul matmulinteger fusedmatmul "
    "batchmatmulext groupedmatmul matmulnbits",
    "attention": """attention multiheadattention groupqueryattention flashattentionscore flashattentionscoregrad promptflashattention
        increflashattention fusedinferattentionscore pagedattention""",
    "convolution": """conv convtranspose qlinearconv convinteger conv2dtranspose conv2dbackpropinput conv2dbackpropfilter conv3dtranspose
        depthwiseconv2dnative deformconv""",
    "rnn": "lstm gru rnn dynamicrnn dynamicgruv2",
    "norm": """layernormalization rmsnormalization batchnormalization groupnormalization instancenormalization simplifiedlayernormalization
        skiplayernormalization skipsimplifiedlayernormalization lpnormalization lrn layernorm batchnorm groupnorm rmsnorm instancenorm
        layernormgrad batchnormgrad rmsnormgrad groupnormgrad addrmsnorm addlayernorm""",
    "softmax": "logsoftmax softmaxgrad softmaxbackward",
    "gather": "gathernd gatherelements gatherd compress slice stridedslice split splitv",
    "scatter": "scatternd scatterelements scatterndupdate scatterupdate tensorscatterupdate "
    "tensorscatter",
    "elementwise": """equal greater less greaterorequal lessorequal greaterequal lessequal not and or xor hardswish clip prelu softsign
        thresholdedrelu realdiv divs muls adds subs powtensorscalar biasadd cast castlike dropout quantizelinear dequantizelinear select
        relugrad gelugrad silugrad sigmoidgrad tanhgrad floordiv squareddifference swish addn accumulatenv2""",
    "reduction": """reducesum reducemean reducemax reducemin reduceprod reducel1 reducel2 reducelogsum reducelogsumexp reducesumsquare
        biasaddgrad reduceall reduceany""",
    "copy": """concat transpose expand tile broadcastto depthtospace spacetodepth identity unsqueeze squeeze""",
    "fill": "constantofshape range eyelike zeroslike oneslike onehot",
    "random": "randomnormal randomuniform randomnormallike randomuniformlike",
    "pool": """maxpool averagepool globalaveragepool globalmaxpool lppool avgpool maxpoolgrad avgpoolgrad adaptiveavgpool2d
        maxpoolwithargmax""",
    "resize": "upsample gridsample resizebilinearv2 resizenearestneighbor resizenearestneighborv2",
    "optimizer": """applymomentum adam adamweightdecay sgd applyadagrad applyrmsprop applyftrl applygradientdescent lamb lars
        fusedadam applyadamwithamsgrad adamw applyproximaladagrad applyadadelta applyadamax""",
}
_OPERATOR_KINDS = {name: kind for kind, names in _OPERATOR_NAMES.items() for name in names.split()}
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def operator_kind(name: str) -> str:
    """The kind of an operator of ONNX or MindSpore from its name.

    >>> (
    ...     operator_kind("MatMulExt"),
    ...     operator_kind("Softmax"),
    ...     operator_kind("ReduceMean"),
    ...     operator_kind("NonZero"),
    ... )
    ('matmul', 'softmax', 'reduction', 'non_zero')
    """
    bare = name.removesuffix("Ext")
    lower = bare.lower()
    if lower in _OPERATOR_KINDS:
        return _OPERATOR_KINDS[lower]
    known = op_kind(lower)
    return known if known != lower else op_kind(_WORD.sub("_", bare).lower() or "operator")
