"""k-means as an estimator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flowrt import feature_column, metrics, summary
from flowrt.contrib.factorization.k_means import (
    CLUSTERS_VAR_NAME,
    COSINE_DISTANCE,
    KMEANS_PLUS_PLUS_INIT,
    RANDOM_INIT,
    SQUARED_EUCLIDEAN_DISTANCE,
    KMeans,
    check_choices,
)
from flowrt.estimator.estimator import Estimator
from flowrt.estimator.export import PredictOutput
from flowrt.estimator.modes import EstimatorSpec
from flowrt.estimator.run_config import RunConfig
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.text.python_calls import with_dependencies
from flowrt.saved_model.signature_constants import DEFAULT_SERVING_SIGNATURE_DEF_KEY
from flowrt.train.hooks.session_run_hook import SessionRunArgs, SessionRunHook
from flowrt.train.optimizers.global_step import get_or_create_global_step
from flowrt.variables.variable import Variable

_WAIT_S = 1.0
"""Between a worker's looks at whether the chief has chosen centers."""


class _ChooseCenters(SessionRunHook):
    """The chief chooses centers from one batch after the other until there are all; others wait for it."""

    def __init__(self, choose: Tensor, is_done: Variable, is_chief: bool) -> None:
        self._choose, self._is_done, self._is_chief = choose, is_done, is_chief

    def after_create_session(self, session: Any, coord: Any) -> None:
        while not session.run(self._is_done):
            if self._is_chief:
                session.run(self._choose)
            else:
                time.sleep(_WAIT_S)


class _StopWhenSteady(SessionRunHook):
    """Stops the training when the loss changes by less than ``tolerance`` of it."""

    def __init__(self, loss: Tensor, tolerance: float) -> None:
        self._loss, self._tolerance = loss, tolerance
        self._before: float | None = None

    def before_run(self, run_context: Any) -> SessionRunArgs:
        return SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        loss, before = run_values.results, self._before
        if before and abs(loss - before) / (1 + abs(before)) < self._tolerance:
            run_context.request_stop()
        self._before = loss


def _points(features: Any, feature_columns: Any) -> Any:
    """The features as one matrix: of a dict through its columns, or side by side in the order of names."""
    if not isinstance(features, Mapping):
        return features
    if feature_columns:
        return feature_column.input_layer(features, feature_columns)
    return concat([features[name] for name in sorted(features)], 1)


class KMeansClustering(Estimator):
    """k-means as an estimator. ``input_fn`` gives points, [points, dimensions], or a dict of columns.

    Args:
        num_clusters: See `KMeans`; so are the others that it has.
        model_dir: See `estimator.Estimator`; so is ``config``.
        relative_tolerance: Training stops when the loss changes by a smaller part of it; None: never.
        feature_columns: Columns for a dict of features.

    Raises:
        InvalidArgumentError: There is no such choice of centers or distance.

    Example:
        >>> points = np.array([[0, 0], [0, 1], [9, 9]], np.float32)
        >>> input_fn = lambda: tf.train.limit_epochs(tf.constant(points), num_epochs=1)
        >>> k_means = tf.contrib.factorization.KMeansClustering(
        ...     2, initial_clusters=points[[0, 2]], use_mini_batch=False)
        >>> k_means = k_means.train(lambda: tf.constant(points), steps=2)
        >>> list(k_means.predict_cluster_index(input_fn))
        [np.int64(0), np.int64(0), np.int64(1)]
    """

    SQUARED_EUCLIDEAN_DISTANCE, COSINE_DISTANCE = SQUARED_EUCLIDEAN_DISTANCE, COSINE_DISTANCE
    RANDOM_INIT, KMEANS_PLUS_PLUS_INIT = RANDOM_INIT, KMEANS_PLUS_PLUS_INIT
    SCORE, CLUSTER_INDEX, ALL_DISTANCES = "score", "cluster_index", "all_distances"
    CLUSTER_CENTERS_VAR_NAME = CLUSTERS_VAR_NAME

    def __init__(
        self,
        num_clusters: Any,
        model_dir: Any = None,
        initial_clusters: Any = RANDOM_INIT,
        distance_metric: str = SQUARED_EUCLIDEAN_DISTANCE,
        random_seed: int = 0,
        use_mini_batch: bool = True,
        mini_batch_steps_per_iteration: int = 1,
        kmeans_plus_plus_num_retries: int = 2,
        relative_tolerance: float | None = None,
        config: RunConfig | None = None,
        feature_columns: Any = None,
    ) -> None:
        check_choices("KMeansClustering", initial_clusters, distance_metric)

        def model_fn(features: Any, mode: str, config: RunConfig) -> EstimatorSpec:
            distances, indices, nearest, is_started, start, step = KMeans(
                _points(features, feature_columns), num_clusters, initial_clusters, distance_metric,
                use_mini_batch, mini_batch_steps_per_iteration, random_seed, kmeans_plus_plus_num_retries,
            ).training_graph()  # fmt: skip
            loss = reduce_sum(nearest[0])
            summary.scalar("loss/raw", loss)
            counted = get_or_create_global_step().assign_add(1)
            hooks: list[SessionRunHook] = [_ChooseCenters(start, is_started, config.is_chief)]
            if relative_tolerance is not None:
                hooks.append(_StopWhenSteady(loss, relative_tolerance))
            found = {self.ALL_DISTANCES: distances[0], self.CLUSTER_INDEX: indices[0]}
            exported = {key: PredictOutput(value) for key, value in found.items()}
            exported[DEFAULT_SERVING_SIGNATURE_DEF_KEY] = PredictOutput(indices[0])
            return EstimatorSpec(
                mode, found, loss, with_dependencies([step, counted], loss), {self.SCORE: metrics.mean(loss)},
                exported, training_hooks=hooks,
            )  # fmt: skip

        super().__init__(model_fn, model_dir, config)

    def _predicted(self, input_fn: Callable[..., Any], key: str) -> Iterator[Any]:
        for each in self.predict(input_fn, [key]):
            yield each[key]

    def predict_cluster_index(self, input_fn: Callable[..., Any]) -> Iterator[Any]:
        """Yield the index of the nearest center, for one point after the other."""
        return self._predicted(input_fn, self.CLUSTER_INDEX)

    def score(self, input_fn: Callable[..., Any]) -> Any:
        """The sum of the distances of one batch of points to their nearest centers."""
        return self.evaluate(input_fn, steps=1)[self.SCORE]

    def transform(self, input_fn: Callable[..., Any]) -> Iterator[Any]:
        """Yield the distances to all centers, for one point after the other."""
        return self._predicted(input_fn, self.ALL_DISTANCES)

    def cluster_centers(self) -> Any:
        """The centers in the newest checkpoint, [num_clusters, dimensions]."""
        return self.get_variable_value(self.CLUSTER_CENTERS_VAR_NAME)
