"""Images of another size: `ResizeBilinear`, `ResizeNearestNeighbor`, `ResizeBicubic`, `ResizeArea`.

Each is separable: along an axis a result is a weighted sum of a few elements; their places and weights depend
on the two sizes alone. Pixels are squares (``half_pixel_centers``), or points, of which the outer ones may
coincide (``align_corners``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.base.identities import cast, static_value
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.linalg.einsum import einsum
from flowrt.graph.shapes import Shape, format_shape

_FLAGS = "align_corners: bool = False, half_pixel_centers: bool = False"


class Taps(NamedTuple):
    """The places of the elements of each result along an axis, ``[out, taps]``, and their weights."""

    places: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]

    def matrix(self, size: int) -> Any:
        """The same as a matrix ``[out, size]``."""
        found = np.zeros((len(self.places), size), np.float32)
        rows = np.arange(len(self.places))[:, None]
        np.add.at(found, (rows, self.places), self.weights)
        return found


def _centers(out: int, size: int, align_corners: bool, half_pixel_centers: bool) -> Any:
    """The places of the results among ``size`` elements."""
    aligned = align_corners and out > 1
    scale = np.float32((size - 1) / (out - 1) if aligned else size / out)
    at = np.arange(out, dtype=np.float32)
    return (at + np.float32(0.5)) * scale - np.float32(0.5) if half_pixel_centers else at * scale


@lru_cache(maxsize=64)
def linear_taps(out: int, size: int, align_corners: bool, half_pixel_centers: bool) -> Taps:
    at = _centers(out, size, align_corners, half_pixel_centers)
    lower = np.floor(at)
    share = at - lower
    places = np.stack([np.maximum(lower, 0), np.minimum(np.ceil(at), size - 1)], 1).astype(np.int64)
    return Taps(places, np.stack([1 - share, share], 1))


@lru_cache(maxsize=64)
def nearest_taps(out: int, size: int, align_corners: bool, half_pixel_centers: bool) -> Taps:
    at = _centers(out, size, align_corners, False)
    if half_pixel_centers:
        at = (np.arange(out, dtype=np.float32) + np.float32(0.5)) * np.float32(size / out)
    rounded = np.floor(at + np.float32(0.5)) if align_corners else np.floor(at)
    places = np.clip(rounded, 0, size - 1).astype(np.int64)[:, None]
    return Taps(places, np.ones(places.shape, np.float32))


_TABLE = 1024
"""Steps between two elements for which TensorFlow has the weights of the cubic curve."""


@lru_cache(maxsize=64)
def cubic_taps(out: int, size: int, align_corners: bool, half_pixel_centers: bool) -> Taps:
    a = -0.5 if half_pixel_centers else -0.75
    at = _centers(out, size, align_corners, half_pixel_centers).astype(np.float32)
    lower = np.floor(at)
    share = np.round((at - lower) * _TABLE) / _TABLE
    distances = np.stack([1 + share, share, 1 - share, 2 - share], 1)
    near = ((a + 2) * distances - (a + 3)) * distances * distances + 1
    far = ((a * distances - 5 * a) * distances + 8 * a) * distances - 4 * a
    weights = np.where(distances <= 1, near, far)
    places = lower.astype(np.int64)[:, None] + np.arange(-1, 3)
    inside = np.clip(places, 0, size - 1)
    if half_pixel_centers:  # what is outside does not count
        weights = np.where(places == inside, weights, 0)
        weights /= weights.sum(axis=1, keepdims=True)
    return Taps(inside, weights.astype(np.float32))


@lru_cache(maxsize=64)
def area_taps(out: int, size: int, align_corners: bool, half_pixel_centers: bool) -> Taps:
    """The parts of the elements that each result covers."""
    aligned = align_corners and out > 1
    scale = np.float32((size - 1) / (out - 1) if aligned else size / out)
    first = np.arange(out, dtype=np.float32) * scale
    last = first + scale
    lower = np.floor(first)
    count = int((np.ceil(last) - lower).max())
    at = lower[:, None] + np.arange(count, dtype=np.float32)
    covered = np.minimum(at + 1, last[:, None]) - np.maximum(at, first[:, None])
    return Taps(
        np.clip(at, 0, size - 1).astype(np.int64), (np.maximum(covered, 0) / scale).astype(np.float32)
    )


def asked_size(s: ShapeContext, position: int) -> tuple[int | None, int | None]:
    """The height and width that host input ``position`` asks for."""
    value = s.value(position)
    if value is None:
        return None, None
    if len(value) != 2 or any(v is not None and v < 1 for v in value):
        raise InvalidArgumentError(f"size: expected a height and width of at least 1; got {list(value)}")
    return value[0], value[1]


def _resized(s: ShapeContext) -> list[Shape]:
    return [(*images_shape(s.shapes[0])[:1], *asked_size(s, 1), *images_shape(s.shapes[0])[3:])]


def images_shape(shape: Shape) -> Sequence[int | None]:
    if shape is None:
        return (None, None, None, None)
    if len(shape) != 4 or 0 in shape[1:3]:
        raise InvalidArgumentError(
            f"images: expected [batch, height, width, channels]; got {format_shape(shape)}"
        )
    return shape


def _sums(xp: Any, images: Any, taps: Taps, axis: int) -> Any:
    """The weighted sums along ``axis``, in float32: of two elements as TensorFlow, a + (b - a) * share."""
    shape = [1] * images.ndim
    shape[axis] = -1
    picked = [xp.take(images, xp.asarray(taps.places[:, i]), axis=axis) for i in range(taps.places.shape[1])]
    weights = [xp.asarray(taps.weights[:, i].reshape(shape)) for i in range(len(picked))]
    if len(picked) == 2:
        return picked[0] + (picked[1] - picked[0]) * weights[1]
    total = picked[0] * weights[0]
    for part, weight in zip(picked[1:], weights[1:], strict=True):
        total = total + part * weight
    return total


LONG = 1 << 11
"""Elements of a row from which a Python call for it costs less than a copy."""


def _sums_of_two(images: Any, taps: Taps, axis: int) -> Any:
    """`_sums` of two elements, on the host, without copies of long rows: half the time for 80 x 80 x 64 to
    160 x 160.
    """
    before, after = images.shape[:axis], images.shape[axis + 1 :]
    found = np.empty((*before, len(taps.places), *after), np.float32)
    shares = taps.weights[:, 1].reshape(-1, *[1] * len(after))
    for image in np.ndindex(before) if math.prod(after) >= LONG else ():
        x, y = images[image], found[image]
        for row, (low, high), share in zip(y, taps.places, shares, strict=True):
            np.subtract(x[high], x[low], out=row)
            row *= share
            row += x[low]
    if math.prod(after) < LONG:
        np.take(images, taps.places[:, 0], axis, found, "clip")
        other = np.take(images, taps.places[:, 1], axis, None, "clip")
        other -= found
        other *= shares
        found += other
    return found


def _weighted(taps_of: Callable[..., Taps]) -> Callable[..., Any]:
    def kernel(
        xp: Any, images: Any, size: Any, align_corners: bool, half_pixel_centers: bool, out: Any = None
    ) -> Any:
        if taps_of is linear_taps and tuple(size) == images.shape[1:3]:  # inf - inf would be NaN below
            return delivered(xp, images.astype(np.float32), np.float32, out)
        flags = (align_corners, half_pixel_centers)
        rows, columns = (taps_of(size[i], images.shape[1 + i], *flags) for i in range(2))
        sums = _sums_of_two if xp is np and taps_of is linear_taps else partial(_sums, xp)
        made = sums(sums(images.astype(np.float32, copy=False), columns, 2), rows, 1)
        return delivered(xp, made, np.float32, out)

    return kernel


def _nearest(
    xp: Any, images: Any, size: Any, align_corners: bool, half_pixel_centers: bool, out: Any = None
) -> Any:
    flags = (align_corners, half_pixel_centers)
    rows, columns = (nearest_taps(size[i], images.shape[1 + i], *flags).places[:, 0] for i in range(2))
    made = xp.take(xp.take(images, xp.asarray(rows), axis=1), xp.asarray(columns), axis=2)
    return delivered(xp, made, images.dtype, out)


def _gradient(taps_of: Callable[..., Taps]) -> Callable[..., Any]:
    """The transpose: the matrices of the taps, where sizes are known while building."""

    def vjp(op: Any, dy: Tensor) -> list[Any]:
        sizes, asked = op.inputs[0].spec.shape, static_value(op.inputs[1])
        known = None if sizes is None or asked is None else (*sizes[1:3], *asked)
        if op.inputs[0].dtype not in dtypes.FLOATING:
            return [None, None]
        if known is None or None in known:
            raise op.error(
                UnimplementedError, "expected sizes that are known while building, for its gradient"
            )
        flags = (op.get_attr("align_corners"), op.get_attr("half_pixel_centers"))
        rows, columns = (
            convert_to_tensor(taps_of(known[2 + i], known[i], *flags).matrix(known[i])) for i in range(2)
        )
        return [
            cast(einsum("boqc,oh,qw->bhwc", cast(dy, dtypes.float32), rows, columns), op.inputs[0].dtype),
            None,
        ]

    return vjp


def _define_resize(name: str, taps_of: Callable[..., Taps], doc: str) -> OpDef[Tensor]:
    is_nearest = taps_of is nearest_taps

    def samples(rng: np.random.Generator) -> Any:
        images = rng.standard_normal((2, 3, 4, 2)).astype(np.float32)
        return (
            sample(images, np.array([5, 2], np.int32)),
            sample(images, np.array([4, 6], np.int32), align_corners=True),
            sample(images, np.array([2, 7], np.int32), half_pixel_centers=True),
            sample(
                rng.integers(0, 9, (1, 2, 2, 1), np.uint8), np.array([3, 3], np.int32), differentiable=False
            ),
        )

    return define_op(
        name,
        f"images: T in REAL, size: host int32 -> resized_images: {'T' if is_nearest else 'float32'}",
        attrs=_FLAGS,
        shape=_resized,
        kernel=_nearest if is_nearest else _weighted(taps_of),
        vjp=_gradient(taps_of),
        samples=samples,
        doc=doc,
    )


resize_bilinear_op = _define_resize(
    "ResizeBilinear", linear_taps, "Images of another size; each pixel is between four, in float32."
)
resize_nearest_neighbor_op = _define_resize(
    "ResizeNearestNeighbor", nearest_taps, "Images of another size; each pixel is the nearest one."
)
resize_bicubic_op = _define_resize(
    "ResizeBicubic", cubic_taps, "Images of another size, by cubic curves through four pixels, in float32."
)

resize_area_op: OpDef[Tensor] = define_op(
    "ResizeArea",
    "images: T in REAL, size: host int32 -> resized_images: float32",
    attrs="align_corners: bool = False",
    shape=_resized,
    kernel=lambda xp, images, size, align_corners, out=None: _weighted(area_taps)(
        xp, images, size, align_corners, False, out
    ),
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3, 4, 2)).astype(np.float32), np.array([2, 7], np.int32)),
        sample(rng.integers(0, 9, (1, 7, 5, 1), np.uint8), np.array([3, 2], np.int32), align_corners=True),
    ),
    doc="Images of another size; each pixel is the mean of the area that it covers, in float32.",
)
