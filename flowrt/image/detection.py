"""Boxes: [y1, x1, y2, x2], mostly in parts of height and width."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.dtypes import int32
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.nn.boxes import non_max_suppression_v3, non_max_suppression_v4, non_max_suppression_v5
from flowrt.graph.ops.nn.combined_boxes import combined_non_max_suppression as combined_op
from flowrt.graph.ops.nn.crops import crop_and_resize_op
from flowrt.graph.ops.nn.picture_boxes import draw_bounding_boxes_op
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike

__all__ = [
    "combined_non_max_suppression", "crop_and_resize", "draw_bounding_boxes", "non_max_suppression",
    "non_max_suppression_padded", "non_max_suppression_with_scores",
]  # fmt: skip

_NO_LIMIT = float("-inf")


def non_max_suppression(
    boxes: NumericLike,
    scores: NumericLike,
    max_output_size: NumericLike,
    iou_threshold: NumericLike = 0.5,
    score_threshold: NumericLike = _NO_LIMIT,
    name: str | None = None,
) -> Tensor:
    """The places of at most ``max_output_size`` of the ``boxes``, [n, 4], best ``scores``, [n], first: those
    above ``score_threshold`` that overlap no better one by more than ``iou_threshold`` of the area of both.
    """
    asked = _boxes(boxes, scores, max_output_size, iou_threshold, score_threshold)
    return non_max_suppression_v3(*asked, name=name)


def non_max_suppression_padded(
    boxes: NumericLike,
    scores: NumericLike,
    max_output_size: NumericLike,
    iou_threshold: NumericLike = 0.5,
    score_threshold: NumericLike = _NO_LIMIT,
    pad_to_max_output_size: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The places, as `non_max_suppression`, padded with 0 on request, and their number."""
    places, count = non_max_suppression_v4(
        *_boxes(boxes, scores, max_output_size, iou_threshold, score_threshold),
        pad_to_max_output_size=pad_to_max_output_size, name=name,
    )  # fmt: skip
    return places, count


def non_max_suppression_with_scores(
    boxes: NumericLike,
    scores: NumericLike,
    max_output_size: NumericLike,
    iou_threshold: NumericLike = 0.5,
    score_threshold: NumericLike = _NO_LIMIT,
    soft_nms_sigma: Any = 0.0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The places, as `non_max_suppression`, and their scores: with ``soft_nms_sigma`` above 0 a box that
    overlaps a better one is kept with a smaller score.
    """
    asked = _boxes(boxes, scores, max_output_size, iou_threshold, score_threshold)
    places, kept, _ = non_max_suppression_v5(*asked, np.array(soft_nms_sigma, asked[0].dtype.np), name=name)
    return places, kept


def _boxes(boxes: Any, scores: Any, most: Any, *limits: Any) -> tuple[Any, ...]:
    x = convert_to_tensor(boxes)
    numbers = (convert_to_tensor(limit, x.dtype) for limit in limits)
    return x, convert_to_tensor(scores, x.dtype), convert_to_tensor(most, int32), *numbers


def combined_non_max_suppression(
    boxes: Any,
    scores: Any,
    max_output_size_per_class: Any,
    max_total_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = _NO_LIMIT,
    pad_per_class: bool = False,
    clip_boxes: bool = True,
    name: str | None = None,
) -> list[Tensor]:
    """`non_max_suppression` of every class of a batch: boxes [batch, n, 1 or classes, 4], scores [batch, n,
    classes]. Returns boxes [batch, found, 4], scores and classes [batch, found], and numbers [batch].
    """
    return combined_op(
        boxes, scores, max_output_size_per_class, max_total_size, np.float32(iou_threshold),
        np.float32(score_threshold), pad_per_class=pad_per_class, clip_boxes=clip_boxes, name=name,
    )  # fmt: skip


def crop_and_resize(
    image: NumericLike,
    boxes: NumericLike,
    box_ind: NumericLike | None = None,
    crop_size: NumericLike | None = None,
    method: str = "bilinear",
    extrapolation_value: float = 0,
    name: str | None = None,
    box_indices: NumericLike | None = None,
) -> Tensor:
    """The part of image ``box_ind[i]`` in ``boxes[i]``, for every i, resized to ``crop_size``, [height,
    width]: [boxes, height, width, channels] float32. Outside of the image it is ``extrapolation_value``.

    Raises `InvalidArgumentError` without ``box_ind``, or ``box_indices``, its newer name, and ``crop_size``.
    """
    places = box_ind if box_indices is None else box_indices
    if places is None or crop_size is None:
        raise misuse("crop_and_resize: expected box_ind and crop_size; got None", InvalidArgumentError)
    return crop_and_resize_op(
        image, boxes, places, crop_size, method=method, extrapolation_value=float(extrapolation_value),
        name=name,
    )  # fmt: skip


def draw_bounding_boxes(
    images: NumericLike, boxes: NumericLike, name: str | None = None, colors: Any = None
) -> Tensor:
    """Images [batch, height, width, channels] with the edges of their boxes, [batch, n, 4], drawn on them, in
    ten colours in turn. ``colors`` of one's own, [m, channels], are used instead.
    """
    given = np.zeros((0, 0), np.float32) if colors is None else colors
    return draw_bounding_boxes_op(images, boxes, given, name=name)
