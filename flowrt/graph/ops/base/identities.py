"""Ops that return their input unchanged, or cast: identity, stop_gradient, ensure_shape, cast.

Rule of this file: ops that return their input are ``alias`` ops, so that a plan does not copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.batching_rules import BatchBuilder, Value, leading
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import takes_composites
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.node import Ref
from flowrt.graph.op_def import (
    LINEAR,
    NONDIFFERENTIABLE,
    OpDef,
    PartialValue,
    Rule,
    Sample,
    Samples,
    ShapeContext,
    SimplifyContext,
    define_op,
    returns_inputs,
    sample,
)
from flowrt.graph.op_facets import Loop, Traits, Vjp
from flowrt.graph.ops.base.kernel_output import copied, copies, delivered
from flowrt.graph.partial_value import partial_value
from flowrt.graph.shapes import Shape, as_shape, compatible, format_shape, merge
from flowrt.graph.typing import ShapeTensorLike, TensorLike
from flowrt.loops.loop_program import LoopBuilder, LoopValue

__all__ = [
    "cast", "ensure_shape", "identity", "identity_n", "stop_gradient", "to_bfloat16", "to_complex128",
    "to_complex64", "to_double", "to_float", "to_int32", "to_int64",
]  # fmt: skip


def unchanged(s: ShapeContext) -> Sequence[Shape]:
    """Shape rule of ops with an output of the shape of input 0."""
    return [s.shapes[0]]


def static_value(tensor: Tensor) -> PartialValue:
    """The statically known part of ``tensor``'s value: see `flowrt.graph.partial_value`."""
    return partial_value(tensor.graph.node, tensor.ref)


def attributes_of(op: Operation) -> dict[str, Any]:
    """The attributes that its definition names, for another operation with the same ones."""
    return {key: op.get_attr(key) for key in op.op_def.attrs}


def arrays(*more: Sample) -> Samples:
    """Samples of a few dtypes and shapes for a unary op that accepts any dtype."""
    return lambda rng: (
        sample(rng.standard_normal((2, 3))),
        sample(rng.standard_normal(()).astype(np.float32)),
        sample(rng.integers(-5, 5, (3, 1), np.int32)),
        sample(np.zeros((0, 2), np.complex64)),
        sample(np.array([True, False])),
        *more,
    )


def _identity_op(name: str, vjp: Vjp | Rule, jvp: Rule, doc: str) -> OpDef[Tensor]:
    return define_op(
        name,
        "input: T in STORED -> T",
        shape=unchanged,
        kernel=lambda xp, x: x,
        vjp=vjp,
        jvp=jvp,
        samples=arrays(),
        alias=True,
        value=lambda s: s.value(0),
        simplify=returns_inputs,
        batch=leading,
        axes="..a -> ..a",
        doc=doc,
    )


identity = _identity_op(
    "Identity",
    lambda op, dy: [dy],
    LINEAR,
    """The input as it is.

Args:
    input: A tensor of any shape and dtype.

Returns:
    A tensor with the same value.

Example:
    >>> tf.identity([1, 2]).eval()
    array([1, 2], dtype=int32)
""",
)
stop_gradient = _identity_op(
    "StopGradient",
    NONDIFFERENTIABLE,
    NONDIFFERENTIABLE,
    """The input, which counts as a constant for gradients.

    Args:
        input: A tensor.

    Returns:
        A tensor with the same value.

    Example:
        >>> x = tf.constant(3.0)
        >>> (slope,) = tf.gradients(x * tf.stop_gradient(x), x)
        >>> slope.eval()
        np.float32(3.0)
    """,
)


deep_copy_op: OpDef[Tensor] = define_op(
    "DeepCopy",
    "x: T in ANY -> y: T",
    shape=unchanged,
    kernel=lambda xp, x, out=None: copied(xp, x, out),
    vjp=lambda op, dy: [dy],
    jvp=LINEAR,
    samples=arrays(),
    batch=leading,
    axes="..a -> ..a",
    doc="The input in memory of its own.",
)


def with_layout_of(op: Operation, x: Tensor) -> Tensor:
    """``x`` in the layout that ``op`` names."""
    moved = relayout_op(x)
    named = {key: value for key, value in op.node.attrs.items() if key.startswith("_")}
    moved.op.mutate(attrs={**moved.op.node.attrs, **named})
    return moved


relayout_op: OpDef[Tensor] = define_op(
    "Relayout",
    "input: T in ANY -> T",
    shape=unchanged,
    kernel=lambda xp, input: input,
    vjp=lambda op, dy: [with_layout_of(op, dy)],
    jvp=with_layout_of,
    samples=arrays(),
    alias=True,
    value=lambda s: s.value(0),
    batch=leading,
    axes="..a -> ..a",
    doc="The input as it is, in the layout that the operation's attributes name.",
)


redistribute_op: OpDef[Tensor] = define_op(
    "Redistribute",
    "input: T in ANY -> T",
    shape=unchanged,
    kernel=lambda xp, input: input,
    vjp=lambda op, dy: [dy],
    jvp=LINEAR,
    samples=arrays(),
    alias=True,
    value=lambda s: s.value(0),
    batch=leading,
    axes="..a -> ..a",
    doc="The input as it is: the value of a variable, on its way to variables over another mesh.",
)


def _blocks(begins: Sequence[int], sizes: Sequence[int], count: int) -> list[tuple[slice, ...]]:
    rank = len(sizes) // count
    ends = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    dims = [slice(begin, end) for begin, end in zip(begins, ends, strict=True)]
    return [tuple(dims[i * rank : (i + 1) * rank]) for i in range(count)]


local_shards_op: OpDef[list[Tensor]] = define_op(
    "LocalShards",
    "input: T in ANY -> N * T",
    attrs="N: int, begins: list(int), sizes: list(int)",
    shape=lambda s: [
        tuple(part.stop - part.start for part in block)
        for block in _blocks(s.attrs["begins"], s.attrs["sizes"], s.attrs["N"])
    ],
    kernel=lambda xp, input, N, begins, sizes, out=None: copies(
        [input[block] for block in _blocks(begins, sizes, N)], out
    ),
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: [sample(rng.standard_normal((2, 3)), N=2, begins=[0, 0, 1, 0], sizes=[1, 3, 1, 3])],
    doc="Blocks of the input, each where it is in the layout that the operation names.",
)


identity_n: OpDef[list[Tensor]] = define_op(
    "IdentityN",
    "input: *T in ANY -> *T",
    shape=lambda s: s.shapes,
    kernel=lambda xp, inputs, out=None: copies(inputs, out),
    vjp=lambda op, *dys: list(dys),
    jvp=lambda op, *dxs: list(dxs),
    samples=lambda rng: [sample((rng.standard_normal(3), rng.integers(0, 9, (2, 2), np.int64)))],
    simplify=returns_inputs,
    batch=lambda b, op, values: [Value(identity(v.tensor), v.is_batched) for v in values],
    doc="The inputs unchanged, as one operation, to which a gradient for several tensors can be attached.",
)


def _refuse_gradient(op: Operation, *_: Any) -> Any:
    raise op.error(
        UnimplementedError, f"expected no gradient through this operation: {op.get_attr('message')}"
    )


prevent_gradient = define_op(
    "PreventGradient",
    "input: T in ANY -> T",
    attrs="message: string = ''",
    shape=unchanged,
    kernel=lambda xp, x: x,
    vjp=_refuse_gradient,
    jvp=_refuse_gradient,
    samples=lambda rng: [sample(rng.standard_normal(3), message="why", differentiable=False)],
    alias=True,
    simplify=returns_inputs,
    batch=leading,
    axes="..a -> ..a",
    doc="The input; asking for a gradient through it raises `UnimplementedError` with the message.",
)


def _ensure_shape(xp: Any, input: Any, shape: Shape) -> Any:
    if shape is not None and (
        len(shape) != input.ndim or any(d not in (None, n) for d, n in zip(shape, input.shape, strict=True))
    ):
        raise InvalidArgumentError(f"expected shape {format_shape(shape)}; got {list(input.shape)}")
    return input


def _simplify_ensure_shape(c: SimplifyContext) -> Sequence[Ref] | None:
    found, wanted = c.spec(c.node.inputs[0]).shape, c.node.attrs["shape"]
    return c.node.inputs if compatible(found, wanted) and merge(found, wanted) == found else None


def _batch_ensure_shape(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value]:
    dims = op.get_attr("shape")
    return b.apply(op, [values[0].tensor], shape=None if dims is None else (None, *dims))


ensure_shape_op = define_op(
    "EnsureShape",
    "input: T in ANY -> T",
    attrs="shape: shape",
    shape=lambda s: [merge(s.shapes[0], s.attrs["shape"])],
    kernel=_ensure_shape,
    vjp=lambda op, dy: [dy],
    jvp=lambda op, dx: [dx],
    samples=lambda rng: [sample(rng.standard_normal((2, 3)), shape=(None, 3))],
    alias=True,
    value=lambda s: s.value(0),
    simplify=_simplify_ensure_shape,
    batch=_batch_ensure_shape,
    doc="The input, checked at run time to have a shape.",
)


def ensure_shape(x: TensorLike, shape: ShapeTensorLike, name: str | None = None) -> Tensor:
    """``x`` with the facts of ``shape`` added; a run where they do not hold raises `InvalidArgumentError`."""
    return ensure_shape_op(x, shape=as_shape(shape), name=name)


# --- cast


def _cast(xp: Any, x: Any, DstT: DType, out: Any = None) -> Any:
    if x.dtype.kind == "c" and not DstT.is_complex:
        x = x.real
    if x.dtype == DstT.np:
        return copied(xp, x, out)
    return delivered(xp, x, DstT.np, out)


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


def _cast_loop(b: LoopBuilder, x: LoopValue, *, DstT: DType) -> LoopValue:
    if not (x.dtype.startswith("float") and DstT.is_integer):
        return b.cast(x, DstT.name)
    below, above, undefined = _out_of_range(x.dtype, DstT.name)
    end = float(2 ** (8 * DstT.np.itemsize - 1))
    is_whole = (x >= -end) & (x < end)
    whole = b.cast(b.select(is_whole, x, 0.0), DstT.name)
    outside = b.select(
        x < 0, b.const(below, DstT.name), b.select(x > 0, b.const(above, DstT.name), undefined)
    )
    return b.select(is_whole, whole, outside)


@functools.cache
def _out_of_range(source: str, target: str) -> list[int]:
    """NumPy's results for floats below, above and outside (NaN) the range of ``target``: C leaves them to the
    machine.
    """
    with np.errstate(invalid="ignore"):
        made: list[int] = np.array([-np.inf, np.inf, np.nan], source).astype(target).tolist()
    return made


NUMBERS_AND_BOOL = dtypes.NUMERIC | {dtypes.bool_}


cast_op = define_op(
    "Cast",
    "x: SrcT in NUMERIC | bool -> y: DstT in NUMERIC | bool",
    attrs="DstT: type, Truncate: bool = False",
    shape=unchanged,
    kernel=_cast,
    vjp=_cast_vjp,
    jvp=_cast_jvp,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3)), DstT=dtypes.float64),
        sample(rng.standard_normal((2, 3)) * 4, DstT=dtypes.int32, differentiable=False),
        sample(rng.standard_normal(4), DstT=dtypes.bfloat16, differentiable=False),
        sample(np.array([1 + 2j, 0]), DstT=dtypes.float32),
        sample(np.array([1 + 2j, 1j, 0]), DstT=dtypes.bool_),
        sample(np.array(3, np.int8), DstT=dtypes.complex64),
        sample(np.zeros((0,), np.float16), DstT=dtypes.uint8),
    ),
    traits=Traits(elementwise=True, linear_in=(0,)),
    value=_cast_value,
    simplify=lambda c: c.node.inputs if c.node.attrs["SrcT"] is c.node.attrs["DstT"] else None,
    loop=Loop(_cast_loop),
    doc="The input's elements as another dtype: floats are cut towards zero, complex numbers become real.",
)


@takes_composites
def cast(x: TensorLike, dtype: DTypeLike, name: str | None = None) -> Tensor:
    """``x`` with elements of ``dtype``; a tensor that has that dtype is returned as it is.

    Floats become integers towards zero, complex numbers real by dropping the imaginary part first, numbers
    bool as ``!= 0``.

    Args:
        x: A tensor of numbers or bools.
        dtype: The dtype of the result.

    Returns:
        A tensor of the shape of ``x``.

    Example:
        >>> tf.cast([1.7, -1.7], tf.int32).eval()
        array([ 1, -1], dtype=int32)
    """
    target = as_dtype(dtype)
    tensor = convert_to_tensor(x)
    if tensor.dtype is target:
        return tensor
    return cast_op(tensor, DstT=target, name=name)


def _cast_to(dtype: DType, function_name: str, name: str) -> Callable[..., Tensor]:
    """The function of older scripts that names its operation ``name``."""

    def function(x: Any, name: str = name) -> Tensor:
        return cast(x, dtype, name)

    function.__name__ = function.__qualname__ = function_name
    function.__doc__ = (
        f"``x`` as {dtype.name}: the older name of `cast`.\n\n"
        "Args:\n    x: A tensor of numbers or bools.\n\n"
        f"Returns:\n    A tensor of {dtype.name}, of the shape of ``x``.\n\n"
        f"Example:\n    >>> tf.{function_name}([1, 2]).dtype\n    {dtype!r}"
    )
    return function


to_float = _cast_to(dtypes.float32, "to_float", "ToFloat")
to_double = _cast_to(dtypes.float64, "to_double", "ToDouble")
to_int32 = _cast_to(dtypes.int32, "to_int32", "ToInt32")
to_int64 = _cast_to(dtypes.int64, "to_int64", "ToInt64")
to_bfloat16 = _cast_to(dtypes.bfloat16, "to_bfloat16", "ToBFloat16")
to_complex64 = _cast_to(dtypes.complex64, "to_complex64", "ToComplex64")
to_complex128 = _cast_to(dtypes.complex128, "to_complex128", "ToComplex128")


# --- reshape and its kin


def target_shape(s: ShapeContext, position: int) -> Shape:
    """The shape requested by host input ``position``, as far as it is known; -1 is kept."""
    vector = s.shapes[position]
    if vector is not None and len(vector) != 1:
        raise InvalidArgumentError(
            f"{s.op.inputs[position].name}: expected a vector; got shape {format_shape(vector)}"
        )
    value = s.value(position)
    if value is None:
        return None if vector is None or vector[0] is None else (None,) * vector[0]
    return value


def result_shape(s: ShapeContext, position: int = 0) -> Shape:
    """`target_shape` of an op that makes such a result. Raises `InvalidArgumentError` below 0."""
    dims = target_shape(s, position)
    if dims is not None and any(d is not None and d < 0 for d in dims):
        name = s.op.inputs[position].name
        raise InvalidArgumentError(f"{name}: expected dimensions of at least 0; got {list(dims)}")
    return dims
