"""Parts of images, resized to one size: `CropAndResize`, and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.indexing import check_range
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.nn.boxes import on_host
from flowrt.graph.ops.nn.resize import asked_size, images_shape
from flowrt.graph.shapes import Shape, format_shape


def _cropped(s: ShapeContext) -> list[Shape]:
    boxes = s.shapes[1]
    if boxes is not None and (len(boxes) != 2 or boxes[1] not in (4, None)):
        raise InvalidArgumentError(f"boxes: expected [boxes, 4]; got {format_shape(boxes)}")
    return [(None if boxes is None else boxes[0], *asked_size(s, 3), *images_shape(s.shapes[0])[3:])]


def _crop(
    xp: Any, image: Any, boxes: Any, box_ind: Any, crop_size: Any, method: str, extrapolation_value: float,
    out: Any = None,
) -> Any:  # fmt: skip
    if method not in ("bilinear", "nearest"):
        raise InvalidArgumentError(f"expected method 'bilinear' or 'nearest'; got {method!r}")
    if boxes.shape[0] != box_ind.shape[0]:
        raise InvalidArgumentError(
            f"expected an image for each of {boxes.shape[0]} boxes; got {box_ind.shape[0]}"
        )
    check_range(xp, "box_ind", box_ind.reshape(-1), image.shape[0])
    (top, left, bottom, right), (rows, columns) = boxes.astype(np.float32).T, crop_size
    ys, y_inside = _places(xp, top, bottom, rows, image.shape[1])
    xs, x_inside = _places(xp, left, right, columns, image.shape[2])
    batch = box_ind.reshape(-1, 1, 1)

    def at(y: Any, x: Any) -> Any:
        y, x = (xp.clip(v, 0, n - 1).astype(np.int64) for v, n in ((y, image.shape[1]), (x, image.shape[2])))
        return image[batch, y[:, :, None], x[:, None, :]].astype(np.float32)

    if method == "nearest":
        made = at(xp.floor(ys + np.float32(0.5)), xp.floor(xs + np.float32(0.5)))
    else:
        y0, x0 = xp.floor(ys), xp.floor(xs)
        y1, x1 = xp.ceil(ys), xp.ceil(xs)
        across, down = (xs - x0)[:, None, :, None], (ys - y0)[:, :, None, None]
        upper = at(y0, x0) + (at(y0, x1) - at(y0, x0)) * across
        lower = at(y1, x0) + (at(y1, x1) - at(y1, x0)) * across
        made = upper + (lower - upper) * down
    inside = (y_inside[:, :, None] & x_inside[:, None, :])[..., None]
    return delivered(xp, xp.where(inside, made, np.float32(extrapolation_value)), np.float32, out)


def _places(xp: Any, first: Any, last: Any, count: int, size: int) -> tuple[Any, Any]:
    """The places of the rows of crops in an image, ``[boxes, count]``, and which of them are in it."""
    end = np.float32(size - 1)
    steps = xp.arange(count, dtype=np.float32)
    if count > 1:
        found = (first * end)[:, None] + steps * ((last - first) * end / np.float32(count - 1))[:, None]
    else:
        found = (np.float32(0.5) * (first + last) * end)[:, None]
    return found, (found >= 0) & (found <= end)


class _Corners:
    """The four pixels around each place of the crops, and the shares of the lower and the right ones."""

    def __init__(self, boxes: Any, height: int, width: int, rows: int, columns: int) -> None:
        top, left, bottom, right = boxes.astype(np.float32).T
        self.ys, y_inside = _places(np, top, bottom, rows, height)
        self.xs, x_inside = _places(np, left, right, columns, width)
        self.inside = (y_inside[:, :, None] & x_inside[:, None, :])[..., None]
        y0, x0 = (np.floor(v) for v in (self.ys, self.xs))
        self.down, self.across = (self.ys - y0)[:, :, None, None], (self.xs - x0)[:, None, :, None]
        self.rows = [_pixels(v, height) for v in (y0, np.ceil(self.ys))]
        self.columns = [_pixels(v, width) for v in (x0, np.ceil(self.xs))]


def _pixels(places: Any, size: int) -> Any:
    return np.clip(places, 0, size - 1).astype(np.int64)


def _image_gradient(
    xp: Any, grads: Any, boxes: Any, box_ind: Any, image_size: Any, T: DType, method: str, out: Any = None
) -> Any:
    dy, its_boxes, images = (on_host(xp, v) for v in (grads, boxes, box_ind))
    made = np.zeros(image_size, np.float32)
    corners = _Corners(its_boxes, *image_size[1:3], *dy.shape[1:3])
    dy = np.where(corners.inside, dy, 0)
    batch = images.reshape(-1, 1, 1)
    if method == "nearest":
        rows, columns = (
            _pixels(np.floor(v + np.float32(0.5)), n)
            for v, n in ((corners.ys, image_size[1]), (corners.xs, image_size[2]))
        )
        np.add.at(made, (batch, rows[:, :, None], columns[:, None, :]), dy)
        return delivered(xp, xp.asarray(made), T.np, out)
    for rows, down in zip(corners.rows, (1 - corners.down, corners.down), strict=True):
        for columns, across in zip(corners.columns, (1 - corners.across, corners.across), strict=True):
            np.add.at(made, (batch, rows[:, :, None], columns[:, None, :]), dy * down * across)
    return delivered(xp, xp.asarray(made), T.np, out)


def _box_gradient(xp: Any, grads: Any, image: Any, boxes: Any, box_ind: Any, out: Any = None) -> Any:
    dy, pixels, its_boxes, images = (on_host(xp, v) for v in (grads, image, boxes, box_ind))
    (height, width), (rows, columns) = pixels.shape[1:3], dy.shape[1:3]
    corners = _Corners(its_boxes, height, width, rows, columns)
    batch = images.reshape(-1, 1, 1)
    (a, b), (c, d) = (
        [pixels[batch, y[:, :, None], x[:, None, :]].astype(np.float32) for x in corners.columns]
        for y in corners.rows
    )
    dy = np.where(corners.inside, dy, 0)
    slope_y = (dy * ((1 - corners.across) * (c - a) + corners.across * (d - b))).sum(axis=(2, 3))
    slope_x = (dy * ((1 - corners.down) * (b - a) + corners.down * (d - c))).sum(axis=(1, 3))
    made = np.empty(its_boxes.shape, np.float32)
    for first, slope, size in ((0, slope_y, height), (1, slope_x, width)):
        count = slope.shape[1]
        share = np.arange(count, dtype=np.float32) / (count - 1) if count > 1 else np.array([0.5], np.float32)
        made[:, first] = (slope * (1 - share)).sum(axis=1) * (size - 1)
        made[:, first + 2] = (slope * share).sum(axis=1) * (size - 1)
    return delivered(xp, xp.asarray(made), np.float32, out)


_SAMPLE = (np.array([[0, 0, 1, 1], [0.2, -0.1, 0.7, 1.2]], np.float32), np.array([0, 1], np.int32))

crop_and_resize_grad_image_op: OpDef[Tensor] = define_op(
    "CropAndResizeGradImage",
    "grads: float32, boxes: float32, box_ind: int32, image_size: host int32 "
    "-> output: T in float16 | float32 | float64",
    attrs="T: type = float32, method: string = 'bilinear'",
    shape=lambda s: [(s.value(3) and tuple(s.value(3))) or (None,) * 4],
    kernel=_image_gradient,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [
        sample(
            rng.standard_normal((2, 3, 2, 1)).astype(np.float32), *_SAMPLE, np.array([2, 5, 4, 1], np.int32),
            method=method,
        )
        for method in ("bilinear", "nearest")
    ],
    doc="The gradient of `CropAndResize` with respect to the images.",
)  # fmt: skip

crop_and_resize_grad_boxes_op: OpDef[Tensor] = define_op(
    "CropAndResizeGradBoxes",
    "grads: float32, image: T in REAL, boxes: float32, box_ind: int32 -> output: float32",
    shape=lambda s: [s.shapes[2]],
    kernel=_box_gradient,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [
        sample(
            rng.standard_normal((2, 3, 2, 1)).astype(np.float32),
            rng.standard_normal((2, 5, 4, 1)).astype(np.float32),
            *_SAMPLE,
        )
    ],
    doc="The gradient of `CropAndResize` with respect to the boxes, by the bilinear rule.",
)


def _crop_vjp(op: Operation, dy: Tensor) -> list[Any]:
    image, boxes, places, _ = op.inputs
    method = op.get_attr("method")
    of_boxes = crop_and_resize_grad_boxes_op(dy, image, boxes, places)
    if image.dtype not in dtypes.FLOATING:
        return [None, of_boxes, None, None]
    of_image = crop_and_resize_grad_image_op(dy, boxes, places, shape(image), method=method)
    return [cast(of_image, image.dtype), of_boxes, None, None]


crop_and_resize_op = define_op(
    "CropAndResize",
    "image: T in REAL, boxes: float32, box_ind: int32, crop_size: host int32 -> crops: float32",
    attrs="method: string = 'bilinear', extrapolation_value: float = 0.0",
    shape=_cropped,
    kernel=_crop,
    vjp=_crop_vjp,
    samples=lambda rng: [
        sample(
            rng.standard_normal((2, 5, 4, 3)).astype(np.float32),
            np.array([[0, 0, 1, 1], [0.2, -0.1, 0.7, 1.2], [0.9, 0.5, 0.1, 0.4]], np.float32),
            np.array([0, 1, 1], np.int32),
            np.array([3, 2], np.int32),
            method=method,
            extrapolation_value=-1.0,
            differentiable=method == "bilinear",
        )
        for method in ("bilinear", "nearest")
    ],
    doc="Boxes of images, in parts of their height and width, resized to one size.",
)
