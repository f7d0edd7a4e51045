"""Boxes of pictures: drawn, and drawn at random for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.nn.boxes import on_host
from flowrt.graph.shapes import Shape, format_shape

_COLORS = np.array(
    [
        (1, 1, 0, 1), (0, 0, 1, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0.5, 0, 0.5, 1),
        (0.5, 0.5, 0, 1), (0.5, 0, 0, 1), (0, 0, 0.5, 1), (0, 1, 1, 1), (1, 0, 1, 1),
    ],
    np.float32,
)  # fmt: skip
"""TensorFlow's colours, in turn."""


def _shape(s: ShapeContext) -> Sequence[Shape]:
    images, boxes, colors = s.shapes
    if images is not None and len(images) != 4:
        raise InvalidArgumentError(
            f"images: expected [batch, height, width, channels]; got {format_shape(images)}"
        )
    if boxes is not None and (len(boxes) != 3 or boxes[2] not in (4, None)):
        raise InvalidArgumentError(f"boxes: expected [batch, boxes, 4]; got {format_shape(boxes)}")
    if colors is not None and len(colors) != 2:
        raise InvalidArgumentError(f"colors: expected [colors, channels]; got {format_shape(colors)}")
    return [images]


def _draw(xp: Any, images: Any, boxes: Any, colors: Any, out: Any = None) -> Any:
    made, palette = np.array(on_host(xp, images)), on_host(xp, colors)
    palette = palette if len(palette) else _COLORS
    height, width, depth = made.shape[1:]
    corners = on_host(xp, boxes).astype(np.float32) * np.array([height - 1, width - 1] * 2, np.float32)
    for image, each in zip(made, corners.astype(np.int64), strict=True):
        for i, (top, left, bottom, right) in enumerate(each.tolist()):
            inside = top <= bottom and left <= right
            if inside and top < height and left < width and bottom >= 0 and right >= 0:
                color = np.ones(depth) if depth == 1 else palette[i % len(palette), :depth]
                rows, columns = slice(max(top, 0), bottom + 1), slice(max(left, 0), right + 1)
                for row in {top, bottom} & set(range(height)):
                    image[row, columns] = color
                for column in {left, right} & set(range(width)):
                    image[rows, column] = color
    return delivered(xp, xp.asarray(made), images.dtype, out)


draw_bounding_boxes_op: OpDef[Tensor] = define_op(
    "DrawBoundingBoxesV2",
    "images: T in float16 | float32, boxes: float32, colors: float32 -> output: T",
    shape=_shape,
    kernel=_draw,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(
            rng.uniform(0, 1, (2, 6, 5, 3)).astype(np.float32),
            np.array(
                [[[0, 0, 1, 1], [0.3, 0.2, 0.8, 1.4]], [[0.5, -0.5, 0.5, 0.6], [0.9, 0, 0.1, 1]]], np.float32
            ),
            np.zeros((0, 0), np.float32),
        ),
    ),
    doc="Images with the edges of boxes, given in parts of height and width, in TensorFlow's colours.",
)
