"""What does to a batch what an operation does to one element: a rule an op, for `flowrt.graph.batching`.

A rule ``(b, op, values)`` gets the operation of the template and what stands for its inputs, and returns what
stands for its outputs; None where it has no way: then a loop does it. Inputs that say how (axes, shapes) are
the same for all elements. The template's shapes are those of one element; the axis of the batch is the first.

Few ideas serve nearly all ops: leading axes come along (`leading`), an axis moves back by one (`on_axes`), a
list of dimensions gets one in front (`in_front`), the batch and the axis behind it become one (`merged`).
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from flowrt.graph import batching_indices as indices
from flowrt.graph.batching_axes import (
    Value,
    behind,
    merged_axes,
    moved_axes,
    moved_axis,
    rank_of,
    split_axis,
    with_inner_axes,
    with_last_axes,
)
from flowrt.graph.operation import Operation, Tensor
from flowrt.graph.ops.arithmetic import add_v2, multiply
from flowrt.graph.ops.comparison import broadcast_shape, select_v2
from flowrt.graph.ops.complex_parts import conj
from flowrt.graph.ops.einsum import parse_equation
from flowrt.graph.ops.filling import broadcast_to
from flowrt.graph.ops.identities import identity
from flowrt.graph.ops.linalg import batch_matmul, matmul
from flowrt.graph.ops.math import square
from flowrt.graph.ops.matrix_parts import matrix_diag, matrix_diag_part
from flowrt.graph.ops.reductions import reduce_all, reduce_prod, reduce_sum
from flowrt.graph.ops.shaping import rank, shape, transpose

if TYPE_CHECKING:
    from flowrt.graph.batching import Batching

Rule: TypeAlias = Callable[["Batching", Operation, Sequence[Value]], Sequence[Value] | None]


def _batched(*tensors: Tensor) -> list[Value]:
    return [Value(tensor, True) for tensor in tensors]


def _same(*tensors: Tensor) -> list[Value]:
    return [Value(tensor, False) for tensor in tensors]


# --- elementwise


def elementwise(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    if op.op_def.shape is not broadcast_shape and op.type not in _BROADCAST:
        return leading(b, op, values)
    return _broadcast(b, op, values)


def _broadcast(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """Elements of less rank get inner axes, so that they broadcast as they did; what is not batched does."""
    ranks = [len(dims) for t in op.inputs if (dims := t.spec.shape) is not None]
    if len(ranks) < len(values):
        return None
    pairs = zip(values, ranks, strict=True)
    return b.apply(
        op, [with_inner_axes(v.tensor, max(ranks) - r) if v.is_batched else v.tensor for v, r in pairs]
    )


_BROADCAST = {"Equal", "NotEqual"}
"""Elementwise ops that broadcast by a shape rule of their own."""


def _select(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """A condition of less rank says it for whole rows: its axes are the first ones."""
    condition, t, e = values
    ranks = [rank_of(x) for x in op.inputs]
    if ranks[0] is None or ranks[1] is None:
        return None
    return _batched(select_v2(with_last_axes(condition.tensor, ranks[1] - ranks[0]), t.tensor, e.tensor))


# --- axes


def leading(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    """For ops that work on the last axes, or element by element on inputs of one shape."""
    return b.apply(op, _whole(b, op, values))


def _whole(b: Batching, op: Operation, values: Sequence[Value]) -> list[Tensor]:
    """All inputs batched, but those that say how."""
    arguments = [a for a in op.op_def.inputs for _ in range(a.length(op.node.attrs))]
    return [v.tensor if a.on_host else b.whole(v) for a, v in zip(arguments, values, strict=True)]


def leading_of_first(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """As `leading`, where the other inputs are the same for all elements."""
    if any(v.is_batched for v in values[1:]):
        return None
    return b.apply(op, [v.tensor for v in values])


def on_axes(position: int = -1) -> Rule:
    """For ops that work along axes, which are input ``position``."""

    def rule(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
        tensors = _whole(b, op, values)
        tensors[position] = moved_axes(tensors[position])
        return b.apply(op, tensors)

    return rule


def _on_axis_attr(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    return b.apply(op, _whole(b, op, values), axis=moved_axis(op.get_attr("axis")))


def _one_hot(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    if values[2].is_batched or values[3].is_batched:
        return None
    return b.apply(op, [v.tensor for v in values], axis=moved_axis(op.get_attr("axis")))


def _squeeze(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    axes, dims = op.get_attr("squeeze_dims"), op.inputs[0].spec.shape
    if axes:
        return b.apply(op, [values[0].tensor], squeeze_dims=tuple(map(moved_axis, axes)))
    if dims is None or None in dims:
        return None
    ones = tuple(i + 1 for i, dim in enumerate(dims) if dim == 1)
    return b.apply(op, [values[0].tensor], squeeze_dims=ones) if ones else list(values)


def in_front(heads: Mapping[int, Any], data: int = 0, **masks: int) -> Rule:
    """For ops whose host inputs have one entry an axis: ``heads`` are the batch's by input, ``"size"`` its
    length. Input ``data`` alone may be batched. In ``masks`` are attributes with one bit an axis, and the
    batch's bit.
    """

    def rule(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
        if any(v.is_batched for i, v in enumerate(values) if i != data):
            return None
        tensors = [v.tensor for v in values]
        for position, head in heads.items():
            tensors[position] = behind(b.size if head == "size" else head, tensors[position])
        return b.apply(op, tensors, **{key: 2 * op.get_attr(key) + bit for key, bit in masks.items()})

    return rule


_SLICES = {"begin_mask": 1, "end_mask": 1, "ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0}


def _transpose(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    return b.apply(op, [values[0].tensor, behind(0, moved_axes(values[1].tensor))])


def _fill(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    length = op.inputs[0].spec.shape
    if length is None or length[0] is None:
        return None
    return _batched(
        broadcast_to(with_last_axes(values[1].tensor, length[0]), behind(b.size, values[0].tensor))
    )


def _broadcast_to(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    length, own = op.inputs[1].spec.shape, rank_of(op.inputs[0])
    if length is None or length[0] is None or own is None:
        return None
    tensor = with_inner_axes(values[0].tensor, length[0] - own)
    return b.apply(op, [tensor, behind(b.size, values[1].tensor)])


def merged(*positions: int, dims: int | None = None) -> Rule:
    """For ops whose inputs at ``positions`` have a batch axis of their own: it and the new one become one.
    ``dims`` is the host input that has the shape of one of them.
    """

    def rule(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
        if any(v.is_batched for i, v in enumerate(values) if i not in positions):
            return None
        shapes = [op.inputs[i].spec.shape for i in positions]
        if any(not dims or dims[0] != (shapes[0] or ())[0] for dims in shapes):
            return None  # one that broadcasts, or of unknown rank
        whole = {i: b.whole(values[i]) for i in positions}
        tensors = [merged_axes(whole[i]) if i in whole else v.tensor for i, v in enumerate(values)]
        if dims is not None:
            sizes = tensors[dims]
            tensors[dims] = multiply(sizes, behind(b.size, sizes[1:] * 0 + 1))
        found = b.apply(op, tensors)
        return _batched(*[split_axis(value.tensor, whole[positions[0]]) for value in found])

    return rule


# --- shapes: the same for all elements


def _shape(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    kind = op.get_attr("out_type")
    return _same(*[shape(v.tensor, out_type=kind)[1 if v.is_batched else 0 :] for v in values])


def _size(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    return _same(reduce_prod(shape(values[0].tensor, out_type=op.get_attr("out_type"))[1:]))


def _rank(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    return _same(rank(values[0].tensor) - 1)


# --- products


def _matmul(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """With one right factor for all, the rows of all left factors are one matrix: one large product is faster
    than many small ones.
    """
    x, y = values
    turned = [op.get_attr("transpose_a"), op.get_attr("transpose_b")]
    if not y.is_batched and not turned[0]:
        product = matmul(merged_axes(x.tensor), y.tensor, transpose_b=turned[1])
        return _batched(split_axis(product, x.tensor))
    pairs = zip(values, turned, strict=True)
    factors = [conj(v.tensor) if is_turned else v.tensor for v, is_turned in pairs]  # adjoint, not transposed
    return _batched(batch_matmul(*factors, adj_x=turned[0], adj_y=turned[1]))


def _einsum(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """The batch gets a letter that the equation has not."""
    terms, output = parse_equation(op.get_attr("equation"))
    free = [c for c in string.ascii_letters if not any(c in term for term in (*terms, output))]
    if not free:
        return None
    pairs = zip(terms, values, strict=True)
    left = ",".join(free[0] * v.is_batched + term for term, v in pairs)
    return b.apply(op, [v.tensor for v in values], equation=f"{left}->{free[0]}{output}")


# --- single ops


def _identity_n(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    return [Value(identity(v.tensor), v.is_batched) for v in values]


def _ensure_shape(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    dims = op.get_attr("shape")
    return b.apply(op, [values[0].tensor], shape=None if dims is None else (None, *dims))


def _call(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    return b.call(op.get_attr("f"), values)


def _assert(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    b.copy(op, [reduce_all(values[0].tensor), *[v.tensor for v in values[1:]]])
    return []


def _l2_loss(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    count = rank_of(op.inputs[0])
    if count is None:
        return None
    total = reduce_sum(square(values[0].tensor), list(range(1, count + 1)))
    return _batched(multiply(total, np.array(0.5, total.dtype.np)))


def _bias_add(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    value, bias = values
    count = rank_of(op.inputs[0])
    if op.get_attr("data_format") == "NCHW":
        return merged(0)(b, op, values)  # type: ignore[return-value]
    if not bias.is_batched:
        return b.apply(op, [value.tensor, bias.tensor])
    return None if count is None else _batched(add_v2(value.tensor, with_inner_axes(bias.tensor, count - 1)))


def _bias_add_grad(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    count = rank_of(op.inputs[0])
    if count is None:
        return None
    channels = 2 if op.get_attr("data_format") == "NCHW" else count
    return _batched(reduce_sum(values[0].tensor, [i for i in range(1, count + 1) if i != channels]))


def _decomposition(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    """Vectors that were not asked for are empty, of one dimension."""
    found = leading(b, op, values)
    is_asked = op.node.attrs.get("compute_uv", op.node.attrs.get("compute_v"))
    return found if is_asked else [found[0], *[v._replace(is_batched=False) for v in found[1:]]]


def _diag(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    return _batched(matrix_diag(values[0].tensor)) if rank_of(op.inputs[0]) == 1 else None


def _diag_part(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    return _batched(matrix_diag_part(values[0].tensor)) if rank_of(op.inputs[0]) == 2 else None


def _reverse_sequence(b: Batching, op: Operation, values: Sequence[Value]) -> Sequence[Value] | None:
    return merged(0, 1)(b, op, values) if op.get_attr("batch_dim") == 0 else None


def _draw(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """Every element draws its own."""
    if any(v.is_batched for v in values):
        return None
    return b.apply(op, [behind(b.size, values[0].tensor), *[v.tensor for v in values[1:]]])


def _draw_for_each(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """``shape`` draws for each number in a tensor: those of the batch come behind the drawn axes."""
    if not values[1].is_batched:
        return _draw(b, op, values)
    length, own = op.inputs[0].spec.shape, rank_of(op.inputs[1])
    if length is None or length[0] is None or own is None:
        return None
    drawn, count = b.apply(op, [v.tensor for v in values])[0].tensor, length[0]
    return _batched(transpose(drawn, [count, *range(count), *range(count + 1, count + own + 1)]))


RULES: dict[str, Rule] = {
    # leading axes
    **dict.fromkeys(("Identity", "StopGradient", "PreventGradient", "CheckNumerics"), leading),
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopKV2", "Cross"), leading),
    **dict.fromkeys(("MatrixDiag", "MatrixDiagPart", "MatrixSetDiag", "MatrixBandPart"), leading),
    **dict.fromkeys(("MatrixInverse", "MatrixDeterminant", "LogMatrixDeterminant", "Cholesky"), leading),
    **dict.fromkeys(("MatrixSolve", "Qr"), leading),
    **dict.fromkeys(("StringLower", "StringUpper", "StringStrip", "StringLength"), leading),
    **dict.fromkeys(("StaticRegexReplace", "StringToNumber", "AsString", "DecodeRaw"), leading),
    **dict.fromkeys(("ApproximateEqual",), leading),
    "LayerNorm": leading_of_first,
    "IdentityN": _identity_n,
    "EnsureShape": _ensure_shape,
    "Complex": _broadcast,
    "Select": _select,
    # axes
    **dict.fromkeys(("Sum", "Mean", "Prod", "Max", "Min", "All", "Any", "EuclideanNorm"), on_axes()),
    **dict.fromkeys(("ArgMax", "ArgMin", "Cumsum", "Cumprod", "CumulativeLogsumexp"), on_axes()),
    **dict.fromkeys(("ConcatV2", "SplitV", "ReverseV2", "Roll", "ExpandDims"), on_axes()),
    "Split": on_axes(0),
    **dict.fromkeys(("Pack", "Unpack"), _on_axis_attr),
    "OneHot": _one_hot,
    "Squeeze": _squeeze,
    **dict.fromkeys(("Transpose", "ConjugateTranspose"), _transpose),
    # one entry an axis
    "Reshape": in_front({1: "size"}),
    "Tile": in_front({1: 1}),
    "Slice": in_front({1: 0, 2: -1}),
    "StridedSlice": in_front({1: 0, 2: 0, 3: 1}, **_SLICES),
    "StridedSliceGrad": in_front({0: "size", 1: 0, 2: 0, 3: 1}, data=4, **_SLICES),
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad", "MirrorPadGrad"), in_front({1: (0, 0)})),
    "Fill": _fill,
    "BroadcastTo": _broadcast_to,
    # a batch axis of their own
    **dict.fromkeys(("Conv2D", "Conv3D", "DepthwiseConv2dNative"), merged(0)),
    **dict.fromkeys(
        ("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"),
        merged(2, dims=0),
    ),
    **dict.fromkeys(("MaxPool", "MaxPool3D", "AvgPool", "AvgPool3D", "LRN"), merged(0)),
    **dict.fromkeys(
        ("MaxPoolGrad", "MaxPoolGradGrad", "MaxPool3DGrad", "MaxPool3DGradGrad"), merged(0, 1, 2)
    ),
    **dict.fromkeys(("AvgPoolGrad", "AvgPool3DGrad"), merged(1, dims=0)),
    "LRNGrad": merged(0, 1, 2),
    **dict.fromkeys(("SpaceToDepth", "DepthToSpace"), merged(0)),
    **dict.fromkeys(("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), merged(0, 1)),
    **dict.fromkeys(("InTopKV2", "LowerBound", "UpperBound"), merged(0, 1)),
    "ReverseSequence": _reverse_sequence,
    "Multinomial": merged(0),
    # shapes
    **dict.fromkeys(("Shape", "ShapeN"), _shape),
    "Size": _size,
    "Rank": _rank,
    # products
    "MatMul": _matmul,
    **dict.fromkeys(("BatchMatMulV2", "MatrixTriangularSolve"), _broadcast),
    **dict.fromkeys(("Svd", "SelfAdjointEigV2"), _decomposition),
    "Einsum": _einsum,
    # indices
    "GatherV2": indices.gather,
    "ResourceGather": indices.gather_of_variable,
    "GatherNd": indices.gather_nd,
    "ScatterNd": indices.scatter_nd,
    **dict.fromkeys(("TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub"), indices.tensor_scatter),
    **dict.fromkeys((f"Segment{fold}" for fold in ("Sum", "Mean", "Prod", "Max", "Min")), indices.segments),
    **dict.fromkeys((f"UnsortedSegment{fold}" for fold in ("Sum", "Prod", "Max", "Min")), indices.segments),
    # the rest
    "PartitionedCall": _call,
    "Assert": _assert,
    "L2Loss": _l2_loss,
    "BiasAdd": _bias_add,
    "BiasAddGrad": _bias_add_grad,
    "Diag": _diag,
    "DiagPart": _diag_part,
    **dict.fromkeys(("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt"), _draw),
    **dict.fromkeys(("RandomGamma", "RandomPoissonV2"), _draw_for_each),
}
"""The rule of each op that has one of its own; ops that are elementwise need none."""
