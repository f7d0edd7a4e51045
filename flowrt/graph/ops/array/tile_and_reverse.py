"""Rearranging a tensor's elements: tile, reverse, roll, space to depth and back, and `meshgrid`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import in_front, merged, on_axes
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import LINEAR, OpDef, Samples, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Kernel, Traits
from flowrt.graph.ops.array.concat_and_split import concat, equal_part, pack
from flowrt.graph.ops.array.ranges import range_op
from flowrt.graph.ops.array.reductions import sum_op
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.base.axes import factors, input_rank, whole_along
from flowrt.graph.ops.base.filling import broadcast_to
from flowrt.graph.ops.base.identities import unchanged
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.elementwise.math import negative
from flowrt.graph.shapes import Shape, merge, normalize_axis
from flowrt.graph.typing import NumericLike, TensorLike

__all__ = [
    "depth_to_space", "meshgrid", "reverse", "reverse_sequence", "reverse_v2", "roll", "space_to_depth",
    "tile",
]  # fmt: skip

# --- tile


def _tile_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, multiples = s.shapes[0], s.value(1)
    count = len(multiples) if multiples is not None else (s.shapes[1] or (None,))[0]
    if dims is not None and count not in (None, len(dims)):
        raise InvalidArgumentError(f"multiples: expected one for each of {len(dims)} dimensions; got {count}")
    if dims is None or multiples is None:
        rank = count if dims is None else len(dims)
        return [None if rank is None else (None,) * rank]
    _refuse_negative(multiples)
    return [tuple(map(_product, dims, multiples))]


def _product(dim: int | None, multiple: int | None) -> int | None:
    if 0 in (dim, multiple):
        return 0
    return None if dim is None or multiple is None else dim * multiple


def _refuse_negative(multiples: Any) -> None:
    if any(m is not None and m < 0 for m in multiples):
        raise InvalidArgumentError(f"multiples: expected numbers of at least 0; got {list(multiples)}")


def _tile(xp: Any, input: Any, multiples: Any, out: Any = None) -> Any:
    _refuse_negative(multiples)
    if len(multiples) != input.ndim:
        raise InvalidArgumentError(
            f"multiples: expected one for each of {input.ndim} dimensions; got {len(multiples)}"
        )
    if out is None:
        return xp.tile(input, multiples)
    copies = [length for pair in zip(multiples, input.shape, strict=True) for length in pair]
    once = [length for dim in input.shape for length in (1, dim)]
    out.reshape(copies)[...] = input.reshape(once)
    return out


def _tile_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    """Sums over the copies: dy as ``[multiple, dim, multiple, dim, ...]``."""
    x, multiples = op.inputs
    pairs = reshape(pack([multiples, shape(x, out_type=multiples.dtype)], axis=1), [-1])
    dims = x.spec.shape
    count = getitem(shape(pairs), 0) if dims is None else 2 * len(dims)
    steps = range_op(0, count, 2)
    return [reshape(sum_op(reshape(dy, pairs), steps), shape(x)), None]


def _repeated(multiples: Any) -> list[int] | None:
    return None if multiples is None else [i for i, times in enumerate(multiples) if times != 1]


tile: OpDef[Tensor] = define_op(
    "Tile",
    "input: T in ANY, multiples: host Tmultiples in INDEX -> T",
    shape=_tile_shape,
    kernel=_tile,
    vjp=_tile_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3)), np.array([2, 1], np.int32)),
        sample(rng.standard_normal((1, 2)), np.array([0, 2], np.int64)),
        sample(rng.standard_normal(()), np.zeros(0, np.int32)),
        sample(np.array([b"a", b"b"], object), np.array([2], np.int32)),
    ),
    batch=in_front({1: 1}),
    axes=whole_along(lambda s: _repeated(s.value(1))),
    traits=Traits(narrows=True),
    doc="""The input repeated ``multiples[i]`` times along dimension i.

    Args:
        input: A tensor.
        multiples: An integer vector with one number per dimension.

    Returns:
        A tensor of the same rank and dtype.

    Example:
        >>> tf.tile([[1, 2]], [2, 2]).eval()
        array([[1, 2, 1, 2],
               [1, 2, 1, 2]], dtype=int32)
    """,
)


# --- reverse and roll


def _reverse_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, axes = s.shapes[0], s.value(1)
    if dims is not None and axes is not None and None not in axes:
        chosen = [normalize_axis(a, len(dims)) for a in axes]
        if len(set(chosen)) < len(chosen):
            raise InvalidArgumentError(f"axis: expected each axis once; got {list(axes)}")
    return [dims]


reverse: OpDef[Tensor] = define_op(
    "ReverseV2",
    "tensor: T in ANY, axis: host Tidx in INDEX -> T",
    shape=_reverse_shape,
    kernel=lambda xp, tensor, axis: xp.flip(tensor, axis),
    vjp=lambda op, dy: [reverse(dy, op.inputs[1]), None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3)), np.array([-1], np.int32)),
        sample(rng.standard_normal((2, 3)), np.array([0, 1], np.int64)),
        sample(rng.standard_normal(()), np.zeros(0, np.int32)),
        sample(np.array([b"a", b"b"], object), np.array([0], np.int32)),
    ),
    alias=True,
    batch=on_axes(),
    axes=whole_along(lambda s: s.value(1)),
    doc="""The tensor with the order along each of ``axis`` (a vector) reversed.

    Example:
        >>> tf.reverse([1, 2, 3], axis=[0]).eval()
        array([3, 2, 1], dtype=int32)
    """,
)

reverse_v2 = reverse


def _reverse_sequence_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, lengths = s.shapes
    seq, batch = s.attrs["seq_dim"], s.attrs["batch_dim"]
    merge(lengths, (None,))
    if dims is None:
        return [None]
    if not (0 <= seq < len(dims) and 0 <= batch < len(dims) and seq != batch):
        raise InvalidArgumentError(
            f"expected two different axes in [0, {len(dims)}); got seq {seq}, batch {batch}"
        )
    merge(lengths, (dims[batch],))
    return [dims]


def _reverse_sequence(
    xp: Any, input: Any, seq_lengths: Any, seq_dim: int, batch_dim: int, out: Any = None
) -> Any:
    rows = xp.moveaxis(input, (batch_dim, seq_dim), (0, 1))
    count, steps = rows.shape[:2]
    if seq_lengths.shape != (count,):
        raise InvalidArgumentError(
            f"seq_lengths: expected {count}, one per batch entry; got {seq_lengths.size}"
        )
    if xp is not np:
        seq_lengths = xp.clip(seq_lengths, 0, steps)
    elif count and (seq_lengths.min() < 0 or seq_lengths.max() > steps):
        raise InvalidArgumentError(
            f"seq_lengths: expected lengths in [0, {steps}]; got {seq_lengths.tolist()}"
        )
    position, length = xp.arange(steps), seq_lengths[:, None]
    source = xp.where(position < length, length - 1 - position, position)
    found = xp.moveaxis(rows[xp.arange(count)[:, None], source], (0, 1), (batch_dim, seq_dim))
    return delivered(xp, found, input.dtype, out)


def _reverse_sequence_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    axes = {key: op.get_attr(key) for key in ("seq_dim", "batch_dim")}
    return [reverse_sequence_op(dy, op.inputs[1], **axes), None]


def _reverse_sequence_axes(s: ShapeContext) -> str | None:
    rank = input_rank(s)
    if rank is None:
        return None
    dims = factors(rank, {s.attrs["seq_dim"] % rank})
    return f"{dims}, d{s.attrs['batch_dim'] % rank} -> {dims}"


reverse_sequence_op: OpDef[Tensor] = define_op(
    "ReverseSequence",
    "input: T in ANY, seq_lengths: Tlen in INDEX -> T",
    attrs="seq_dim: int, batch_dim: int = 0",
    shape=_reverse_sequence_shape,
    kernel=_reverse_sequence,
    vjp=_reverse_sequence_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 4, 3)), np.array([3, 0], np.int32), seq_dim=1),
        sample(rng.standard_normal((3, 2)), np.array([1, 3]), seq_dim=0, batch_dim=1),
        sample(np.zeros((0, 2), np.int8), np.zeros(0, np.int32), seq_dim=1),
    ),
    batch=lambda b, op, values: merged(0, 1)(b, op, values) if op.get_attr("batch_dim") == 0 else None,
    axes=_reverse_sequence_axes,
    traits=Traits(narrows=True),
    doc="The first ``seq_lengths[b]`` entries of each batch entry b in reverse order.",
)


def reverse_sequence(
    input: TensorLike,
    seq_lengths: NumericLike,
    seq_axis: int | None = None,
    batch_axis: int | None = None,
    name: str | None = None,
    seq_dim: int | None = None,
    batch_dim: int | None = None,
) -> Tensor:
    """``input`` with the first ``seq_lengths[b]`` entries of ``seq_axis`` reversed, for b of ``batch_axis``.

    Raises `InvalidArgumentError` for lengths beyond the dimension.
    """
    sequence = seq_axis if seq_axis is not None else seq_dim
    if sequence is None:
        raise InvalidArgumentError("reverse_sequence: expected seq_axis; got None")
    batch = batch_axis if batch_axis is not None else batch_dim or 0
    return reverse_sequence_op(input, seq_lengths, seq_dim=sequence, batch_dim=batch, name=name)


def _roll(xp: Any, input: Any, shift: Any, axis: Any, out: Any = None) -> Any:
    shifts = [0] * input.ndim
    for distance, one in np.broadcast(shift, axis):
        shifts[normalize_axis(one, input.ndim)] += distance
    if out is None:
        out = xp.empty(input.shape, input.dtype)
    for parts in itertools.product(*map(_halves, shifts, input.shape)):
        source, target = zip(*parts, strict=True) if parts else ((), ())
        out[target] = input[source]
    return out


def _halves(shift: int, dim: int) -> list[tuple[slice, slice]]:
    """The source and target ranges of the two parts of a dimension."""
    shift = shift % dim if dim else 0
    return [(slice(dim - shift), slice(shift, None)), (slice(dim - shift, None), slice(shift))]


roll: OpDef[Tensor] = define_op(
    "Roll",
    "input: T in ANY, shift: host Tshift in INDEX, axis: host Taxis in INDEX -> T",
    shape=unchanged,
    kernel=_roll,
    vjp=lambda op, dy: [roll(dy, negative(op.inputs[1]), op.inputs[2]), None, None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((3, 4)), np.int32(1), np.int32(-1)),
        sample(rng.standard_normal((3, 4)), np.array([-1, 5, 1]), np.array([0, 1, 0], np.int32)),
        sample(np.zeros((0, 2), np.complex64), np.int32(3), np.int32(0)),
    ),
    batch=on_axes(),
    axes=whole_along(lambda s: s.value(2)),
    traits=Traits(narrows=True),
    doc="The input rotated by ``shift`` along ``axis``; elements that leave at one end enter at the other.",
)


# --- space and depth

_IMAGE = {"NHWC": (1, 2, 3), "NCHW": (2, 3, 1)}
"""The axes of height, width and depth."""


def _block_shape(s: ShapeContext, to_depth: bool) -> Sequence[Shape]:
    block = s.attrs["block_size"]
    height, width, depth = _image_axes(s.attrs["data_format"])
    if block < 2:
        raise InvalidArgumentError(f"block_size: expected at least 2; got {block}")
    dims = merge(s.shapes[0], (None,) * 4)
    assert dims is not None
    found = list(dims)
    for axis, factor in ((height, block), (width, block), (depth, block * block)):
        dim, cut = dims[axis], (axis == depth) != to_depth
        found[axis] = equal_part(dim, factor) if cut else None if dim is None else dim * factor
    return [tuple(found)]


def _image_axes(data_format: Any) -> tuple[int, int, int]:
    key = data_format.decode() if isinstance(data_format, bytes) else data_format
    if key not in _IMAGE:
        raise InvalidArgumentError(f"data_format: expected NHWC or NCHW; got {key!r}")
    return _IMAGE[key]


def _rearranged(to_depth: bool) -> Kernel:
    def kernel(xp: Any, input: Any, block_size: int, data_format: Any, out: Any = None) -> Any:
        axes = _image_axes(data_format)
        x = xp.moveaxis(input, axes, (1, 2, 3))
        n, h, w, c = x.shape
        b = block_size
        if to_depth:
            cut, dims = (n, h // b, b, w // b, b, c), (n, h // b, w // b, b * b * c)
        else:
            cut, dims = (n, h, w, b, b, c // (b * b)), (n, h * b, w * b, c // (b * b))
        return _from_blocks(xp, x.reshape(cut).transpose(0, 1, 3, 2, 4, 5), dims, axes, out)

    return kernel


def _from_blocks(xp: Any, blocks: Any, shape: Sequence[int], axes: tuple[int, ...], out: Any) -> Any:
    """``blocks`` as an image of ``shape``, NHWC, with height, width and depth moved to ``axes``."""
    if out is None:
        return xp.moveaxis(xp.array(blocks, order="C").reshape(shape), (1, 2, 3), axes)
    xp.moveaxis(out, axes, (1, 2, 3)).reshape(blocks.shape)[...] = blocks  # dimensions are cut: a view
    return out


def _define_rearranging(
    name: str, *, to_depth: bool, inverse: Callable[[], OpDef[Tensor]], samples: Samples, doc: str
) -> OpDef[Tensor]:
    return define_op(
        name,
        "input: T in ANY -> T",
        attrs="block_size: int, data_format: string = 'NHWC'",
        shape=lambda s: _block_shape(s, to_depth),
        kernel=_rearranged(to_depth),
        vjp=lambda op, dy: [inverse()(dy, op.get_attr("block_size"), op.get_attr("data_format"))],
        jvp=LINEAR,
        samples=samples,
        batch=merged(0),
        axes="n a! b! c! -> n p q r",
        traits=Traits(narrows=True),
        doc=doc,
    )


space_to_depth_op: OpDef[Tensor] = _define_rearranging(
    "SpaceToDepth",
    to_depth=True,
    inverse=lambda: depth_to_space_op,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 4, 2, 3)), block_size=2),
        sample(rng.standard_normal((1, 2, 3, 6)), block_size=3, data_format="NCHW"),
    ),
    doc="Blocks of ``block_size`` squared pixels, moved into the depth.",
)

depth_to_space_op: OpDef[Tensor] = _define_rearranging(
    "DepthToSpace",
    to_depth=False,
    inverse=lambda: space_to_depth_op,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 1, 2, 8)), block_size=2),
        sample(rng.integers(0, 9, (1, 9, 1, 2)), block_size=3, data_format="NCHW"),
    ),
    doc="The inverse of SpaceToDepth: the depth, rearranged into blocks of ``block_size`` squared pixels.",
)


def space_to_depth(
    input: TensorLike, block_size: int, name: str | None = None, data_format: str = "NHWC"
) -> Tensor:
    """Images ``[n, h, w, c]`` as ``[n, h / block_size, w / block_size, c * block_size ** 2]``."""
    return space_to_depth_op(input, block_size=block_size, data_format=data_format, name=name)


def depth_to_space(
    input: TensorLike, block_size: int, name: str | None = None, data_format: str = "NHWC"
) -> Tensor:
    """Images ``[n, h, w, c]`` as ``[n, h * block_size, w * block_size, c / block_size ** 2]``."""
    return depth_to_space_op(input, block_size=block_size, data_format=data_format, name=name)


# --- meshgrid


def meshgrid(*args: Any, indexing: str = "xy", name: str = "meshgrid") -> list[Tensor]:
    """The coordinates of a grid: one tensor for each argument (a vector), all of one shape.

    Dimension i belongs to argument i (``indexing="ij"``), the first two are exchanged for ``"xy"``. Raises
    `InvalidArgumentError`.
    """
    if indexing not in ("xy", "ij"):
        raise InvalidArgumentError(f"meshgrid: expected indexing 'xy' or 'ij'; got {indexing!r}")
    with get_default_graph().name_scope(name):
        vectors = [reshape(convert_to_tensor(arg), [-1]) for arg in args]
        axes = list(range(len(args)))
        if indexing == "xy" and len(args) > 1:
            axes[:2] = 1, 0
        lengths = [shape(vector) for vector in vectors]
        grid = concat([lengths[axes.index(i)] for i in range(len(args))], 0) if args else None
        spread = [[-1 if i == axis else 1 for i in range(len(args))] for axis in axes]
        return [broadcast_to(reshape(v, s), grid) for v, s in zip(vectors, spread, strict=True)]
