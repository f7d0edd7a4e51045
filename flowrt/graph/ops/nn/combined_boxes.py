"""Non-maximum suppression of the boxes of each class of each image, the best of all classes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.nn.boxes import kept_boxes
from flowrt.graph.shapes import Shape, format_shape


def _count(s: ShapeContext) -> int | None:
    """The boxes of each image that the outputs have room for."""
    each, total, scores = s.value(2), s.value(3), s.shapes[1]
    if not s.attrs["pad_per_class"]:
        return None if total is None else int(total)
    if each is None or total is None or scores is None or scores[2] is None:
        return None
    return min(int(each) * scores[2], int(total))


def _shape(s: ShapeContext) -> Sequence[Shape]:
    boxes, scores = s.shapes[:2]
    if boxes is not None and (len(boxes) != 4 or boxes[3] not in (4, None)):
        raise InvalidArgumentError(f"boxes: expected [images, n, classes, 4]; got {format_shape(boxes)}")
    if scores is not None and len(scores) != 3:
        raise InvalidArgumentError(f"scores: expected [images, n, classes]; got {format_shape(scores)}")
    images, count = None if scores is None else scores[0], _count(s)
    return [(images, count, 4), (images, count), (images, count), (images,)]


def _kernel(
    xp: Any, boxes: Any, scores: Any, each: int, total: int, overlap: Any, least: Any, pad_per_class: bool,
    clip_boxes: bool, out: Any = None,
) -> list[Any]:  # fmt: skip
    boxes, scores = (x if xp is np else xp.asnumpy(x) for x in (boxes, scores))
    images, classes = scores.shape[0], scores.shape[2]
    count = min(each * classes, total) if pad_per_class else total
    made = np.zeros((images, count, 4), np.float32), np.zeros((images, count), np.float32)
    kinds, valid = np.zeros((images, count), np.float32), np.zeros(images, np.int32)
    for image in range(images):
        found = []
        for kind in range(classes):
            own = boxes[image, :, kind if boxes.shape[2] > 1 else 0]
            places = kept_boxes(own, scores[image, :, kind], each, float(overlap), float(least))
            found += [(scores[image, place, kind], kind, own[place]) for place in places]
        best = sorted(found, key=lambda each: -each[0])[:count]
        valid[image] = len(best)
        for i, (score, kind, box) in enumerate(best):
            made[0][image, i] = np.clip(box, 0, 1) if clip_boxes else box
            made[1][image, i], kinds[image, i] = score, kind
    results = (*made, kinds, valid)
    given = (None,) * len(results) if out is None else out
    return [delivered(xp, xp.asarray(x), x.dtype, into) for x, into in zip(results, given, strict=True)]


combined_non_max_suppression: OpDef[list[Tensor]] = define_op(
    "CombinedNonMaxSuppression",
    "boxes: float32, scores: float32, max_output_size_per_class: host int32, max_total_size: host int32, "
    "iou_threshold: float32, score_threshold: float32 -> nmsed_boxes: float32, nmsed_scores: float32, "
    "nmsed_classes: float32, valid_detections: int32",
    attrs="pad_per_class: bool = False, clip_boxes: bool = True",
    shape=_shape,
    kernel=_kernel,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [
        sample(
            rng.uniform(0, 1, (2, 6, 1, 4)).astype(np.float32),
            rng.uniform(0, 1, (2, 6, 3)).astype(np.float32),
            np.int32(3),
            np.int32(5),
            np.float32(0.4),
            np.float32(0.2),
        )
    ],
    doc="The boxes that are kept of each image, the best first, with scores and classes, filled up with 0.",
)
