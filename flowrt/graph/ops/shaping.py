"""Ops that keep every element and change how they are seen: identity, cast, shape, reshape, transpose, fill, broadcast.

Rules of this file: a static shape becomes a constant when the graph is built (`shape`, `size`, `rank`, `zeros_like`), so
that gradients written with these functions cost nothing at run time when shapes are known; what returns a view of its
input says ``alias``; ops that take part in shape arithmetic have a ``value`` rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, as_dtype
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.build import convert_to_tensor
from flowrt.graph.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import (
    LINEAR,
    NONDIFFERENTIABLE,
    PartialValue,
    Sample,
    ShapeContext,
    attr_bool,
    attr_ints,
    attr_shape,
    attr_string,
    attr_type,
    define_op,
    op_def,
    sample,
)
from flowrt.graph.ops.constant import constant
from flowrt.graph.partial_value import partial_value
from flowrt.graph.shapes import (
    Shape,
    as_shape,
    broadcast,
    format_shape,
    is_static,
    merge,
    normalize_axis,
    num_elements,
)

CONSTANT_LIMIT = 1000
"""Elements; `zeros` and `ones` above it are a Fill, so that the graph stays small (TensorFlow's number)."""

Samples = Callable[[np.random.Generator], Iterable[Sample]]


def unchanged(s: ShapeContext) -> Sequence[Shape]:
    """The shape rule of ops whose output has the shape of input 0."""
    return [s.shapes[0]]


def static_value(tensor: Tensor) -> PartialValue:
    """What is known of ``tensor``'s value while the graph is built: see `flowrt.graph.partial_value`."""
    return partial_value(tensor.graph.node, tensor.ref)


def arrays(*more: Sample) -> Samples:
    """Samples of a few dtypes and shapes for an op of one input that takes anything."""
    return lambda rng: (
        sample(rng.standard_normal((2, 3))),
        sample(rng.standard_normal(()).astype(np.float32)),
        sample(rng.integers(-5, 5, (3, 1), np.int32)),
        sample(np.zeros((0, 2), np.complex64)),
        sample(np.array([True, False])),
        *more,
    )


identity = define_op(
    "Identity",
    "input: T -> T",
    types={"T": dtypes.ANY},
    shape=unchanged,
    kernel=lambda xp, x: x,
    vjp=lambda op, dy: [dy],
    jvp=LINEAR,
    samples=arrays(),
    alias=True,
    value=lambda s: s.value(0),
    doc="The input as it is.",
)

identity_n = define_op(
    "IdentityN",
    "input: *T -> *T",
    types={"T": dtypes.ANY},
    shape=lambda s: s.shapes,
    kernel=lambda xp, inputs: list(inputs),
    vjp=lambda op, *dys: list(dys),
    jvp=lambda op, *dxs: list(dxs),
    samples=lambda rng: [sample((rng.standard_normal(3), rng.integers(0, 9, (2, 2), np.int64)))],
    doc="The inputs as they are, all at once: one place to hang a gradient on several tensors.",
)

stop_gradient = define_op(
    "StopGradient",
    "input: T -> T",
    types={"T": dtypes.ANY},
    shape=unchanged,
    kernel=lambda xp, x: x,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=arrays(),
    alias=True,
    value=lambda s: s.value(0),
    doc="The input, which counts as a constant for gradients.",
)


def _refuse_gradient(op: Operation, *_: Any) -> Any:
    raise op.error(UnimplementedError, f"expected no gradient through this operation: {op.get_attr('message')}")


prevent_gradient = define_op(
    "PreventGradient",
    "input: T -> T",
    types={"T": dtypes.ANY},
    attrs={"message": attr_string("")},
    shape=unchanged,
    kernel=lambda xp, x: x,
    vjp=_refuse_gradient,
    jvp=_refuse_gradient,
    samples=lambda rng: [sample(rng.standard_normal(3), message="why", differentiable=False)],
    alias=True,
    doc="The input; asking for a gradient through it raises `UnimplementedError` with the message.",
)


def _ensure_shape(xp: Any, input: Any, shape: Shape) -> Any:
    if shape is not None and (
        len(shape) != input.ndim or any(d not in (None, n) for d, n in zip(shape, input.shape, strict=True))
    ):
        raise InvalidArgumentError(f"expected shape {format_shape(shape)}; got {list(input.shape)}")
    return input


ensure_shape_op = define_op(
    "EnsureShape",
    "input: T -> T",
    types={"T": dtypes.ANY},
    attrs={"shape": attr_shape()},
    shape=lambda s: [merge(s.shapes[0], s.attrs["shape"])],
    kernel=_ensure_shape,
    vjp=lambda op, dy: [dy],
    jvp=lambda op, dx: [dx],
    samples=lambda rng: [sample(rng.standard_normal((2, 3)), shape=(None, 3))],
    alias=True,
    value=lambda s: s.value(0),
    doc="The input, checked at run time to have a shape.",
)


def ensure_shape(x: Any, shape: Any, name: str | None = None) -> Tensor:
    """``x`` with the facts of ``shape`` added; a run in which they do not hold raises `InvalidArgumentError`."""
    ensured: Tensor = ensure_shape_op(x, shape=as_shape(shape), name=name)
    return ensured


# --- cast


def _cast(xp: Any, x: Any, DstT: DType, out: Any = None) -> Any:
    if x.dtype.kind == "c" and not DstT.is_complex:
        x = (x != 0) if DstT.is_bool else x.real
    if out is None:
        return x.astype(DstT.np)
    xp.copyto(out, x, casting="unsafe")
    return out


def _cast_value(s: ShapeContext) -> PartialValue:
    dtype, value = s.attrs["DstT"], s.value(0)
    if value is None or dtype.is_complex:
        return None
    return _map_value(int if dtype.is_integer else bool if dtype.is_bool else float, value)


def _map_value(function: Callable[[Any], Any], value: PartialValue) -> PartialValue:
    if isinstance(value, tuple):
        return tuple(_map_value(function, v) for v in value)
    return None if value is None else function(value)


def _is_inexact(dtype: DType) -> bool:
    return dtype.is_floating or dtype.is_complex


def _cast_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    source = op.inputs[0].dtype
    return [cast(dy, source) if _is_inexact(source) else None]


def _cast_jvp(op: Operation, dx: Tensor) -> list[Tensor | None]:
    target = op.outputs[0].dtype
    return [cast(dx, target) if _is_inexact(target) else None]


_NUMBERS = dtypes.NUMERIC | {dtypes.bool_}

cast_op = define_op(
    "Cast",
    "x: SrcT -> DstT",
    types={"SrcT": _NUMBERS, "DstT": _NUMBERS},
    attrs={"DstT": attr_type(), "Truncate": attr_bool(False)},
    shape=unchanged,
    kernel=_cast,
    vjp=_cast_vjp,
    jvp=_cast_jvp,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3)), DstT=dtypes.float64),
        sample(rng.standard_normal((2, 3)) * 4, DstT=dtypes.int32),
        sample(rng.standard_normal(4), DstT=dtypes.bfloat16, differentiable=False),
        sample(np.array([1 + 2j, 0]), DstT=dtypes.float32),
        sample(np.array([1 + 2j, 1j, 0]), DstT=dtypes.bool_),
        sample(np.array(3, np.int8), DstT=dtypes.complex64),
        sample(np.zeros((0,), np.float16), DstT=dtypes.uint8),
    ),
    elementwise=True,
    value=_cast_value,
    doc="The input's elements as another dtype: floats are cut towards zero, complex numbers lose the imaginary part.",
)


def cast(x: Any, dtype: Any, name: str | None = None) -> Tensor:
    """``x`` with elements of ``dtype``; a tensor that has that dtype is returned as it is.

    Floats become integers towards zero, complex numbers real by dropping the imaginary part, numbers bool as ``!= 0``.
    """
    target = as_dtype(dtype)
    tensor = convert_to_tensor(x)
    if tensor.dtype is target:
        return tensor
    result: Tensor = cast_op(tensor, DstT=target, name=name)
    return result


def to_float(x: Any, name: str = "ToFloat") -> Tensor:
    """``x`` as float32."""
    return cast(x, dtypes.float32, name)


def to_double(x: Any, name: str = "ToDouble") -> Tensor:
    """``x`` as float64."""
    return cast(x, dtypes.float64, name)


def to_int32(x: Any, name: str = "ToInt32") -> Tensor:
    """``x`` as int32."""
    return cast(x, dtypes.int32, name)


def to_int64(x: Any, name: str = "ToInt64") -> Tensor:
    """``x`` as int64."""
    return cast(x, dtypes.int64, name)


def to_bfloat16(x: Any, name: str = "ToBFloat16") -> Tensor:
    """``x`` as bfloat16."""
    return cast(x, dtypes.bfloat16, name)


def to_complex64(x: Any, name: str = "ToComplex64") -> Tensor:
    """``x`` as complex64."""
    return cast(x, dtypes.complex64, name)


def to_complex128(x: Any, name: str = "ToComplex128") -> Tensor:
    """``x`` as complex128."""
    return cast(x, dtypes.complex128, name)


# --- shape, size, rank: their outputs are host values, made by NumPy on every device

shape_op = define_op(
    "Shape",
    "input: T -> host out_type",
    types={"T": dtypes.ANY, "out_type": dtypes.INDEX},
    attrs={"out_type": attr_type(dtypes.int32)},
    shape=lambda s: [(None if s.shapes[0] is None else len(s.shapes[0]),)],
    kernel=lambda xp, input, out_type: np.array(np.shape(input), out_type.np),
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=arrays(),
    value=lambda s: s.shapes[0],
    doc="The input's dimensions, as a vector.",
)

shape_n = define_op(
    "ShapeN",
    "input: N * T -> host N * out_type",
    types={"T": dtypes.ANY, "out_type": dtypes.INDEX},
    attrs={"out_type": attr_type(dtypes.int32)},
    shape=lambda s: [(None if shape is None else len(shape),) for shape in s.shapes],
    kernel=lambda xp, input, out_type: [np.array(np.shape(x), out_type.np) for x in input],
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: [sample((rng.standard_normal((2, 3)), rng.standard_normal(())))],
    doc="The dimensions of each input, as vectors.",
)

size_op = define_op(
    "Size",
    "input: T -> host out_type",
    types={"T": dtypes.ANY, "out_type": dtypes.INDEX},
    attrs={"out_type": attr_type(dtypes.int32)},
    shape=lambda s: [()],
    kernel=lambda xp, input, out_type: np.array(np.size(input), out_type.np),
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=arrays(),
    value=lambda s: num_elements(s.shapes[0]),
    doc="The number of elements.",
)

rank_op = define_op(
    "Rank",
    "input: T -> host int32",
    types={"T": dtypes.ANY},
    shape=lambda s: [()],
    kernel=lambda xp, input: np.array(np.ndim(input), np.int32),
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=arrays(),
    value=lambda s: None if s.shapes[0] is None else len(s.shapes[0]),
    doc="The number of dimensions.",
)


def shape(input: Any, name: str | None = None, out_type: Any = dtypes.int32) -> Tensor:
    """The shape of ``input`` at run time, a vector of ``out_type``; a constant when it is known already."""
    tensor, dtype = convert_to_tensor(input), as_dtype(out_type or dtypes.int32)
    if is_static(tensor.spec.shape):
        return constant(np.array(tensor.spec.shape, dtype.np), name=name or "Shape")
    result: Tensor = shape_op(tensor, out_type=dtype, name=name)
    return result


def size(input: Any, name: str | None = None, out_type: Any = dtypes.int32) -> Tensor:
    """The number of elements of ``input``, a scalar of ``out_type``; a constant when it is known already."""
    tensor, dtype = convert_to_tensor(input), as_dtype(out_type)
    count = num_elements(tensor.spec.shape)
    if count is not None:
        return constant(np.array(count, dtype.np), name=name or "Size")
    result: Tensor = size_op(tensor, out_type=dtype, name=name)
    return result


def rank(input: Any, name: str | None = None) -> Tensor:
    """The number of dimensions of ``input``, an int32 scalar; a constant when it is known already."""
    tensor = convert_to_tensor(input)
    if tensor.spec.shape is not None:
        return constant(np.array(len(tensor.spec.shape), np.int32), name=name or "Rank")
    result: Tensor = rank_op(tensor, name=name)
    return result


# --- reshape and its kin


def _target_shape(s: ShapeContext, position: int) -> Shape:
    """The shape that host input ``position`` asks for, as far as it is known; -1 stands as it is."""
    vector = s.shapes[position]
    if vector is not None and len(vector) != 1:
        raise InvalidArgumentError(f"{s.op.inputs[position].name}: expected a vector; got shape {format_shape(vector)}")
    value = s.value(position)
    if value is None:
        return None if vector is None or vector[0] is None else (None,) * vector[0]
    wanted: Shape = value
    return wanted


def _reshape_shape(s: ShapeContext) -> Sequence[Shape]:
    target = _target_shape(s, 1)
    if target is None or None in target:
        return [None if target is None else tuple(None if d == -1 else d for d in target)]
    if target.count(-1) > 1 or any(d is not None and d < -1 for d in target):
        raise InvalidArgumentError(f"shape: expected dimensions of at least 0 and at most one -1; got {list(target)}")
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


reshape = define_op(
    "Reshape",
    "tensor: T, shape: host Tshape -> T",
    types={"T": dtypes.ANY, "Tshape": dtypes.INDEX},
    shape=_reshape_shape,
    kernel=lambda xp, tensor, shape: tensor.reshape(shape),
    vjp=lambda op, dy: [reshape(dy, shape(op.inputs[0])), None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3)), np.array([3, -1], np.int32)),
        sample(rng.standard_normal((1, 1)), np.zeros(0, np.int64)),
        sample(rng.integers(0, 9, ()), np.array([1, 1], np.int32)),
        sample(np.zeros((0, 4), np.complex64), np.array([2, 0], np.int32)),
    ),
    alias=True,
    value=_reshape_value,
    doc="The same elements, row by row, in another shape; one dimension may be -1: what is left.",
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
    "input: T, dim: host Tdim -> T",
    types={"T": dtypes.ANY, "Tdim": dtypes.INDEX},
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
    doc="The input with a dimension of 1 put in before ``dim``.",
)


def expand_dims(input: Any, axis: Any = None, name: str | None = None, dim: Any = None) -> Tensor:
    """``input`` with a dimension of 1 put in at ``axis``; negative axes count from behind the last one."""
    result: Tensor = expand_dims_op(input, renamed_argument("axis", axis, "dim", dim), name=name)
    return result


def renamed_argument(name: str, value: Any, old_name: str, old_value: Any) -> Any:
    """The value of an argument that has a deprecated spelling too. Raises `InvalidArgumentError` when both are given."""
    if old_value is None:
        return value
    if value is not None:
        raise InvalidArgumentError(f"expected one of {name!r} and its old spelling {old_name!r}; got both")
    return old_value


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


squeeze_op = define_op(
    "Squeeze",
    "input: T -> T",
    types={"T": dtypes.ANY},
    attrs={"squeeze_dims": attr_ints(())},
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
    doc="The input without those (or all) dimensions that are 1.",
)


def squeeze(input: Any, axis: Any = None, name: str | None = None, squeeze_dims: Any = None) -> Tensor:
    """``input`` without the dimensions of 1: all of them, or those of ``axis`` (an int or a list of ints)."""
    axes = renamed_argument("axis", axis, "squeeze_dims", squeeze_dims)
    axes = () if axes is None else axes if isinstance(axes, Iterable) else (axes,)
    result: Tensor = squeeze_op(input, squeeze_dims=axes, name=name)
    return result


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


transpose_op = define_op(
    "Transpose",
    "x: T, perm: host Tperm -> T",
    types={"T": dtypes.ANY, "Tperm": dtypes.INDEX},
    shape=_transpose_shape,
    kernel=lambda xp, x, perm: xp.transpose(x, perm),
    vjp=lambda op, dy: [transpose_op(dy, _inverse(op.inputs[1])), None],
    jvp=LINEAR,
    samples=_permuted,
    alias=True,
    doc="The input with its dimensions in the order ``perm``.",
)

conjugate_transpose = define_op(
    "ConjugateTranspose",
    "x: T, perm: host Tperm -> T",
    types={"T": dtypes.NUMERIC, "Tperm": dtypes.INDEX},
    shape=_transpose_shape,
    kernel=lambda xp, x, perm: xp.conjugate(xp.transpose(x, perm)),
    vjp=lambda op, dy: [conjugate_transpose(dy, _inverse(op.inputs[1])), None],
    jvp=LINEAR,
    samples=_permuted,
    doc="The complex conjugate of the input with its dimensions in the order ``perm``.",
)


def transpose(a: Any, perm: Any = None, name: str = "transpose", conjugate: bool = False) -> Tensor:
    """``a`` with its dimensions in the order ``perm`` (reversed by default), conjugated if asked and complex."""
    tensor = convert_to_tensor(a)
    if perm is None:
        perm = _reversed_axes(tensor)
    build = conjugate_transpose if conjugate and tensor.dtype.is_complex else transpose_op
    result: Tensor = build(tensor, perm, name=name)
    return result


def _reversed_axes(tensor: Tensor) -> Any:
    if tensor.spec.shape is not None:
        return np.arange(len(tensor.spec.shape), dtype=np.int32)[::-1]
    dims = rank(tensor)
    return op_def("Range")(op_def("Sub")(dims, 1), -1, -1)


def matrix_transpose(a: Any, name: str = "matrix_transpose", conjugate: bool = False) -> Tensor:
    """``a`` of shape ``[..., m, n]`` as ``[..., n, m]``, conjugated if asked. Raises `InvalidArgumentError` below rank 2."""
    tensor = convert_to_tensor(a)
    dims = tensor.spec.shape
    with get_default_graph().name_scope(name):
        if dims is None:
            last = rank(tensor)
            concat, minus, steps = op_def("ConcatV2"), op_def("Sub"), op_def("Range")
            perm = concat([steps(0, minus(last, 2), 1), expand_dims(minus(last, 1), 0), expand_dims(minus(last, 2), 0)], 0)
        elif len(dims) < 2:
            raise InvalidArgumentError(f"matrix_transpose: expected a matrix or a batch of them; got {tensor!r}")
        else:
            perm = [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
        return transpose(tensor, perm, conjugate=conjugate)


def _invert_permutation(xp: Any, x: Any, out: Any = None) -> Any:
    inverse = xp.full(x.shape, -1, x.dtype) if out is None else out
    if x.size and (x.min() < 0 or x.max() >= x.size):
        raise InvalidArgumentError(f"expected a permutation of 0 to {x.size - 1}; got {x.tolist()}")
    inverse[...] = -1
    inverse[x] = xp.arange(x.size, dtype=x.dtype)
    if x.size and inverse.min() < 0:
        raise InvalidArgumentError(f"expected a permutation of 0 to {x.size - 1}; got {x.tolist()}")
    return inverse


invert_permutation = define_op(
    "InvertPermutation",
    "x: T -> T",
    types={"T": dtypes.INDEX},
    shape=lambda s: [merge(s.shapes[0], (None,))],
    kernel=_invert_permutation,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: (sample(np.array([2, 0, 1], np.int32)), sample(np.zeros(0, np.int64))),
    doc="The vector y with ``y[x[i]] == i``.",
)


# --- fill, zeros, ones


def _fill(xp: Any, dims: Any, value: Any, T: DType, out: Any = None) -> Any:
    if out is None:
        return xp.full(dims, value, T.np)
    out[...] = value
    return out


def _fill_shape(s: ShapeContext) -> Sequence[Shape]:
    if s.shapes[1] not in (None, ()):
        raise InvalidArgumentError(f"value: expected a scalar; got shape {format_shape(s.shapes[1])}")
    dims = _target_shape(s, 0)
    if dims is not None and any(d is not None and d < 0 for d in dims):
        raise InvalidArgumentError(f"dims: expected dimensions of at least 0; got {list(dims)}")
    return [dims]


def _fill_value(s: ShapeContext) -> PartialValue:
    dims, value = s.value(0), s.value(1)
    if dims is None or None in dims or len(dims) > 1:
        return None
    return (value,) * dims[0] if dims else value


fill = define_op(
    "Fill",
    "dims: host index_type, value: T -> T",
    types={"T": dtypes.ANY, "index_type": dtypes.INDEX},
    shape=_fill_shape,
    kernel=_fill,
    vjp=lambda op, dy: [None, op_def("Sum")(reshape(dy, [-1]), [0])],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(np.array([2, 3], np.int32), rng.standard_normal(())),
        sample(np.zeros(0, np.int64), np.array(2.5)),
        sample(np.array([0, 4], np.int32), np.array(3, np.int8)),
        sample(np.array([2], np.int32), np.array(b"x", object)),
    ),
    value=_fill_value,
    doc="A tensor of shape ``dims`` whose elements are all ``value``.",
)


def _filled(shape: Any, number: int, dtype: DType, name: str) -> Tensor:
    value = np.array(b"" if dtype is dtypes.string else number, dtype.np)
    if isinstance(shape, Tensor) or not _is_plain_shape(shape):
        filled: Tensor = fill(shape, value, name=name)
        return filled
    dims = as_shape(shape)
    count = num_elements(dims)
    if dims is None or count is None:
        raise InvalidArgumentError(f"{name}: expected a fully defined shape; got {format_shape(dims)}")
    if count < CONSTANT_LIMIT:
        return constant(np.full(dims, value, dtype.np), name=name)  # type: ignore[arg-type]
    large: Tensor = fill(np.array(dims, np.int64 if max(dims) >= 2**31 else np.int32), value, name=name)  # type: ignore[operator, type-var]
    return large


def _is_plain_shape(shape: Any) -> bool:
    if isinstance(shape, (list, tuple)):
        return not any(isinstance(d, Tensor) or hasattr(d, "__flowrt_tensor__") for d in shape)
    return not hasattr(shape, "__flowrt_tensor__")


def zeros(shape: Any, dtype: Any = dtypes.float32, name: str | None = None) -> Tensor:
    """Zeros (False, empty strings) of ``shape``, a shape or an integer vector."""
    return _filled(shape, 0, as_dtype(dtype), name or "zeros")


def ones(shape: Any, dtype: Any = dtypes.float32, name: str | None = None) -> Tensor:
    """Ones (True) of ``shape``, a shape or an integer vector."""
    return _filled(shape, 1, as_dtype(dtype), name or "ones")


def _full_like(xp: Any, x: Any, number: int, out: Any) -> Any:
    if out is None:
        return xp.full(x.shape, number, x.dtype)
    out.fill(number)
    return out


zeros_like_op = define_op(
    "ZerosLike",
    "x: T -> T",
    types={"T": _NUMBERS},
    shape=unchanged,
    kernel=lambda xp, x, out=None: _full_like(xp, x, 0, out),
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=arrays(),
    elementwise=True,
    doc="Zeros of the input's shape and dtype.",
)

ones_like_op = define_op(
    "OnesLike",
    "x: T -> T",
    types={"T": _NUMBERS},
    shape=unchanged,
    kernel=lambda xp, x, out=None: _full_like(xp, x, 1, out),
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=arrays(),
    elementwise=True,
    doc="Ones of the input's shape and dtype.",
)


def zeros_like(tensor: Any, dtype: Any = None, name: str | None = None, optimize: bool = True) -> Tensor:
    """Zeros of ``tensor``'s shape and dtype (or ``dtype``); without `shape` at run time if ``optimize`` and it is known."""
    return _filled_like(tensor, 0, dtype, name or "zeros_like", optimize)


def ones_like(tensor: Any, dtype: Any = None, name: str | None = None, optimize: bool = True) -> Tensor:
    """Ones of ``tensor``'s shape and dtype (or ``dtype``); without `shape` at run time if ``optimize`` and it is known."""
    return _filled_like(tensor, 1, dtype, name or "ones_like", optimize)


def _filled_like(tensor: Any, number: int, dtype: Any, name: str, optimize: bool) -> Tensor:
    tensor = convert_to_tensor(tensor)
    target = tensor.dtype if dtype is None else as_dtype(dtype)
    if optimize and is_static(tensor.spec.shape):
        return _filled(tensor.spec.shape, number, target, name)
    if target is tensor.dtype and target in _NUMBERS:
        like: Tensor = (ones_like_op if number else zeros_like_op)(tensor, name=name)
        return like
    with get_default_graph().name_scope(name):
        return _filled(shape(tensor), number, target, name)


# --- broadcast


def _broadcast_to_shape(s: ShapeContext) -> Sequence[Shape]:
    target = _target_shape(s, 1)
    if target is not None and s.shapes[0] is not None:
        wider = broadcast(s.shapes[0], target)
        assert wider is not None
        if len(wider) != len(target) or any(t not in (None, w) for w, t in zip(wider, target, strict=True)):
            raise InvalidArgumentError(f"expected a shape that {format_shape(s.shapes[0])} widens to; got {list(target)}")
    return [target]


def _broadcast_to(xp: Any, input: Any, shape: Any, out: Any = None) -> Any:
    if out is None:
        return xp.array(xp.broadcast_to(input, shape))  # its own memory: the view is read-only and has zero strides
    xp.copyto(out, input)
    return out


broadcast_to = define_op(
    "BroadcastTo",
    "input: T, shape: host Tidx -> T",
    types={"T": dtypes.ANY, "Tidx": dtypes.INDEX},
    shape=_broadcast_to_shape,
    kernel=_broadcast_to,
    vjp=lambda op, dy: [unbroadcast(dy, op.inputs[0]), None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 1)), np.array([4, 2, 3], np.int32)),
        sample(rng.standard_normal(()), np.array([2], np.int64)),
        sample(np.array([True]), np.array([0], np.int32)),
        sample(np.ones((2, 1), np.complex64), np.array([2, 2], np.int32)),
    ),
    doc="The input repeated along new dimensions and those that are 1, to ``shape``.",
)


def unbroadcast(gradient: Tensor, like: Tensor, other: Tensor | None = None) -> Tensor:
    """``gradient``, of the shape that ``like`` was broadcast to, summed over the broadcast axes to ``like``'s shape.

    ``other`` is the tensor that ``like`` was combined with, when there is just one: it can tell that an unknown
    dimension was not broadcast. No op is added when nothing was, one when shapes say what was.
    """
    axes = _broadcast_axes(gradient.spec.shape, like.spec.shape, None if other is None else other.spec.shape)
    if axes == ():
        return gradient
    sum_op = op_def("Sum")
    if axes is None:
        over = op_def("BroadcastGradientArgs")(shape(like), shape(gradient))[0]
        result: Tensor = reshape(sum_op(gradient, over), shape(like))
        return result
    new = len(gradient.spec.shape or ()) - len(like.spec.shape or ())
    keep = new == 0
    total: Tensor = sum_op(gradient, np.array(axes, np.int32), keep_dims=keep)
    return total if keep or len(axes) == new else reshape(total, shape(like))  # type: ignore[no-any-return]


def _broadcast_axes(wide: Shape, narrow: Shape, other: Shape) -> tuple[int, ...] | None:
    """The axes of ``wide`` along which ``narrow`` was repeated to fit ``other``, or None when the shapes do not tell."""
    if narrow is None and other == ():
        return ()
    if wide is None or narrow is None:
        return None
    new = len(wide) - len(narrow)
    others = None if other is None else (1,) * (len(wide) - len(other)) + other
    axes = list(range(new))
    for axis, dim in enumerate(narrow, new):
        if dim == 1 and wide[axis] != 1:
            axes.append(axis)
        elif dim is None and wide[axis] != 1 and (others is None or others[axis] != 1):
            return None
    return tuple(axes)
