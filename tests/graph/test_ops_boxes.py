"""Non-maximum suppression against a loop over pairs of boxes, and against values that TensorFlow gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrt.errors import InvalidArgumentError
from flowrt.graph.ops.nn import boxes as ops
from tests.graph.evaluation import value_of, values_of


def overlap(a: Any, b: Any) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    common = np.prod(np.maximum(high - low, 0))
    both = np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common
    return float(common / both) if both else 0.0


def kept(boxes: Any, scores: Any, most: int, limit: float, least: float) -> list[int]:
    found: list[int] = []
    for i in sorted(range(len(scores)), key=lambda i: (-scores[i], i)):
        is_wanted = scores[i] > least and len(found) < most
        if is_wanted and all(overlap(boxes[i], boxes[j]) <= limit for j in found):
            found.append(i)
    return found


@pytest.mark.parametrize("count", [0, 1, 30, 300])
@pytest.mark.parametrize("limit", [0.0, 0.2, 0.6, 1.0])
def test_boxes_that_overlap_a_better_one_are_dropped(count: int, limit: float) -> None:
    rng = np.random.default_rng(count)
    low = rng.uniform(0, 1, (count, 2))
    boxes = np.concatenate([low, low + rng.uniform(0, 0.4, (count, 2))], 1).astype(np.float32)
    scores = np.round(rng.uniform(0, 1, count), 2).astype(np.float32)  # some are equal
    swapped = boxes[:, [2, 1, 0, 3]]  # any two opposite corners
    for most, given in ((20, boxes), (1000, swapped), (0, boxes)):
        found = value_of(ops.non_max_suppression_v3(given, scores, most, np.float32(limit), np.float32(0.1)))
        assert found.tolist() == kept(boxes, scores, most, limit, np.float32(0.1))


BOXES = np.array(
    [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1], [0, 100, 1, 101]],
    np.float32,
)
SCORES = np.array([0.9, 0.75, 0.6, 0.95, 0.5, 0.3], np.float32)


def test_outputs_of_each_version() -> None:
    """The values that TensorFlow 2.21 gives."""
    half, none = np.float32(0.5), np.float32(0)
    assert value_of(ops.non_max_suppression_v2(BOXES, SCORES, 3, half)).tolist() == [3, 0, 5]
    padded = ops.non_max_suppression_v4(BOXES, SCORES, 5, half, none, pad_to_max_output_size=True)
    assert [each.tolist() for each in values_of(list(padded), {})] == [[3, 0, 5, 0, 0], 3]
    assert padded[0].shape == [5]
    places, scores, count = values_of(
        list(ops.non_max_suppression_v5(BOXES, SCORES, 6, half, none, half)), {}
    )
    assert places.tolist() == [3, 0, 1, 5, 4, 2]
    np.testing.assert_allclose(scores, SOFT, rtol=1e-5)
    assert count == 6


SOFT = [0.95, 0.9, 0.38400355, 0.3, 0.2560026, 0.19697244]


def test_wrong_boxes() -> None:
    half = np.float32(0.5)
    for boxes, scores, message in (
        (BOXES[:, :3], SCORES, r"boxes: expected shape \[n, 4\]; got \[6, 3\]"),
        (BOXES, SCORES[:5], "expected a score for each box; got 6 boxes, 5 scores"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            ops.non_max_suppression_v2(boxes, scores, 3, half)
    for most, limit, message in ((-1, half, "max_output_size: .*got -1"), (1, 3 * half, "iou_threshold")):
        kept_places = ops.non_max_suppression_v2(BOXES, SCORES, most, limit)
        with pytest.raises(InvalidArgumentError, match=message):
            value_of(kept_places)
