"""Max pooling that also gives the places of the maxima: `MaxPoolWithArgmax`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.array.segments import unsorted_segment_sum
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import reshape, shape, size
from flowrt.graph.ops.nn.windows import every_axis, of_rank
from flowrt.graph.shapes import Shape
from flowrt.graph.source import misuse
from flowrt.graph.typing import Ints, NumericLike, PaddingName


def _lengths(length: int, taps: int, step: int, padding: str) -> tuple[int, int, int]:
    """The number of windows along an axis, and the margins before and behind it."""
    if padding == "VALID":
        return max((length - taps) // step + 1, 0), 0, 0
    count = -(-length // step)
    margin = max((count - 1) * step + taps - length, 0)
    return count, margin // 2, margin - margin // 2


def _check(s: ShapeContext) -> Sequence[Shape]:
    ksize, strides, padding = (s.attrs[key] for key in ("ksize", "strides", "padding"))
    if len(ksize) != 4 or len(strides) != 4 or {ksize[0], ksize[3], strides[0], strides[3]} != {1}:
        raise InvalidArgumentError(f"expected windows [1, height, width, 1]; got {ksize}, steps {strides}")
    if min(*ksize, *strides) < 1:
        raise InvalidArgumentError(f"expected windows and steps of at least 1; got {ksize} and {strides}")
    if padding not in ("SAME", "VALID"):
        raise InvalidArgumentError(f"padding: expected SAME or VALID; got {padding!r}")
    images = of_rank("input", s.shapes[0], 4)
    space = [
        None if n is None else _lengths(n, taps, step, padding)[0]
        for n, taps, step in zip(images[1:3], ksize[1:3], strides[1:3], strict=True)
    ]
    made = (images[0], *space, images[3])
    return [made, made]


def _kernel(
    xp: Any, input: Any, ksize: Any, strides: Any, padding: str, Targmax: DType, include_batch_in_index: bool,
    out: Any = None,
) -> Any:  # fmt: skip
    batch, height, width, channels = input.shape
    axes = [
        _lengths(n, taps, step, padding)
        for n, taps, step in zip((height, width), ksize[1:3], strides[1:3], strict=True)
    ]
    lowest = -np.inf if input.dtype.kind == "f" else np.iinfo(input.dtype).min
    margins = [(0, 0), *[(before, behind) for _, before, behind in axes], (0, 0)]
    padded = xp.pad(input, margins, constant_values=lowest)
    best = xp.full((batch, axes[0][0], axes[1][0], channels), lowest, input.dtype)
    places = xp.full(best.shape, -1, np.int64)  # none yet
    rows, columns = (
        xp.arange(count, dtype=np.int64) * step - before
        for (count, before, _), step in zip(axes, strides[1:3], strict=True)
    )
    for i in range(ksize[1]):
        for j in range(ksize[2]):
            part = padded[
                :, i : i + (axes[0][0] - 1) * strides[1] + 1 : strides[1],
                j : j + (axes[1][0] - 1) * strides[2] + 1 : strides[2], :,
            ]  # fmt: skip
            at = ((rows + i)[:, None] * width + (columns + j)[None, :])[None, :, :, None]
            inside = ((rows + i >= 0) & (rows + i < height))[:, None] & (
                (columns + j >= 0) & (columns + j < width)
            )
            better = inside[None, :, :, None] & ((part > best) | (places < 0))
            best, places = xp.where(better, part, best), xp.where(better, at, places)
    places = places * channels + xp.arange(channels)
    if include_batch_in_index:
        places = places + (xp.arange(batch) * (height * width * channels))[:, None, None, None]
    given = (None, None) if out is None else out
    return [delivered(xp, best, input.dtype, given[0]), delivered(xp, places, Targmax.np, given[1])]


def _vjp(op: Operation, dy: Tensor, _: Any) -> list[Any]:
    x = op.inputs[0]
    places = cast(op.outputs[1], "int64")
    if not op.get_attr("include_batch_in_index"):
        batch = max_pool_with_argmax_op(x, **{**_attrs_of(op), "include_batch_in_index": True})
        places = cast(batch[1], "int64")
    flat = unsorted_segment_sum(reshape(dy, [-1]), reshape(places, [-1]), size(x))
    return [reshape(flat, shape(x))]


def _attrs_of(op: Operation) -> dict[str, Any]:
    return {
        key: op.get_attr(key) for key in ("ksize", "strides", "padding", "Targmax", "include_batch_in_index")
    }


max_pool_with_argmax_op: OpDef[list[Tensor]] = define_op(
    "MaxPoolWithArgmax",
    "input: T in REAL -> output: T, argmax: Targmax in INDEX",
    attrs="ksize: list(int), strides: list(int), padding: string, Targmax: type = int64, "
    "include_batch_in_index: bool = False",
    shape=_check,
    kernel=_kernel,
    vjp=_vjp,
    samples=lambda rng: (
        sample(
            rng.permutation(60).reshape(1, 5, 6, 2).astype(np.float64),
            ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME",
        ),
        sample(
            rng.permutation(32).reshape(2, 4, 4, 1).astype(np.float64),
            ksize=[1, 3, 2, 1], strides=[1, 1, 2, 1], padding="VALID", include_batch_in_index=True,
        ),
    ),
    doc="The largest elements of windows of images, and their places in the image (or the batch), flattened.",
)  # fmt: skip


def max_pool_with_argmax(
    input: NumericLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingName,
    data_format: str = "NHWC",
    Targmax: DTypeLike | None = None,
    name: str | None = None,
    output_dtype: DTypeLike | None = None,
    include_batch_in_index: bool = False,
) -> tuple[Tensor, Tensor]:
    """The maximum of each window of images ``[n, h, w, c]``, and its place.

    A place is ``(row * w + column) * c + channel``, of ``Targmax`` (or ``output_dtype``), by default int64;
    with ``include_batch_in_index`` images count on. Of equal elements it is the first. Raises
    `InvalidArgumentError` for another data format.

    Example:
        >>> image = tf.reshape([1.0, 4.0, 3.0, 2.0], [1, 2, 2, 1])
        >>> maxima, places = tf.nn.max_pool_with_argmax(image, 2, 2, "VALID")
        >>> [part.item() for part in session.run([maxima, places])]
        [4.0, 1]
    """
    if data_format != "NHWC":
        raise misuse(f"max_pool_with_argmax: expected data_format NHWC; got {data_format!r}")
    dtype = Targmax if output_dtype is None else output_dtype
    maxima, places = max_pool_with_argmax_op(
        input,
        ksize=every_axis("ksize", ksize, 2, data_format),
        strides=every_axis("strides", strides, 2, data_format),
        padding=padding,
        Targmax=as_dtype("int64" if dtype is None else dtype),
        include_batch_in_index=include_batch_in_index,
        name=name,
    )
    return maxima, places
