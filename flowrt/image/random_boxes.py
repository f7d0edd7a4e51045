"""Random parts of an image that show enough of what is in it, to train on.

C. Szegedy et al., Going Deeper with Convolutions (2014), section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowrt.dtypes import float32, int32
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, stack, unstack
from flowrt.graph.ops.array.reductions import reduce_any, reduce_prod
from flowrt.graph.ops.array.statistics import argmax
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.comparison import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    where_v2,
)
from flowrt.graph.ops.elementwise.division import div_no_nan
from flowrt.graph.ops.elementwise.math import floor, rint, sqrt
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.ops.text.assertions import assert_positive
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.variables.graph_scopes import control_dependencies, name_scope

__all__ = ["sample_distorted_bounding_box"]


class DistortedBox(NamedTuple):
    """A part of an image: where it begins, [y, x, 0], and its size, [height, width, -1], for `slice`, and
    ``bboxes``, [1, 1, 4], for `draw_bounding_boxes`.
    """

    begin: Tensor
    size: Tensor
    bboxes: Tensor


def sample_distorted_bounding_box(
    image_size: NumericLike,
    bounding_boxes: NumericLike,
    seed: int | None = None,
    seed2: int | None = None,
    min_object_covered: NumericLike = 0.1,
    aspect_ratio_range: Sequence[float] | None = None,
    area_range: Sequence[float] | None = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> DistortedBox:
    """A random part of an image of ``image_size``, [height, width, channels], that covers at least
    ``min_object_covered`` of one of ``bounding_boxes``, [1, n, 4], of parts of height and width.

    Its width is that of its height times a number in ``aspect_ratio_range`` ([0.75, 1.33]), its share of the
    image in ``area_range`` ([0.05, 1]). After ``max_attempts`` (100) without such a part it is the whole
    image. Without boxes, ``use_image_if_no_bounding_boxes`` makes the image the box; otherwise
    `InvalidArgumentError` is raised at run time. Raises it for ranges that are none.
    """
    low, high = aspect_ratio_range or (0.75, 1.33)
    least, most = area_range or (0.05, 1.0)
    if not 0 < low <= high or not 0 < least <= most <= 1:
        raise misuse(
            "sample_distorted_bounding_box: expected 0 < low <= high aspect ratios, and areas up to 1; got "
            f"{aspect_ratio_range}, {area_range}",
            InvalidArgumentError,
        )
    with name_scope(name, "sample_distorted_bounding_box", [image_size, bounding_boxes]):
        whole = cast(convert_to_tensor(image_size)[:2], float32)
        height, width = unstack(whole)
        boxes = _objects(bounding_boxes, bool(use_image_if_no_bounding_boxes))
        draws = random_uniform([4, max_attempts or 100], seed=seed if seed is not None else seed2)
        ratio = low + (high - low) * draws[0]
        smallest, largest = least * height * width, most * height * width
        fewest = rint(sqrt(smallest / ratio))
        tallest = minimum(rint(sqrt(largest / ratio)), minimum(height, floor((width + 0.5) / ratio)))
        tall = minimum(fewest, tallest) + floor(draws[1] * (maximum(tallest - fewest, 0.0) + 1))
        tall += cast(less(tall * rint(tall * ratio), smallest), float32)
        tall -= cast(greater(tall * rint(tall * ratio), largest), float32)
        wide = rint(tall * ratio)
        y, x = floor(draws[2] * (height - tall + 1)), floor(draws[3] * (width - wide + 1))
        is_part = _all(
            greater(tall, 0.0), greater(wide, 0.0), less_equal(tall, height), less_equal(wide, width),
            greater_equal(tall * wide, smallest), less_equal(tall * wide, largest),
        )  # fmt: skip
        shares = _covered(stack([y, x, y + tall, x + wide], 1), floor(boxes * concat([whole, whole], 0)))
        is_good = logical_and(is_part, reduce_any(greater_equal(shares, min_object_covered), 1))
        first = argmax(cast(is_good, int32))
        found = stack([y, x, tall, wide], 1)[first]
        chosen = where_v2(reduce_any(is_good), found, concat([[0.0, 0.0], whole], 0))
        corners = concat([chosen[:2], chosen[:2] + chosen[2:]], 0) / concat([whole, whole], 0)
        begin, size = cast(chosen[:2], int32), cast(chosen[2:], int32)
        return DistortedBox(concat([begin, [0]], 0), concat([size, [-1]], 0), reshape(corners, [1, 1, 4]))


def _objects(bounding_boxes: NumericLike, may_be_image: bool) -> Tensor:
    """The boxes, [n, 4]; the image where there are none."""
    boxes = reshape(cast(convert_to_tensor(bounding_boxes, preferred_dtype=float32), float32), [-1, 4])
    count = shape(boxes)[0]
    if not may_be_image:
        with control_dependencies(
            [assert_positive(count, message="expected bounding boxes; there are none")]
        ):
            return boxes + 0.0
    image = where_v2(equal(count, 0), [[0.0, 0.0, 1.0, 1.0]], [[0.0, 0.0, 0.0, 0.0]])
    return concat([boxes, image], 0)  # a box without an area is covered by nothing


def _covered(parts: Tensor, boxes: Tensor) -> Tensor:
    """The share of each of ``boxes`` [n, 4] that is in each of ``parts`` [m, 4]: [m, n]; 0 of one without an
    area.
    """
    ends = minimum(parts[:, None, 2:], boxes[None, :, 2:])
    inside = maximum(ends - maximum(parts[:, None, :2], boxes[None, :, :2]), 0.0)
    return div_no_nan(reduce_prod(inside, 2), reduce_prod(boxes[:, 2:] - boxes[:, :2], 1)[None, :])


def _all(*conditions: Tensor) -> Tensor:
    found, *rest = conditions
    for each in rest:
        found = logical_and(found, each)
    return found
