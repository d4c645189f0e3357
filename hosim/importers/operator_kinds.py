"""Short kinds of operators of graph formats, which use capitals: ``BatchMatMul`` -> ``matmul``.

The kind is that of the same operator in torch (:mod:`hosim.importers.op_kinds`); only names that
aten does not have are listed here.
"""

from __future__ import annotations

import re

from hosim.importers.op_kinds import op_kind

_NAMES = {
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
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def operator_kind(name: str) -> str:
    """The kind of an operator of ONNX or MindSpore by its name.

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
    if lower in _KINDS:
        return _KINDS[lower]
    known = op_kind(lower)
    return known if known != lower else op_kind(_WORD.sub("_", bare).lower() or "operator")
