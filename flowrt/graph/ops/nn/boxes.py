"""Non-maximum suppression: of boxes that overlap, the ones with the best scores.

Boxes are two opposite corners each, ``[y1, x1, y2, x2]``. The kernels run on the host: what is chosen next
depends on what was chosen before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.shapes import Shape, format_shape

AT_ONCE = 128
"""Boxes that are compared with each other in one step."""


def _overlaps(a: Any, b: Any) -> Any:
    """The area in common over the area of both, ``[n, m]``, of corners ``[4, n]`` and ``[4, m]``; NaN for two
    boxes without an area.
    """
    height = np.minimum(a[2][:, None], b[2])
    height -= np.maximum(a[0][:, None], b[0])
    width = np.minimum(a[3][:, None], b[3])
    width -= np.maximum(a[1][:, None], b[1])
    common = np.maximum(height, 0, out=height)
    common *= np.maximum(width, 0, out=width)
    both = np.add(_areas(a)[:, None], _areas(b), out=width)
    both -= common
    with np.errstate(invalid="ignore"):
        return np.divide(common, both, out=both)


def _areas(corners: Any) -> Any:
    return (corners[2] - corners[0]) * (corners[3] - corners[1])


def _corners(boxes: Any) -> Any:
    """``[4, n]``, the lower corners first, in float32 at least."""
    wide = boxes.T.astype(np.float32) if boxes.dtype == np.float16 else boxes.T
    return np.concatenate([np.minimum(wide[:2], wide[2:]), np.maximum(wide[:2], wide[2:])])


def kept_boxes(boxes: Any, scores: Any, most: int, overlap: float, least: float) -> Any:
    """The places of at most ``most`` boxes, best first, with scores above ``least``, none of which overlaps a
    better one of them by more than ``overlap``. Of equal scores the first is the better.
    """
    kept, corners = np.zeros(0, np.int64), np.zeros((4, 0), np.float32)
    for places in _best_first(scores, least, most):
        rows = _corners(boxes[places])
        is_free = ~(_overlaps(rows, corners) > overlap).any(axis=1)
        places, rows = places[is_free], rows[:, is_free]
        alive = _without_overlap(_overlaps(rows, rows) > overlap)
        kept, corners = (
            np.concatenate([kept, places[alive]]),
            np.concatenate([corners, rows[:, alive]], axis=1),
        )
        if len(kept) >= most:
            break
    return kept[:most]


def _without_overlap(others: Any) -> Any:
    """The boxes, as bools ``[n]``, that overlap none of those before them that are kept themselves;
    ``others``, ``[n, n]``, says which pairs overlap.
    """
    rows = np.packbits(np.triu(others, 1), axis=1, bitorder="little")
    taken = 0  # bits, and as many Python integers: 128 of them take 20 us, as slices of arrays 150
    for i, row in enumerate(rows):
        if not taken >> i & 1:
            taken |= int.from_bytes(row.tobytes(), "little")
    count = len(others)
    bits = np.frombuffer(taken.to_bytes(-(-count // 8), "little"), np.uint8)
    return np.unpackbits(bits, count=count, bitorder="little") == 0


def _best_first(scores: Any, least: float, most: int) -> Iterator[Any]:
    """The places of scores above ``least``, the best first, `AT_ONCE` of them at a time. What comes behind
    the first ``4 * most`` is sorted when it is asked for: all of 12,800 take 0.9 ms, these 0.1.
    """
    left = np.flatnonzero(scores > least)
    count = max(4 * most, AT_ONCE)
    if len(left) > 2 * count:
        values = scores[left]
        is_first = values >= np.partition(values, -count)[-count]
        yield from _in_order(scores, left[is_first])
        left = left[~is_first]
    yield from _in_order(scores, left)


def _in_order(scores: Any, places: Any) -> Iterator[Any]:
    order = places[np.argsort(-scores[places], kind="stable")]
    for start in range(0, len(order), AT_ONCE):
        yield order[start : start + AT_ONCE]


def _decayed_boxes(boxes: Any, scores: Any, most: int, least: float, sigma: float) -> tuple[Any, Any]:
    """The places where no box is dropped for an overlap (compare `kept_boxes`): each that is taken makes the
    scores of the others smaller (Bodla et al., 2017), times ``exp(-overlap^2 / (2 sigma))``. Also the scores
    with which they were taken.
    """
    corners, now = _corners(boxes), scores.astype(np.float32)
    alive = now > least
    taken: list[int] = []
    with_scores: list[Any] = []
    while alive.any() and len(taken) < most:
        best = int(np.argmax(np.where(alive, now, -np.inf)))
        taken.append(best)
        with_scores.append(now[best])
        alive[best] = False
        shared = np.nan_to_num(_overlaps(corners[:, [best]], corners)[0])
        now *= np.exp(np.float32(-0.5 / sigma) * shared * shared)
        alive &= now > least
    return np.array(taken, np.int64), np.array(with_scores, scores.dtype)


def on_host(xp: Any, x: Any) -> Any:
    return x if xp is np else xp.asnumpy(x)


def _suppressed(
    xp: Any, boxes: Any, scores: Any, most: int, overlap: Any, least: Any = -np.inf, sigma: Any = 0.0
) -> tuple[Any, Any]:
    """The places and scores of the boxes that are kept."""
    limit, least, spread = float(overlap), float(least), float(sigma)
    if not 0 <= limit <= 1:
        raise InvalidArgumentError(f"iou_threshold: expected a number from 0 to 1; got {limit}")
    if most < 0 or spread < 0:
        name, value = ("max_output_size", most) if most < 0 else ("soft_nms_sigma", spread)
        raise InvalidArgumentError(f"{name}: expected at least 0; got {value}")
    here, points = on_host(xp, boxes), on_host(xp, scores)
    if spread:
        places, found = _decayed_boxes(here, points, most, least, spread)
    else:
        places = kept_boxes(here, points, most, limit, least)
        found = points[places]
    return places.astype(np.int32), found


def _padded(x: Any, length: int) -> Any:
    return np.concatenate([x, np.zeros(length - len(x), x.dtype)])


def _check(s: ShapeContext) -> None:
    s.check_scalars(*range(2, len(s.shapes)))
    boxes, scores = s.shapes[:2]
    if boxes is not None and (len(boxes) != 2 or boxes[1] not in (None, 4)):
        raise InvalidArgumentError(f"boxes: expected shape [n, 4]; got {format_shape(boxes)}")
    if scores is not None and len(scores) != 1:
        raise InvalidArgumentError(f"scores: expected shape [n]; got {format_shape(scores)}")
    if boxes and scores and None not in (boxes[0], scores[0]) and boxes[0] != scores[0]:
        raise InvalidArgumentError(f"expected a score for each box; got {boxes[0]} boxes, {scores[0]} scores")


def _rows(s: ShapeContext) -> Sequence[Shape]:
    _check(s)
    return [(None,)]


def _rows_that_may_be_padded(s: ShapeContext) -> Sequence[Shape]:
    _check(s)
    rows = (s.value(2) if s.attrs["pad_to_max_output_size"] else None,)
    return [rows, ()] if len(s.op.outputs) == 2 else [rows, rows, ()]


def _samples(rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
    corners = rng.uniform(0, 1, (9, 4)).astype(np.float32)
    yield corners, rng.uniform(0, 1, 9).astype(np.float32)
    yield np.float16(corners[:5]), np.array([0.5, 0.5, 0.1, 0.9, 0.5], np.float16)
    yield np.zeros((0, 4), np.float32), np.zeros(0, np.float32)


def _calls(rng: np.random.Generator, numbers: tuple[float, ...], **attrs: Any) -> Iterator[Sample]:
    for boxes, scores in _samples(rng):
        yield sample(boxes, scores, np.array(4, np.int32), *map(boxes.dtype.type, numbers), **attrs)


_BOXES = "boxes: T in float16 | float32, scores: T, max_output_size: host int32"
_OVERLAP = "iou_threshold: T_threshold in float16 | float32"
_DOC = """The places of at most ``max_output_size`` boxes ``[n, 4]``, best score first, none of which overlaps
    a better one by more than ``iou_threshold`` (of the area of both)"""

non_max_suppression_v2: OpDef[Tensor] = define_op(
    "NonMaxSuppressionV2",
    f"{_BOXES}, {_OVERLAP} -> selected_indices: int32",
    shape=_rows,
    kernel=lambda xp, *inputs: xp.asarray(_suppressed(xp, *inputs)[0]),
    samples=lambda rng: _calls(rng, (0.3,)),
    doc=f"{_DOC}.",
)

non_max_suppression_v3: OpDef[Tensor] = define_op(
    "NonMaxSuppressionV3",
    f"{_BOXES}, {_OVERLAP}, score_threshold: T_threshold -> selected_indices: int32",
    shape=_rows,
    kernel=lambda xp, *inputs: xp.asarray(_suppressed(xp, *inputs)[0]),
    samples=lambda rng: _calls(rng, (0.3, 0.2)),
    doc=f"{_DOC}; scores are above ``score_threshold``.",
)


def _v4(xp: Any, *inputs: Any, pad_to_max_output_size: bool) -> Any:
    places, _ = _suppressed(xp, *inputs)
    padded = _padded(places, inputs[2]) if pad_to_max_output_size else places
    return xp.asarray(padded), xp.asarray(np.int32(len(places)))


non_max_suppression_v4: OpDef[list[Tensor]] = define_op(
    "NonMaxSuppressionV4",
    f"{_BOXES}, {_OVERLAP}, score_threshold: T_threshold -> selected_indices: int32, valid_outputs: int32",
    attrs="pad_to_max_output_size: bool = False",
    shape=_rows_that_may_be_padded,
    kernel=_v4,
    samples=lambda rng: (*_calls(rng, (0.3, 0.2)), *_calls(rng, (0.1, 0.2), pad_to_max_output_size=True)),
    doc=f"{_DOC}, padded with 0 on request, and their number; scores are above ``score_threshold``.",
)


def _v5(xp: Any, *inputs: Any, pad_to_max_output_size: bool) -> Any:
    places, scores = _suppressed(xp, *inputs)
    count = np.int32(len(places))
    if pad_to_max_output_size:
        places, scores = _padded(places, inputs[2]), _padded(scores, inputs[2])
    return xp.asarray(places), xp.asarray(scores), xp.asarray(count)


non_max_suppression_v5: OpDef[list[Tensor]] = define_op(
    "NonMaxSuppressionV5",
    f"{_BOXES}, iou_threshold: T, score_threshold: T, soft_nms_sigma: T "
    "-> selected_indices: int32, selected_scores: T, valid_outputs: int32",
    attrs="pad_to_max_output_size: bool = False",
    shape=_rows_that_may_be_padded,
    kernel=_v5,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        *_calls(rng, (0.3, 0.2, 0.0)),
        *_calls(rng, (0.9, 0.2, 0.5), pad_to_max_output_size=True),
    ),
    doc=f"{_DOC}, and their scores and number. With ``soft_nms_sigma`` above 0 boxes are not dropped "
    "for an overlap: their scores become smaller.",
)


# --- of each class, as ONNX has it


def _by_class(
    xp: Any, boxes: Any, scores: Any, most: int, overlap: Any, least: Any, center_point_box: bool
) -> Any:
    limit, least = float(overlap), float(least)
    here, points = on_host(xp, boxes), on_host(xp, scores)
    if center_point_box:
        middle, half = here[..., :2], here[..., 2:] / 2
        here = np.concatenate([middle - half, middle + half], axis=-1)
    found = [np.zeros((0, 3), np.int64)]
    for image, kind in np.ndindex(points.shape[:2]):
        places = kept_boxes(here[image], points[image, kind], most, limit, least)
        found.append(np.stack([np.full_like(places, image), np.full_like(places, kind), places], axis=1))
    return xp.asarray(np.concatenate(found))


def _by_class_shape(s: ShapeContext) -> Sequence[Shape]:
    for name, shape, last in (("boxes", s.shapes[0], 4), ("scores", s.shapes[1], None)):
        if shape is not None and (len(shape) != 3 or last not in (None, shape[2] or last)):
            wanted = "[images, n, 4]" if last else "[images, classes, n]"
            raise InvalidArgumentError(f"{name}: expected shape {wanted}; got {format_shape(shape)}")
    boxes, scores = s.shapes[:2]
    if boxes and scores:
        pairs = ((boxes[0], scores[0]), (boxes[1], scores[2]))
        if any(a != b for a, b in pairs if None not in (a, b)):
            raise InvalidArgumentError(
                f"expected a score for each box; got boxes {format_shape(boxes)}, scores "
                f"{format_shape(scores)}"
            )
    return [(None, 3)]


non_max_suppression_by_class: OpDef[Tensor] = define_op(
    "NonMaxSuppressionByClass",
    "boxes: T in float32, scores: T, max_output_size: host int64, iou_threshold: T, score_threshold: T "
    "-> selected: int64",
    attrs="center_point_box: bool = False",
    shape=_by_class_shape,
    kernel=_by_class,
    samples=lambda rng: (
        sample(
            rng.uniform(0, 1, (2, 9, 4)).astype(np.float32),
            rng.uniform(0, 1, (2, 3, 9)).astype(np.float32),
            np.array(4),
            np.float32(0.3),
            np.float32(0.2),
            center_point_box=center,
        )
        for center in (False, True)
    ),
    doc="""``[k, 3]``: the image, class and box of each box that is kept, from boxes ``[images, n, 4]`` and
    scores ``[images, classes, n]``, each class by itself. With ``center_point_box`` boxes are a center, a
    width and a height: ``[x, y, width, height]``.
    """,
)
