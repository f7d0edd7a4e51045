"""Slicing: parts of a tensor by ranges, and ``tensor[...]``.

Two ideas carry this file. A strided slice's begin, end, strides and five masks are NumPy's basic indexing in
another spelling: `_index` translates them, and kernels and partial values just index. And a slice is a view
of its input (``alias``); its gradient puts the incoming one back into zeros (StridedSliceGrad).
"""

from __future__ import annotations

import builtins
import contextlib
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.batching_rules import in_front
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import LINEAR, OpDef, PartialValue, Sample, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Traits
from flowrt.graph.ops.base.axes import whole_along
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import add_v2
from flowrt.graph.partial_value import as_host_value
from flowrt.graph.shapes import Shape, format_shape, is_static
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, TensorLike

# --- slice: begin and size


def check_slice(dims: Sequence[int | None], begin: Sequence[int | None], size: Sequence[int | None]) -> None:
    """Refuse a range that leaves its dimension, as far as the numbers are known."""
    if not len(dims) == len(begin) == len(size):
        counts = f"{len(begin)} and {len(size)}"
        raise InvalidArgumentError(
            f"expected one begin and size for each of {len(dims)} dimensions; got {counts}"
        )
    for axis, (dim, first, count) in enumerate(zip(dims, begin, size, strict=True)):
        if first is not None and (first < 0 or (dim is not None and first > dim)):
            raise InvalidArgumentError(f"begin[{axis}]: expected a position in [0, {dim}]; got {first}")
        left = math.inf if dim is None or first is None else dim - first
        if count is not None and not -1 <= count <= left:
            raise InvalidArgumentError(f"size[{axis}]: expected -1 or a size up to {left}; got {count}")


def _slice(xp: Any, input: Any, begin: tuple[int, ...], size: tuple[int, ...]) -> Any:
    check_slice(input.shape, begin, size)
    ends = [b + s if s >= 0 else None for b, s in zip(begin, size, strict=True)]
    return input[(*map(builtins.slice, begin, ends), ...)]


def _slice_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, begin, size = s.shapes[0], s.value(1), s.value(2)
    lengths = [*([] if dims is None else [len(dims)]), *_known_lengths(s, 1, 3)]
    if not lengths:
        return [None]
    unknown = (None,) * lengths[0]
    dims, begin, size = dims or unknown, begin or unknown, size or unknown
    check_slice(dims, begin, size)
    return [tuple(map(_slice_length, dims, begin, size))]


def _known_lengths(s: ShapeContext, first: int, last: int) -> list[int]:
    """The lengths of the vectors that are inputs ``first`` to ``last - 1``, by values and shapes. Raises
    `InvalidArgumentError` for what is no vector: an empty matrix has the value of an empty vector.
    """
    values, shapes = [s.value(i) for i in range(first, last)], s.shapes[first:last]
    for dims in shapes:
        if dims is not None and len(dims) != 1:
            raise InvalidArgumentError(f"expected vectors of places; got shape {format_shape(dims)}")
    known = [v[0] for v in shapes if v is not None and v[0] is not None]
    return [len(v) for v in values if v is not None] + known


def _slice_length(dim: int | None, begin: int | None, size: int | None) -> int | None:
    if size != -1:
        return size
    return None if dim is None or begin is None else dim - begin


def _slice_value(s: ShapeContext) -> PartialValue:
    value, begin, size = s.value(0), s.value(1), s.value(2)
    if value is None or not _known(begin) or not _known(size):
        return None
    return as_host_value(_slice(np, _known_array(value, s.shapes[0]), begin, size))


def _known_array(value: PartialValue, dims: Shape) -> Any:
    """A partial value as an array; ``dims`` gives its shape, which an empty nested tuple does not have."""
    array = np.array(value, object)
    return array.reshape(dims) if is_static(dims) else array


def _known(value: PartialValue) -> bool:
    return value is not None and None not in value


def _slice_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    x, begin, _ = op.inputs
    end = add_v2(begin, shape(dy, out_type=begin.dtype))
    dims = shape(x, out_type=begin.dtype)
    return [strided_slice_grad(dims, begin, end, ones_like(begin), dy), None, None]


def _sliced(s: ShapeContext) -> list[int] | None:
    """The dimensions of which only a part is taken."""
    begin, size, dims = s.value(1), s.value(2), s.shapes[0]
    if begin is None or size is None or dims is None:
        return None
    taken = zip(begin, size, dims, strict=True)
    return [i for i, (first, count, dim) in enumerate(taken) if first != 0 or count not in (-1, dim)]


slice_op: OpDef[Tensor] = define_op(
    "Slice",
    "input: T in STORED, begin: host Index in INDEX, size: host shape Index -> T",
    shape=_slice_shape,
    kernel=_slice,
    vjp=_slice_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((3, 4)), np.array([1, 0], np.int32), np.array([2, 3], np.int32)),
        sample(rng.standard_normal((3, 4)), np.array([1, 4], np.int64), np.array([-1, 0], np.int64)),
        sample(rng.standard_normal(()), np.zeros(0, np.int32), np.zeros(0, np.int32)),
        sample(np.array([b"a", b"b"], object), np.array([1], np.int32), np.array([-1], np.int32)),
    ),
    alias=True,
    value=_slice_value,
    batch=in_front({1: 0, 2: -1}),
    axes=whole_along(_sliced),
    doc="The block of ``size`` that starts at ``begin``; a size of -1 extends to the end.",
)


def slice(input_: TensorLike, begin: NumericLike, size: NumericLike, name: str | None = None) -> Tensor:
    """A block of a tensor.

    Args:
        input_: A tensor.
        begin: The block's first element, a vector with one number per dimension.
        size: The block's shape; -1 extends to the end of a dimension.

    Returns:
        A tensor of shape ``size``.

    Raises:
        InvalidArgumentError: The block is out of bounds.

    Example:
        >>> tf.slice([1, 2, 3, 4], begin=[1], size=[2]).eval()
        array([2, 3], dtype=int32)
    """
    return slice_op(input_, begin, size, name=name)


# --- strided slice


class _Masks(NamedTuple):
    """The five masks; bit i speaks of entry i of begin, end and strides."""

    begin_mask: int
    end_mask: int
    ellipsis_mask: int
    new_axis_mask: int
    shrink_axis_mask: int


MASKS = ", ".join(f"{name}: int = 0" for name in _Masks._fields)
"""The masks as attributes of an operation."""


def _masks(attrs: Any) -> _Masks:
    return _Masks(*(attrs[name] for name in _Masks._fields))


def _index(begin: Any, end: Any, strides: Any, masks: _Masks) -> Iterator[Any]:
    """NumPy's index, entry by entry; unknown entries are `_UNKNOWN` or `_UNKNOWN_RANGE`.

    If several bits are set for an entry, ellipsis has precedence over new axis over shrink axis, as in
    TensorFlow.
    """
    for i, (b, e, step) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << i
        if masks.ellipsis_mask & bit:
            yield ...
        elif masks.new_axis_mask & bit:
            yield None
        elif masks.shrink_axis_mask & bit:
            if step is not None and step <= 0:
                raise InvalidArgumentError(
                    f"strides[{i}]: expected a positive stride for a single index; got {step}"
                )
            yield _UNKNOWN if b is None else b
        elif step == 0:
            raise InvalidArgumentError(f"strides[{i}]: expected a stride that is not 0; got 0")
        else:
            first, last = masks.begin_mask & bit, masks.end_mask & bit
            unknown = step is None or (b is None and not first) or (e is None and not last)
            yield (
                _UNKNOWN_RANGE if unknown else builtins.slice(None if first else b, None if last else e, step)
            )


_UNKNOWN: Any = object()  # one index, which is not known yet
_UNKNOWN_RANGE: Any = object()  # a range with bounds that are not known yet


def _expanded(index: Sequence[Any], rank: int) -> list[Any]:
    """``index`` with its ellipsis (or the end) replaced by the full ranges that ``rank`` requires."""
    if sum(entry is ... for entry in index) > 1:
        raise InvalidArgumentError("expected at most one ellipsis; got several")
    used = sum(entry is not None and entry is not ... for entry in index)
    if used > rank:
        raise InvalidArgumentError(f"expected at most {rank} indices for a tensor of rank {rank}; got {used}")
    position = next((i for i, entry in enumerate(index) if entry is ...), len(index))
    full = [builtins.slice(None)] * (rank - used)
    return [*index[:position], *full, *index[position + 1 :]]


def _sliced_dims(dims: Sequence[int | None], index: Sequence[Any]) -> Iterator[int | None]:
    """The dimensions of a tensor of ``dims`` indexed by ``index``."""
    axes = iter(enumerate(dims))
    for entry in _expanded(index, len(dims)):
        if entry is None:
            yield 1
            continue
        axis, dim = next(axes)
        if isinstance(entry, builtins.slice):
            everything = entry.start is None and entry.stop is None and abs(entry.step or 1) == 1
            yield dim if everything else None if dim is None else len(range(*entry.indices(dim)))
        elif entry is _UNKNOWN_RANGE:
            yield None
        elif entry is not _UNKNOWN and dim is not None and not -dim <= entry < dim:
            raise InvalidArgumentError(
                f"index {entry} is out of bounds for dimension {axis}: expected [{-dim}, {dim})"
            )


def _spec(s: ShapeContext, first: int) -> tuple[Any, Any, Any] | None:
    """The known part of begin, end and strides (inputs ``first`` and on); None if their length is unknown."""
    values = [s.value(first + i) for i in range(3)]
    lengths = _known_lengths(s, first, first + 3)
    if not lengths:
        return None
    if len(set(lengths)) > 1:
        raise InvalidArgumentError(f"expected begin, end and strides of one length; got lengths {lengths}")
    begin, end, strides = ((None,) * lengths[0] if v is None else v for v in values)
    return begin, end, strides


def _strided_slice_shape(s: ShapeContext) -> Sequence[Shape]:
    spec = _spec(s, 1)
    if spec is None:
        return [None]
    index = tuple(_index(*spec, _masks(s.attrs)))
    return [None if s.shapes[0] is None else tuple(_sliced_dims(s.shapes[0], index))]


def _view(x: Any, index: Sequence[Any]) -> Any:
    """``x[index]`` as a view, of rank 0 too. Raises `InvalidArgumentError` out of bounds."""
    entries = tuple(_expanded(index, x.ndim))
    try:
        return x[(*entries, ...)]  # the ellipsis makes NumPy return a view in place of a scalar
    except IndexError as error:
        raise InvalidArgumentError(f"strided slice of shape {format_shape(x.shape)}: {error}") from None


def _strided_slice(
    xp: Any, input: Any, begin: Any, end: Any, strides: Any, begin_mask: int, end_mask: int,
    ellipsis_mask: int, new_axis_mask: int, shrink_axis_mask: int,
) -> Any:  # fmt: skip
    masks = _Masks(begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    return _view(input, tuple(_index(begin, end, strides, masks)))


def _strided_slice_value(s: ShapeContext) -> PartialValue:
    value, spec = s.value(0), _spec(s, 1)
    if value is None or spec is None:
        return None
    index = tuple(_index(*spec, _masks(s.attrs)))
    if any(entry is _UNKNOWN or entry is _UNKNOWN_RANGE for entry in index):
        return None
    return as_host_value(_view(_known_array(value, s.shapes[0]), index))


def _strided_slice_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    x, begin, end, strides = op.inputs
    dx = strided_slice_grad(
        shape(x, out_type=begin.dtype), begin, end, strides, dy, **_masks(op.node.attrs)._asdict()
    )
    return [dx, None, None, None]


def _ints(*rows: Sequence[int]) -> tuple[Any, ...]:
    return tuple(np.array(row, np.int32) for row in rows)


def _strided_samples(rng: np.random.Generator) -> Iterable[Sample]:
    x = rng.standard_normal((3, 4, 5))
    yield sample(x, *_ints([0, 1], [2, 4], [1, 2]))
    yield sample(x, *_ints([0, -1, 0], [0, 0, 1], [1, -2, 1]), begin_mask=1, end_mask=3, shrink_axis_mask=4)
    yield sample(
        x,
        *_ints([0, 0, 0, 1], [0, 0, 0, 2], [1, 1, 1, 1]),
        ellipsis_mask=2,
        new_axis_mask=1,
        shrink_axis_mask=12,
    )
    yield sample(x.astype(np.complex64), *_ints([2], [0], [-1]))
    yield sample(np.array([b"a", b"b"], object), *_ints([-1], [0], [1]), shrink_axis_mask=1)
    yield sample(np.float64(2.0), *_ints([0], [0], [1]), new_axis_mask=1)
    yield sample(np.zeros((0, 2)), *_ints([0], [9], [3]))


_BATCH_MASKS = {"begin_mask": 1, "end_mask": 1, "ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0}


def _strided_axes(s: ShapeContext) -> str | None:
    groups = _strided_groups(s.shapes[0], _spec(s, 1), s.attrs)
    return groups and f"{groups[0]} -> {groups[1]}"


def _strided_grad_axes(s: ShapeContext) -> str | None:
    groups = _strided_groups(s.value(0), _spec(s, 1), s.attrs)
    return groups and f"{groups[1]} -> {groups[0]}"


def _strided_groups(dims: Shape, spec: tuple[Any, Any, Any] | None, attrs: Any) -> tuple[str, str] | None:
    """The factors of the tensor that is sliced, and of the slice: a dimension taken as it is passes."""
    if dims is None or spec is None:
        return None
    whole: list[str] = []
    part: list[str] = []
    axes = iter(enumerate(dims))
    for entry in _expanded(tuple(_index(*spec, _masks(attrs))), len(dims)):
        if entry is None:
            part.append(f"n{len(part)}!")
            continue
        axis, dim = next(axes)
        is_range = isinstance(entry, builtins.slice)
        if is_range and _is_everything(entry, dim):
            whole.append(f"d{axis}")
            part.append(f"d{axis}")
        else:
            whole.append(f"w{axis}!")
            part += [f"r{axis}!"] if is_range or entry is _UNKNOWN_RANGE else []
    return " ".join(whole), " ".join(part)


def _is_everything(entry: Any, dim: int | None) -> bool:
    """Whether a range takes all of a dimension, in order, and of any part of it too."""
    ends = entry.stop is None or (dim is not None and entry.stop >= dim)
    return entry.start in (None, 0) and ends and entry.step in (None, 1)


strided_slice_op: OpDef[Tensor] = define_op(
    "StridedSlice",
    "input: T in STORED, begin: host Index in INDEX, end: host Index, strides: host Index -> T",
    attrs=MASKS,
    shape=_strided_slice_shape,
    kernel=_strided_slice,
    vjp=_strided_slice_vjp,
    jvp=LINEAR,
    samples=_strided_samples,
    alias=True,
    value=_strided_slice_value,
    batch=in_front({1: 0, 2: 0, 3: 1}, **_BATCH_MASKS),
    axes=_strided_axes,
    doc="The elements from ``begin`` to ``end`` in steps of ``strides``, like Python's slices. Masks mark "
    "the begins and ends to ignore, the ellipsis, new axes of length 1, and single indices that drop "
    "their axis.",
)


def _strided_slice_grad(
    xp: Any, shape: Any, begin: Any, end: Any, strides: Any, dy: Any, begin_mask: int, end_mask: int,
    ellipsis_mask: int, new_axis_mask: int, shrink_axis_mask: int, out: Any = None,
) -> Any:  # fmt: skip
    masks = _Masks(begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    if out is None:
        out = xp.zeros(shape, dy.dtype)
    else:
        out[...] = 0
    part = _view(out, tuple(_index(begin, end, strides, masks)))
    if part.shape != dy.shape:
        raise InvalidArgumentError(
            f"dy: expected shape {format_shape(part.shape)}; got {format_shape(dy.shape)}"
        )
    part[...] = dy
    return out


def _strided_slice_grad_shape(s: ShapeContext) -> Sequence[Shape]:
    known = s.value(0)
    length = s.shapes[0]
    return [known if known is not None or length is None or length[0] is None else (None,) * length[0]]


def _strided_slice_grad_vjp(op: Operation, dx: Tensor) -> list[Tensor | None]:
    _, begin, end, strides, _ = op.inputs
    return [None] * 4 + [strided_slice_op(dx, begin, end, strides, **_masks(op.node.attrs)._asdict())]


strided_slice_grad: OpDef[Tensor] = define_op(
    "StridedSliceGrad",
    "shape: host shape Index in INDEX, begin: host Index, end: host Index, strides: host Index, "
    "dy: T in NUMERIC | bool -> T",
    attrs=MASKS,
    shape=_strided_slice_grad_shape,
    kernel=_strided_slice_grad,
    vjp=_strided_slice_grad_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        sample(*_ints([3, 4], [0, 3], [3, 0], [2, -1]), rng.standard_normal((2, 3))),
        sample(*_ints([3], [1], [0], [1]), rng.standard_normal(()), shrink_axis_mask=1),
        sample(*_ints([2], [0], [0], [1]), np.zeros(0, np.complex64)),
    ),
    batch=in_front({0: "size", 1: 0, 2: 0, 3: 1}, data=4, **_BATCH_MASKS),
    axes=_strided_grad_axes,
    traits=Traits(narrows=True),
    doc="Zeros of ``shape``, with ``dy`` at the elements that the strided slice with the same arguments "
    "selects.",
)


def strided_slice(
    input_: TensorLike,
    begin: Any,
    end: NumericLike,
    strides: Any = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: Any = None,
    name: str | None = None,
) -> Tensor:
    """The elements of ``input_`` from ``begin`` to ``end``, exclusive, in steps of ``strides`` (1 by
    default).

    All three are vectors with one entry per dimension, from the first on; bit i of a mask refers to entry i.
    ``var`` must be None: ``variable[key].assign(value)`` assigns to a slice. Raises `InvalidArgumentError`
    for a stride of 0, too many entries, or a single index out of bounds.
    """
    if var is not None:
        raise InvalidArgumentError(
            f"strided_slice: expected no var; got {var!r}. Instead: variable[begin:end].assign(value)"
        )
    if strides is None:
        strides = ones_like(begin)
    masks = _Masks(begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    return strided_slice_op(input_, begin, end, strides, name=name, **masks._asdict())


# --- tensor[key]


def getitem(tensor: Any, key: Any) -> Tensor:
    """``tensor[key]``: ints, slices, ``...``, None (a new axis), scalar integer tensors, or a tuple of these.

    Raises `DTypeError` for other keys (lists, masks) and `InvalidArgumentError` for an index out of bounds.
    """
    entries = key if isinstance(key, tuple) else (key,)
    begin: list[Any] = []
    end: list[Any] = []
    strides: list[Any] = []
    masks = dict.fromkeys(_Masks._fields, 0)
    for i, entry in enumerate(entries):
        first, last, step = _entry(entry, 1 << i, masks)
        begin.append(first)
        end.append(last)
        strides.append(step)
    dtype = _index_dtype([*begin, *end, *strides])
    with get_default_graph().name_scope("strided_slice") as scope:
        parts = [_stack(part, dtype) for part in (begin, end, strides)]
        result: Tensor = strided_slice_op(tensor, *parts, name=scope, **masks)
    return result


def _entry(entry: Any, bit: int, masks: dict[str, int]) -> tuple[Any, Any, Any]:
    """Begin, end and stride of one entry of a key; sets its bits in ``masks``."""
    if entry is ...:
        masks["ellipsis_mask"] |= bit
        return 0, 0, 1
    if entry is None:
        masks["new_axis_mask"] |= bit
        return 0, 0, 1
    if isinstance(entry, builtins.slice):
        masks["begin_mask"] |= bit if entry.start is None else 0
        masks["end_mask"] |= bit if entry.stop is None else 0
        first = 0 if entry.start is None else _index_value(entry.start)
        last = 0 if entry.stop is None else _index_value(entry.stop)
        return first, last, 1 if entry.step is None else _index_value(entry.step)
    masks["shrink_axis_mask"] |= bit
    first = _index_value(entry)
    return (first, 0 if isinstance(first, Tensor) else first + 1, 1)  # the end of a single index is ignored


def _index_value(entry: Any) -> Any:
    """An int, or a scalar int32 or int64 tensor."""
    if isinstance(entry, Tensor) or hasattr(entry, "__flowrt_tensor__"):
        return _index_tensor(convert_to_tensor(entry))
    if not isinstance(entry, (bool, np.bool_)):
        with contextlib.suppress(TypeError):
            return operator.index(entry)
    raise misuse(
        f"tensor[...]: expected ints, slices, '...', None or scalar integer tensors; got {entry!r}. See also"
        " gather() and boolean_mask()",
        DTypeError,
    )


def _index_tensor(tensor: Tensor) -> Tensor:
    if tensor.dtype.is_bool:
        raise misuse(
            f"tensor[...]: expected integers; got the mask {tensor!r}. Use boolean_mask()", DTypeError
        )
    if not tensor.dtype.is_integer:
        raise misuse(f"tensor[...]: expected integers; got {tensor!r}", DTypeError)
    if tensor.spec.shape not in (None, ()):
        raise DTypeError(f"expected a scalar as an index; got {tensor!r}. Use gather()")
    return tensor if tensor.dtype in dtypes.INDEX else cast(tensor, dtypes.int64)


def _index_dtype(values: Sequence[Any]) -> DType:
    """int64 where an index needs it, otherwise int32."""
    small = all(v.dtype is dtypes.int32 if isinstance(v, Tensor) else -(2**31) <= v < 2**31 for v in values)
    return dtypes.int32 if small else dtypes.int64


def _stack(values: Sequence[Any], dtype: DType) -> Tensor:
    if not any(isinstance(v, Tensor) for v in values):
        return convert_to_tensor(np.array(values, dtype.np), name="stack")
    parts = [cast(v, dtype) if isinstance(v, Tensor) else v for v in values]
    return convert_to_tensor(parts, dtype, name="stack")
