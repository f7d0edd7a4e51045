"""Ops that keep the elements and change the shape: shape, size, rank, reshape, expand_dims, squeeze,
transpose.

Rules of this file: a static shape becomes a constant when the graph is built (`shape`, `size`, `rank`), so
that gradients written with these functions cost nothing at run time when shapes are known; views are
``alias`` ops; ops used in shape arithmetic have a ``value`` rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import BatchBuilder, Value, in_front, moved_axis, on_axes, same
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import takes_composites
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.construction.operation import Operation
from flowrt.graph.node import Node, Ref
from flowrt.graph.op_def import (
    LINEAR,
    OpDef,
    PartialValue,
    Sample,
    ShapeContext,
    SimplifyContext,
    define_op,
    op_def,
    sample,
)
from flowrt.graph.op_facets import Loop, LoopPattern, Traits
from flowrt.graph.ops.base.axes import factors
from flowrt.graph.ops.base.identities import arrays, static_value, target_shape
from flowrt.graph.ops.base.indexing import put_rows
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.shapes import Shape, format_shape, is_static, merge, normalize_axis, num_elements
from flowrt.graph.tf1_signatures import tf1_names
from flowrt.graph.typing import NumericLike, TensorLike

__all__ = ["expand_dims", "invert_permutation", "rank", "reshape", "shape", "size", "squeeze", "transpose"]

# --- shape, size, rank: their outputs are host values, made by NumPy on every device


def _numbers(value: Any, dtype: DType, out: Any) -> Any:
    return delivered(np, np.array(value, dtype.np), dtype.np, out)  # raises for one that is too large


def _shape_n(xp: Any, input: Sequence[Any], out_type: DType, out: Any = None) -> list[Any]:
    places = [None] * len(input) if out is None else out
    return [_numbers(np.shape(x), out_type, place) for x, place in zip(input, places, strict=True)]


def _batch_shape(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value]:
    kind = op.get_attr("out_type")
    return same(*[shape(v.tensor, out_type=kind)[1 if v.is_batched else 0 :] for v in values])


shape_op = define_op(
    "Shape",
    "input: T in STORED -> host out_type in INDEX",
    attrs="out_type: type = int32",
    shape=lambda s: [(None if s.shapes[0] is None else len(s.shapes[0]),)],
    kernel=lambda xp, input, out_type, out=None: _numbers(np.shape(input), out_type, out),
    samples=arrays(),
    value=lambda s: s.shapes[0],
    batch=_batch_shape,
    doc="The input's dimensions, as a vector.",
)


shape_n: OpDef[list[Tensor]] = define_op(
    "ShapeN",
    "input: N * T in STORED -> host N * out_type in INDEX",
    attrs="out_type: type = int32",
    shape=lambda s: [(None if shape is None else len(shape),) for shape in s.shapes],
    kernel=_shape_n,
    samples=lambda rng: [sample((rng.standard_normal((2, 3)), rng.standard_normal(())))],
    batch=_batch_shape,
    doc="The dimensions of each input, as vectors.",
)


size_op = define_op(
    "Size",
    "input: T in STORED -> host out_type in INDEX",
    attrs="out_type: type = int32",
    shape=lambda s: [()],
    kernel=lambda xp, input, out_type, out=None: _numbers(np.size(input), out_type, out),
    samples=arrays(),
    value=lambda s: num_elements(s.shapes[0]),
    batch=lambda b, op, values: same(
        op_def("Prod")(shape(values[0].tensor, out_type=op.get_attr("out_type"))[1:], [0])
    ),
    doc="The number of elements.",
)


def _batch_rank(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value]:
    return same(rank(values[0].tensor) - 1)


rank_op = define_op(
    "Rank",
    "input: T in STORED -> host int32",
    shape=lambda s: [()],
    kernel=lambda xp, input, out=None: _numbers(np.ndim(input), dtypes.int32, out),
    samples=arrays(),
    value=lambda s: None if s.shapes[0] is None else len(s.shapes[0]),
    batch=_batch_rank,
    doc="The number of dimensions.",
)


def shape(input: TensorLike, name: str | None = None, out_type: DTypeLike = dtypes.int32) -> Tensor:
    """The shape of ``input`` at run time.

    Args:
        input: A tensor.
        out_type: The dtype of the dimensions, int32 or int64.

    Returns:
        A vector with one number per dimension; a constant when the shape is known already.

    Example:
        >>> tf.shape([[1, 2, 3], [4, 5, 6]]).eval()
        array([2, 3], dtype=int32)
    """
    tensor, dtype = convert_to_tensor(input), as_dtype(out_type or dtypes.int32)
    if is_static(tensor.spec.shape):
        return constant(np.array(tensor.spec.shape, dtype.np), name=name or "Shape")
    return shape_op(tensor, out_type=dtype, name=name)


@takes_composites
def size(input: TensorLike, name: str | None = None, out_type: DTypeLike = dtypes.int32) -> Tensor:
    """The number of elements of ``input``, a scalar of ``out_type``; a constant when it is known already.

    Example:
        >>> tf.size([[1, 2, 3], [4, 5, 6]]).eval()
        np.int32(6)
    """
    tensor, dtype = convert_to_tensor(input), as_dtype(out_type)
    count = num_elements(tensor.spec.shape)
    if count is not None:
        return constant(np.array(count, dtype.np), name=name or "Size")
    return size_op(tensor, out_type=dtype, name=name)


@takes_composites
def rank(input: TensorLike, name: str | None = None) -> Tensor:
    """The number of dimensions of ``input``, an int32 scalar; a constant when it is known already.

    Example:
        >>> tf.rank([[1, 2], [3, 4]]).eval()
        np.int32(2)
    """
    tensor = convert_to_tensor(input)
    if tensor.spec.shape is not None:
        return constant(np.array(len(tensor.spec.shape), np.int32), name=name or "Rank")
    return rank_op(tensor, name=name)


def _reshape_shape(s: ShapeContext) -> Sequence[Shape]:
    target = target_shape(s, 1)
    if target is None or None in target:
        return [None if target is None else tuple(None if d == -1 else d for d in target)]
    if target.count(-1) > 1 or any(d is not None and d < -1 for d in target):
        raise InvalidArgumentError(
            f"shape: expected dimensions of at least 0 and at most one -1; got {list(target)}"
        )
    count = num_elements(s.shapes[0])
    known = math.prod(d for d in target if d != -1)  # type: ignore[misc]
    if count is None:
        return [tuple(None if d == -1 else d for d in target)]
    if count != known and (-1 not in target or known == 0 or count % known):
        raise InvalidArgumentError(f"expected a shape of {count} elements; got {list(target)}")
    return [tuple(count // known if d == -1 and known else d if d != -1 else None for d in target)]


def _reshape_value(s: ShapeContext) -> PartialValue:
    value, target = s.value(0), s.value(1)
    if value is None or target is None or len(target) > 1:
        return None
    flat = tuple(_leaves(value))
    return flat if target else flat[0]


def _leaves(value: PartialValue) -> Iterator[Any]:
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _simplify_reshape(c: SimplifyContext) -> Node | Sequence[Ref] | None:
    """Simplification of ops that keep the order of elements: skip such producers; remove the op if the shape
    is equal.
    """
    source = c.node.inputs[0]
    while (inner := c.producer(source)) is not None and inner.op in (reshape, expand_dims_op, squeeze_op):
        if not is_static(c.spec(inner.inputs[0]).shape) or not _has_constant_shape(c, inner):
            break  # it may raise an error, or depend on an effect
        source = inner.inputs[0]
    dims = c.spec(source).shape
    if is_static(dims) and dims == c.node.outputs[0].shape and _has_constant_shape(c, c.node):
        return (source,)
    if c.node.op is not reshape or source == c.node.inputs[0]:
        return None
    return c.node.replace(inputs=(source, c.node.inputs[1]))


def _has_constant_shape(c: SimplifyContext, node: Node) -> bool:
    return all(c.constant(ref) is not None for ref in node.inputs[1:])


def _reshape(xp: Any, tensor: Any, shape: Any, out: Any = None) -> Any:
    try:
        if out is None:
            return tensor.reshape(shape)
        if out.flags.c_contiguous:  # one copy, not two
            wanted = out.reshape(shape).shape
            xp.copyto(out.reshape(tensor.shape), tensor)
        else:
            values = tensor.reshape(shape)
            wanted = values.shape
            xp.copyto(out, values)
    except ValueError:
        raise InvalidArgumentError(f"expected a shape of {tensor.size} elements; got {list(shape)}") from None
    if wanted != out.shape:  # than its `set_shape` says
        raise InvalidArgumentError(f"expected the shape {list(out.shape)}; got {list(wanted)}")
    return out


reshape: OpDef[Tensor] = define_op(
    "Reshape",
    "tensor: T in STORED, shape: host shape Tshape in INDEX -> T",
    shape=_reshape_shape,
    kernel=_reshape,
    vjp=lambda op, dy: [reshape(dy, shape(op.inputs[0])), None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3)), np.array([3, -1], np.int32)),
        sample(rng.standard_normal((1, 1)), np.zeros(0, np.int64)),
        sample(rng.integers(0, 9, ()), np.array([1, 1], np.int32)),
        sample(np.zeros((0, 4), np.complex64), np.array([2, 0], np.int32)),
        sample(rng.standard_normal((4, 3)), np.array([2, 2, 1, 3], np.int32)),
    ),
    alias=True,
    value=_reshape_value,
    simplify=_simplify_reshape,
    loop=Loop(lambda b, tensor, shape: tensor, LoopPattern.RESHAPE),
    batch=in_front({1: "size"}),
    doc="""The same elements in row-major order in another shape.

    Args:
        tensor: A tensor of any shape and dtype.
        shape: The new shape, an integer vector; one dimension may be -1: the rest.

    Returns:
        A tensor of that shape, with as many elements as ``tensor``.

    Example:
        >>> tf.reshape([1, 2, 3, 4, 5, 6], [2, -1]).eval()
        array([[1, 2, 3],
               [4, 5, 6]], dtype=int32)
    """,
)


def _inserted_axis(s: ShapeContext, rank: int) -> int | None:
    axis = s.value(1)
    while isinstance(axis, tuple) and len(axis) == 1:
        axis = axis[0]
    if isinstance(axis, tuple):
        raise InvalidArgumentError(f"axis: expected one int; got {list(axis)}")
    return None if axis is None else normalize_axis(axis, rank + 1)


def _expand_dims_shape(s: ShapeContext) -> Sequence[Shape]:
    dims = s.shapes[0]
    if dims is None:
        return [None]
    axis = _inserted_axis(s, len(dims))
    return [(None,) * (len(dims) + 1) if axis is None else (*dims[:axis], 1, *dims[axis:])]


expand_dims_op = define_op(
    "ExpandDims",
    "input: T in STORED, dim: host Tdim in INDEX -> T",
    shape=_expand_dims_shape,
    kernel=lambda xp, input, dim: xp.expand_dims(input, dim),
    vjp=lambda op, dy: [reshape(dy, shape(op.inputs[0])), None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3)), np.array(1, np.int32)),
        sample(rng.standard_normal((2, 3)), np.array(-1, np.int64)),
        sample(rng.standard_normal((2,)), np.array([0], np.int32)),
        sample(np.array(True), np.array(0, np.int32)),
    ),
    alias=True,
    value=lambda s: None if s.value(0) is None or s.value(1) not in (0, (0,)) else (s.value(0),),
    simplify=_simplify_reshape,
    loop=Loop(lambda b, input, dim: input, LoopPattern.RESHAPE),
    batch=on_axes(),
    doc="The input with a dimension of 1 put in before ``dim``.",
)


@takes_composites
@tf1_names(axis="dim")
def expand_dims(input: TensorLike, axis: NumericLike | None = None, name: str | None = None) -> Tensor:
    """``input`` with a dimension of 1 inserted at ``axis``.

    Args:
        input: A tensor.
        axis: The position of the new dimension; negative axes count from after the last one.

    Returns:
        A tensor with the same elements and one dimension more.

    Example:
        >>> tf.expand_dims([1, 2], axis=-1).eval()
        array([[1],
               [2]], dtype=int32)
    """
    return expand_dims_op(input, axis, name=name)


def _squeeze_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, axes = s.shapes[0], s.attrs["squeeze_dims"]
    if dims is None:
        return [None]
    if not axes:
        return [None if None in dims else tuple(d for d in dims if d != 1)]
    dropped = {normalize_axis(axis, len(dims)) for axis in axes}
    if wrong := [axis for axis in dropped if dims[axis] not in (None, 1)]:
        raise InvalidArgumentError(f"expected dimension {wrong[0]} to be 1; got shape {format_shape(dims)}")
    return [tuple(d for i, d in enumerate(dims) if i not in dropped)]


def _squeeze_value(s: ShapeContext) -> PartialValue:
    value = s.value(0)
    return value[0] if isinstance(value, tuple) and len(value) == 1 and s.shapes[0] == (1,) else None


def _batch_squeeze(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    axes, dims = op.get_attr("squeeze_dims"), op.inputs[0].spec.shape
    if axes:
        return b.apply(op, [values[0].tensor], squeeze_dims=tuple(map(moved_axis, axes)))
    if dims is None or None in dims:
        return None
    ones = tuple(i + 1 for i, dim in enumerate(dims) if dim == 1)
    return b.apply(op, [values[0].tensor], squeeze_dims=ones) if ones else list(values)


squeeze_op = define_op(
    "Squeeze",
    "input: T in STORED -> T",
    attrs="squeeze_dims: list(int) = ()",
    shape=_squeeze_shape,
    kernel=lambda xp, input, squeeze_dims: xp.squeeze(input, squeeze_dims or None),
    vjp=lambda op, dy: [reshape(dy, shape(op.inputs[0]))],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((1, 2, 1))),
        sample(rng.standard_normal((1, 2, 1)), squeeze_dims=(-1,)),
        sample(np.zeros((1, 0), np.int32), squeeze_dims=(0,)),
    ),
    alias=True,
    value=_squeeze_value,
    simplify=_simplify_reshape,
    loop=Loop(lambda b, input: input, LoopPattern.RESHAPE),
    batch=_batch_squeeze,
    doc="The input without those (or all) dimensions that are 1.",
)


@tf1_names(axis="squeeze_dims")
def squeeze(input: TensorLike, axis: NumericLike | None = None, name: str | None = None) -> Tensor:
    """``input`` without dimensions of 1.

    Args:
        input: A tensor.
        axis: The dimensions to drop, an int or a list of ints; None for all of size 1.

    Returns:
        A tensor with the same elements.

    Example:
        >>> tf.squeeze([[[1], [2]]]).eval()
        array([1, 2], dtype=int32)
    """
    axes = () if axis is None else axis if isinstance(axis, Iterable) else (axis,)
    return squeeze_op(input, squeeze_dims=axes, name=name)


# --- transpose


def _transpose_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, perm = s.shapes[0], s.value(1)
    length = (s.shapes[1] or (None,))[0]
    if dims is None and length is not None:
        dims = (None,) * length
    if dims is None:
        return [None]
    if length not in (None, len(dims)):
        raise InvalidArgumentError(f"perm: expected {len(dims)} axes for {format_shape(dims)}; got {length}")
    if perm is None or None in perm:
        return [(None,) * len(dims)]
    axes = [normalize_axis(axis, len(dims)) for axis in perm]
    if len(set(axes)) != len(axes):
        raise InvalidArgumentError(f"perm: expected each axis once; got {list(perm)}")
    return [tuple(dims[axis] for axis in axes)]


def _inverse(perm: Tensor) -> Any:
    known = static_value(perm)
    if known is None or None in known:
        return invert_permutation(perm)
    return np.argsort([axis % len(known) for axis in known]).astype(perm.dtype.np)


def _permuted(rng: np.random.Generator) -> Iterable[Sample]:
    yield sample(rng.standard_normal((2, 3, 4)), np.array([1, 2, 0], np.int32))
    yield sample(rng.standard_normal((2, 3)), np.array([-1, 0], np.int64))
    yield sample(rng.standard_normal((1, 0)) * (1 + 1j), np.array([1, 0], np.int32))
    yield sample(rng.standard_normal(()), np.zeros(0, np.int32))


def _simplify_transpose(c: SimplifyContext) -> Sequence[Ref] | None:
    """A transpose that changes nothing, or that undoes the one before it."""
    source, perm = c.node.inputs[0], c.constant(c.node.inputs[1])
    if perm is None:
        return None
    axes = perm % max(perm.size, 1)
    identity = np.arange(perm.size)
    if np.array_equal(axes, identity):
        return (source,)
    inner = c.producer(source)
    if inner is None or inner.op is not transpose_op:
        return None
    first = c.constant(inner.inputs[1])
    undone = first is not None and np.array_equal((first % first.size)[axes], identity)
    return inner.inputs[:1] if undone else None


def _batch_transpose(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value]:
    return b.apply(op, [values[0].tensor, b.behind(0, b.moved_axes(values[1].tensor))])


def _transpose_axes(s: ShapeContext) -> str | None:
    perm = s.value(1)
    if perm is None or None in perm:
        return None
    return f"{factors(len(perm))} -> {' '.join(f'd{i % len(perm)}' for i in perm)}"


transpose_op: OpDef[Tensor] = define_op(
    "Transpose",
    "x: T in STORED, perm: host Tperm in INDEX -> y: T",
    shape=_transpose_shape,
    kernel=lambda xp, x, perm: xp.transpose(x, perm),
    vjp=lambda op, dy: [transpose_op(dy, _inverse(op.inputs[1])), None],
    jvp=LINEAR,
    samples=_permuted,
    alias=True,
    simplify=_simplify_transpose,
    batch=_batch_transpose,
    axes=_transpose_axes,
    doc="The input with its dimensions in the order ``perm``.",
)


conjugate_transpose: OpDef[Tensor] = define_op(
    "ConjugateTranspose",
    "x: T in NUMERIC, perm: host Tperm in INDEX -> y: T",
    shape=_transpose_shape,
    kernel=lambda xp, x, perm, out=None: xp.conjugate(xp.transpose(x, perm), out),
    vjp=lambda op, dy: [conjugate_transpose(dy, _inverse(op.inputs[1])), None],
    jvp=LINEAR,
    samples=_permuted,
    batch=_batch_transpose,
    axes=_transpose_axes,
    traits=Traits(narrows=True),
    doc="The complex conjugate of the input with its dimensions in the order ``perm``.",
)


def transpose(
    a: TensorLike, perm: NumericLike | None = None, name: str = "transpose", conjugate: bool = False
) -> Tensor:
    """``a`` with its dimensions in another order.

    Args:
        a: A tensor.
        perm: The order: dimension i of the result is ``perm[i]`` of ``a``. None reverses them.
        conjugate: Whether the elements are conjugated.

    Returns:
        A tensor of the same dtype.

    Example:
        >>> tf.transpose([[1, 2], [3, 4]]).eval()
        array([[1, 3],
               [2, 4]], dtype=int32)
        >>> tf.transpose(tf.zeros([2, 3, 5]), [2, 0, 1]).shape.as_list()
        [5, 2, 3]
    """
    tensor = convert_to_tensor(a)
    if perm is None and tensor.spec.shape is not None:
        perm = np.arange(len(tensor.spec.shape), dtype=np.int32)[::-1]
    elif perm is None:
        perm = op_def("Range")(op_def("Sub")(rank(tensor), 1), -1, -1)
    build = conjugate_transpose if conjugate and tensor.dtype.is_complex else transpose_op
    return build(tensor, perm, name=name)


def matrix_transpose(a: TensorLike, name: str = "matrix_transpose", conjugate: bool = False) -> Tensor:
    """``a`` of shape ``[..., m, n]`` as ``[..., n, m]``, optionally conjugated.

    Raises `InvalidArgumentError` below rank 2.
    """
    tensor = convert_to_tensor(a)
    dims = tensor.spec.shape
    with get_default_graph().name_scope(name):
        if dims is None:
            last = rank(tensor)
            concat, minus, steps = op_def("ConcatV2"), op_def("Sub"), op_def("Range")
            perm: Any = concat(
                [steps(0, minus(last, 2), 1), expand_dims(minus(last, 1), 0), expand_dims(minus(last, 2), 0)],
                0,
            )
        elif len(dims) < 2:
            raise InvalidArgumentError(
                f"matrix_transpose: expected a matrix or a batch of them; got {tensor!r}"
            )
        else:
            perm = [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
        return transpose(tensor, perm, conjugate=conjugate)


def swapped_with_last(x: Tensor, axis: int, what: str) -> list[int] | None:
    """The permutation of ``x``'s dimensions that swaps ``axis`` and the last, or None if they are the same.

    Raises `InvalidArgumentError` for an axis out of range, or if this depends on an unknown rank.
    """
    if x.spec.shape is None:
        if axis == -1:
            return None
        raise InvalidArgumentError(f"axis: expected -1 for {what} of unknown rank; got {axis}")
    axes = list(range(len(x.spec.shape)))
    axis = normalize_axis(axis, len(axes))
    axes[axis], axes[-1] = axes[-1], axes[axis]
    return None if axis == axes[axis] else axes


def _invert_permutation(xp: Any, x: Any, out: Any = None) -> Any:
    inverse = xp.full(x.shape, -1, x.dtype) if out is None else out
    if xp is np and x.size and (x.min() < 0 or x.max() >= x.size):
        raise InvalidArgumentError(f"expected a permutation of 0 to {x.size - 1}; got {x.tolist()}")
    inverse[...] = -1
    put_rows(xp, inverse, x, xp.arange(x.size, dtype=x.dtype))
    if xp is np and x.size and inverse.min() < 0:
        raise InvalidArgumentError(f"expected a permutation of 0 to {x.size - 1}; got {x.tolist()}")
    return inverse


invert_permutation = define_op(
    "InvertPermutation",
    "x: T in INDEX -> y: T",
    shape=lambda s: [merge(s.shapes[0], (None,))],
    kernel=_invert_permutation,
    samples=lambda rng: (sample(np.array([2, 0, 1], np.int32)), sample(np.zeros(0, np.int64))),
    doc="The vector y with ``y[x[i]] == i``. On a GPU, gaps of an x that is not a permutation become -1.",
)
