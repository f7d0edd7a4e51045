"""Boosted trees: predictions, the statistics of a layer, growth. On the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.trees.on_host import on_host, to_device
from flowrt.graph.shapes import Shape
from flowrt.graph.trees.boosting import (
    EMPTY,
    Ensemble,
    Regularization,
    center_bias,
    contributions,
    finished_trees,
    grow_layer,
    layer_statistics,
    logits_of,
    newest_leaves,
)

_ENSEMBLE = "roots: int32, splits: int32, numbers: float32, progress: int32"
_ENSEMBLE_SHAPES: list[Shape] = [(None,), (None, 3), (None, 3), (4,)]
_BY = Regularization(0.1, 0.2, 0.01, 0.0)


def _examples(s: ShapeContext, place: int) -> int | None:
    dims = s.shapes[place]
    return dims[0] if dims else None


def _sample_batch() -> tuple[Any, Any, Any]:
    """Buckets, gradients and hessians of six examples."""
    buckets = np.array([[0, 1], [1, 0], [2, 1], [2, 0], [1, 1], [0, 0]], np.int32)
    return buckets, np.array([-1, -1, 1, 2, -0.5, 1], np.float32), np.ones(6, np.float32)


def _sample_ensemble() -> Ensemble:
    buckets, gradients, hessians = _sample_batch()
    ensemble = EMPTY
    for _ in range(3):
        layer = ensemble.progress[2], ensemble.progress[3]
        nodes = newest_leaves(ensemble, buckets)
        sums = layer_statistics(buckets, nodes, gradients, hessians, layer, (3, 2))
        ensemble = grow_layer(
            ensemble, sums, (3, 2), _BY, learning_rate=0.5, max_depth=2, pruning_mode="none"
        )
    return ensemble


# --- predictions


def _predict(
    xp: Any, roots: Any, splits: Any, numbers: Any, progress: Any, buckets: Any, out: Any = None
) -> Any:
    *trees, buckets = on_host(xp, roots, splits, numbers, progress, buckets)
    logits = logits_of(Ensemble(*trees), buckets, 0, len(roots))[:, None]
    return delivered(xp, xp.asarray(logits), logits.dtype, out)


boosted_trees_logits: OpDef[Tensor] = define_op(
    "BoostedTreesLogits",
    f"{_ENSEMBLE}, buckets: int32 -> logits: float32",
    shape=lambda s: [(_examples(s, 4), 1)],
    kernel=_predict,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (sample(*_sample_ensemble(), _sample_batch()[0]), sample(*EMPTY, _sample_batch()[0])),
    doc="The sum of the trees' values, ``[examples, 1]``, by the ``buckets`` of each feature.",
)


def _train(
    xp: Any, roots: Any, splits: Any, numbers: Any, progress: Any, buckets: Any, known: Any, trees: Any,
    out: Sequence[Any] | None = None,
) -> list[Any]:  # fmt: skip
    *found, buckets, known = on_host(xp, roots, splits, numbers, progress, buckets, known)
    ensemble = Ensemble(*found)
    finished = finished_trees(ensemble)
    if len(known) != len(buckets):
        known, trees = np.zeros(len(buckets), np.float32), 0
    done = known + logits_of(ensemble, buckets, int(trees), finished)
    nodes = newest_leaves(ensemble, buckets)
    logits = done + (ensemble.numbers[nodes, 1] if len(roots) else 0)
    return to_device(xp, (logits[:, None], nodes.astype(np.int32), done, np.int32(finished)), out)


boosted_trees_training_logits: OpDef[list[Tensor]] = define_op(
    "BoostedTreesTrainingLogits",
    f"{_ENSEMBLE}, buckets: int32, known: float32, trees: int32 -> "
    "logits: float32, nodes: int32, finished: float32, finished_trees: int32",
    shape=lambda s: [(_examples(s, 4), 1), (_examples(s, 4),), (_examples(s, 4),), ()],
    kernel=_train,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(
            *_sample_ensemble(), _sample_batch()[0], np.arange(6, dtype=np.float32), np.array(1, np.int32)
        ),
        sample(*EMPTY, _sample_batch()[0], np.zeros(0, np.float32), np.array(0, np.int32)),
    ),
    doc="Like BoostedTreesLogits, given what the first ``trees`` add up to for the same examples, if"
    " ``known`` is not empty. Also the leaf of each example in the newest tree, and the same sum of all"
    " trees before it.",
)


# --- growth


def _own(xp: Any, *arrays: Any) -> tuple[Any, ...]:
    """Outputs that are no inputs: some arrays of the trees stay as they were."""
    return tuple(xp.array(each) for each in arrays)


def _statistics(
    xp: Any, buckets: Any, nodes: Any, gradients: Any, hessians: Any, progress: Any, sizes: Sequence[int]
) -> Any:
    buckets, nodes, gradients, hessians, progress = on_host(xp, buckets, nodes, gradients, hessians, progress)
    layer = int(progress[2]), int(progress[3])
    flat = gradients.reshape(-1), hessians.reshape(-1)
    return xp.asarray(layer_statistics(buckets, nodes, *flat, layer, sizes))


def _sample_statistics() -> Sample:
    ensemble, (buckets, gradients, hessians) = _sample_ensemble(), _sample_batch()
    nodes = newest_leaves(ensemble, buckets).astype(np.int32)
    return sample(buckets, nodes, gradients, hessians, ensemble.progress, sizes=(3, 2))


boosted_trees_layer_statistics: OpDef[Tensor] = define_op(
    "BoostedTreesLayerStatistics",
    "buckets: int32, nodes: int32, gradients: float32, hessians: float32, progress: int32 -> "
    "statistics: float32",
    attrs="sizes: list(int)",
    shape=lambda s: [(None, sum(s.attrs["sizes"]), 2)],
    kernel=_statistics,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (_sample_statistics(),),
    doc="The sums of gradients and hessians of each node of the last layer and each bucket of each feature,"
    " of which there are ``sizes``.",
)


def _grow(
    xp: Any, roots: Any, splits: Any, numbers: Any, progress: Any, statistics: Any,
    sizes: Sequence[int], l1: float, l2: float, tree_complexity: float, min_node_weight: float,
    learning_rate: float, max_depth: int, pruning_mode: str,
) -> tuple[Any, ...]:  # fmt: skip
    *trees, statistics = on_host(xp, roots, splits, numbers, progress, statistics)
    grown = grow_layer(
        Ensemble(*trees), statistics, sizes,
        Regularization(l1, l2, tree_complexity, min_node_weight),
        learning_rate=learning_rate, max_depth=max_depth, pruning_mode=pruning_mode,
    )  # fmt: skip
    return _own(xp, *grown)


boosted_trees_grow_layer: OpDef[list[Tensor]] = define_op(
    "BoostedTreesGrowLayer",
    f"{_ENSEMBLE}, statistics: float32 -> "
    "new_roots: int32, new_splits: int32, new_numbers: float32, new_progress: int32",
    attrs="sizes: list(int), l1: float = 0.0, l2: float = 0.0, tree_complexity: float = 0.0, "
    "min_node_weight: float = 0.0, learning_rate: float, max_depth: int, pruning_mode: string = 'none'",
    shape=lambda s: _ENSEMBLE_SHAPES,
    kernel=_grow,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: tuple(
        sample(
            *ensemble, rng.standard_normal((len(range(*ensemble.progress[2:])), 5, 2)).astype(np.float32),
            sizes=(3, 2), l1=0.1, learning_rate=0.3, max_depth=2, pruning_mode=mode,
        )
        for ensemble in (EMPTY, _sample_ensemble())
        for mode in ("none", "pre", "post")
    ),
    doc="The trees after the newest one has grown a layer by the ``statistics`` of its last one.",
)  # fmt: skip


def _center(
    xp: Any, roots: Any, splits: Any, numbers: Any, progress: Any, gradient: Any, hessian: Any,
    l1: float, l2: float,
) -> tuple[Any, ...]:  # fmt: skip
    *trees, gradient, hessian = on_host(xp, roots, splits, numbers, progress, gradient, hessian)
    moved, goes_on = center_bias(Ensemble(*trees), gradient, hessian, l1, l2)
    return _own(xp, *moved, np.bool_(goes_on))


boosted_trees_center_bias: OpDef[list[Tensor]] = define_op(
    "BoostedTreesMoveBias",
    f"{_ENSEMBLE}, gradient: float32, hessian: float32 -> "
    "new_roots: int32, new_splits: int32, new_numbers: float32, new_progress: int32, goes_on: bool",
    attrs="l1: float = 0.0, l2: float = 0.0",
    shape=lambda s: [*_ENSEMBLE_SHAPES, ()],
    kernel=_center,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: tuple(
        sample(*ensemble, np.array(0.5, np.float32), np.array(2, np.float32), l2=0.1)
        for ensemble in (EMPTY, _sample_ensemble())
    ),
    doc="The trees after the first root has moved by the mean gradient and hessian, scalars; whether it is"
    " still far from steady.",
)


# --- what features are worth


def _contributions(
    xp: Any, roots: Any, splits: Any, numbers: Any, progress: Any, buckets: Any, is_logistic: bool,
    out: Sequence[Any] | None = None,
) -> list[Any]:  # fmt: skip
    *trees, buckets = on_host(xp, roots, splits, numbers, progress, buckets)
    return to_device(xp, contributions(Ensemble(*trees), buckets, is_logistic), out)


boosted_trees_contributions: OpDef[list[Tensor]] = define_op(
    "BoostedTreesContributions",
    f"{_ENSEMBLE}, buckets: int32 -> bias: float64, contributions: float64",
    attrs="is_logistic: bool",
    shape=lambda s: [(_examples(s, 4),), (_examples(s, 4), s.shapes[4][1] if s.shapes[4] else None)],
    kernel=_contributions,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: tuple(
        sample(*_sample_ensemble(), _sample_batch()[0], is_logistic=is_logistic)
        for is_logistic in (False, True)
    ),
    doc="The prediction at the first root, ``[examples]``, and how much the splits of each feature change"
    " it; of probabilities if ``is_logistic``.",
)
