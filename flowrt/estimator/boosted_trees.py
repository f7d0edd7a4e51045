"""Ready estimators of boosted trees."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.estimator.boosted_features import BoostedFeatures
from flowrt.estimator.boosted_model import BoostedModel, BoostedTraining, Growth
from flowrt.estimator.estimator import Estimator
from flowrt.estimator.heads import BinaryClassHead, Head, RegressionHead, classifying_head
from flowrt.estimator.modes import EstimatorSpec, ModeKeys
from flowrt.estimator.run_config import RunConfig
from flowrt.feature_column.dense import numeric_column
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.filling import ones
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.trees.boosted_trees import boosted_trees_contributions, boosted_trees_logits
from flowrt.graph.source import misuse
from flowrt.graph.trees.boosting import Ensemble, gains_of_features
from flowrt.losses import Reduction
from flowrt.train.hooks.session_run_hook import SessionRunArgs, SessionRunHook
from flowrt.variables.graph_scopes import name_scope

_SCOPE = "boosted_trees"


class _StopWhenGrown(SessionRunHook):
    """Stops when there are all trees, or twice as many layers were attempted as they have."""

    def __init__(self, done: Tensor, growth: Growth) -> None:
        self._done, self._limits = done, (growth.n_trees, 2 * growth.n_trees * growth.max_depth + 1)

    def before_run(self, run_context: Any) -> SessionRunArgs:
        return SessionRunArgs(self._done)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        may_be_last = np.any(run_values.results + 1 >= self._limits)
        if may_be_last and np.any(run_context.session.run(self._done) >= self._limits):
            run_context.request_stop()


def _by_column(names: Sequence[str], values: Any) -> OrderedDict[str, float]:
    """The sums of ``values`` by name, the largest first."""
    sums: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        sums[name] = sums.get(name, 0.0) + float(value)
    return OrderedDict(sorted(sums.items(), key=lambda item: abs(item[1]), reverse=True))


class BoostedTreesEstimator(Estimator):
    """Boosted trees with a head of one logit, as `BinaryClassHead` or `RegressionHead`; see
    `BoostedTreesClassifier`.
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        n_batches_per_layer: int,
        head: Head,
        model_dir: Any = None,
        weight_column: Any = None,
        n_trees: int = 100,
        max_depth: int = 6,
        learning_rate: float = 0.1,
        l1_regularization: float = 0.0,
        l2_regularization: float = 0.0,
        tree_complexity: float = 0.0,
        min_node_weight: float = 0.0,
        config: RunConfig | None = None,
        center_bias: bool = False,
        pruning_mode: str = "none",
        quantile_sketch_epsilon: float = 0.01,
        train_in_memory: bool = False,
    ) -> None:
        if head.logits_dimension != 1:
            raise misuse(
                f"boosted trees: expected a head of one logit; got {head.logits_dimension}",
                InvalidArgumentError,
            )
        if train_in_memory and n_batches_per_layer != 1:
            raise misuse(
                "train_in_memory: expected n_batches_per_layer=1, all examples in one batch; got "
                f"{n_batches_per_layer}",
                InvalidArgumentError,
            )
        growth = Growth(
            n_trees, max_depth, learning_rate, l1_regularization, l2_regularization, tree_complexity,
            min_node_weight, center_bias, pruning_mode, quantile_sketch_epsilon,
        )  # fmt: skip
        growth.check()
        self._columns, self._growth = BoostedFeatures(feature_columns), growth
        self._head, self._weight_column = head, weight_column
        self._batches, self._in_memory = n_batches_per_layer, train_in_memory

        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            return self._spec(features, labels, mode)

        super().__init__(model_fn, model_dir, config)

    def _spec(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        with name_scope(_SCOPE):
            model = BoostedModel(self._columns)
            if mode != ModeKeys.TRAIN:
                logits = boosted_trees_logits(*model.ensemble(), model.buckets(features))
                return self._head.spec(features, mode, logits, labels, lambda loss: None)
            training = BoostedTraining(model, features, self._growth, self._batches, self._in_memory)

        def train(loss: Tensor) -> Any:
            return training.step(loss, self._weights(features))

        spec = self._head.spec(features, mode, training.logits, labels, train)
        stop = _StopWhenGrown(training.done, self._growth)
        return spec._replace(training_hooks=(*spec.training_hooks, stop))

    def _weights(self, features: Mapping[str, Any]) -> Tensor:
        """The weights of examples when buckets are found, [examples] or [1]."""
        given = self._weight_column
        if given is None:
            return ones([1])
        weights = BoostedFeatures([numeric_column(given) if isinstance(given, str) else given])
        return reshape(weights.numbers(features), [-1])

    def experimental_feature_importances(self, normalize: bool = False) -> OrderedDict[str, float]:
        """The gain of the splits by each column, the most important first; with ``normalize`` as shares of 1.

        Raises `NotFoundError` without a checkpoint, and `InvalidArgumentError` for shares of what is negative
        or 0.
        """
        names = self._columns.names()
        trees = Ensemble(*[self.get_variable_value(f"{_SCOPE}/{name}") for name in Ensemble._fields])
        gains = gains_of_features(trees, len(names))
        if normalize:
            if gains.min() < 0 or gains.sum() <= 0:
                raise misuse(
                    f"normalize: expected gains from 0 on, and one above; got {gains.min()} to {gains.max()}",
                    InvalidArgumentError,
                )
            gains = gains / gains.sum()
        return _by_column(names, gains)

    def experimental_predict_with_explanations(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Any = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: Any = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the predictions for each example, with ``bias``, that of the first root, and ``dfc``: how
        much each column changes it, the column that does so the most first. Of two classes these are
        probabilities.

        Raises as `Estimator.predict`, and `InvalidArgumentError` without ``center_bias``.
        """
        if not self._growth.center_bias:
            raise misuse(
                "experimental_predict_with_explanations: expected an estimator with center_bias=True",
                InvalidArgumentError,
            )
        is_logistic = isinstance(self._head, BinaryClassHead)

        def model_fn(features: Any, mode: str) -> EstimatorSpec:
            with name_scope(_SCOPE):
                model = BoostedModel(self._columns)
                trees, buckets = model.ensemble(), model.buckets(features)
                logits = boosted_trees_logits(*trees, buckets)
                bias, dfc = boosted_trees_contributions(*trees, buckets, is_logistic=is_logistic)
            spec = self._head.spec(features, mode, logits, None, lambda loss: None)
            return spec._replace(predictions={**spec.predictions, "bias": bias, "dfc": dfc})

        names = self._columns.names()
        keys = None if predict_keys is None else {*predict_keys, "bias", "dfc"}
        explained = Estimator(model_fn, self.model_dir, self.config)
        for found in explained.predict(input_fn, keys, hooks, checkpoint_path):
            yield {**found, "dfc": _by_column(names, found["dfc"])}


class BoostedTreesClassifier(BoostedTreesEstimator):
    """Boosted trees that say which of two classes an example belongs to.

    Trees grow layer by layer, by the gradients and second derivatives of the loss, at the boundaries of
    buckets. Training ends when there are ``n_trees``. Evaluations have the metrics of `LinearClassifier`.

    Args:
        feature_columns: Columns `numeric_column`, `bucketized_column` or `indicator_column`. Numbers without
            buckets get some, by the first ``n_batches_per_layer`` batches, which grow no layer.
        n_batches_per_layer: How many batches a layer grows by: all examples once, or a good part of them.
        n_classes: 2.
        weight_column: The feature of the examples' weights, or a numeric column.
        label_vocabulary: The classes' words, if labels are words.
        learning_rate: What the values of leaves are multiplied with.
        l1_regularization: Subtracted from the sum of a leaf's gradients, towards 0.
        l2_regularization: Added to the sum of a leaf's second derivatives.
        tree_complexity: What a split has to gain.
        min_node_weight: The second derivatives that a node needs to split, on average over its batches.
        center_bias: Whether the first root is moved to the mean of the labels before trees grow.
        pruning_mode: "none"; "pre": no split that gains less than ``tree_complexity``; "post": a tree loses
            such splits when it is grown.
        quantile_sketch_epsilon: The error of boundaries, as a share of the examples; numbers get about one
            over it buckets.
        train_in_memory: Whether each batch is the same one with all examples; then what does not change is
            kept from step to step.

    Raises:
        InvalidArgumentError: Other columns, arguments out of their range, or more than two classes.

    Example:
        >>> x = {"x": np.array([1.0, 2.0, 3.0, 4.0])}
        >>> inputs = tf.estimator.inputs.numpy_input_fn(x, np.array([0, 1, 1, 0]), 4, None, shuffle=False)
        >>> columns = [tf.feature_column.numeric_column("x")]
        >>> estimator = tf.estimator.BoostedTreesClassifier(columns, 1, n_trees=5, max_depth=2)
        >>> estimator.train(inputs).evaluate(inputs, steps=1)["accuracy"]
        np.float32(1.0)
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        n_batches_per_layer: int,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        n_trees: int = 100,
        max_depth: int = 6,
        learning_rate: float = 0.1,
        l1_regularization: float = 0.0,
        l2_regularization: float = 0.0,
        tree_complexity: float = 0.0,
        min_node_weight: float = 0.0,
        config: RunConfig | None = None,
        center_bias: bool = False,
        pruning_mode: str = "none",
        quantile_sketch_epsilon: float = 0.01,
        train_in_memory: bool = False,
    ) -> None:
        head = classifying_head(n_classes, label_vocabulary, weight_column, Reduction.SUM_OVER_BATCH_SIZE)
        super().__init__(
            feature_columns, n_batches_per_layer, head, model_dir, weight_column, n_trees, max_depth,
            learning_rate, l1_regularization, l2_regularization, tree_complexity, min_node_weight, config,
            center_bias, pruning_mode, quantile_sketch_epsilon, train_in_memory,
        )  # fmt: skip


class BoostedTreesRegressor(BoostedTreesEstimator):
    """Boosted trees that predict a number; see `BoostedTreesClassifier`."""

    def __init__(
        self,
        feature_columns: Iterable[Any],
        n_batches_per_layer: int,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        n_trees: int = 100,
        max_depth: int = 6,
        learning_rate: float = 0.1,
        l1_regularization: float = 0.0,
        l2_regularization: float = 0.0,
        tree_complexity: float = 0.0,
        min_node_weight: float = 0.0,
        config: RunConfig | None = None,
        center_bias: bool = False,
        pruning_mode: str = "none",
        quantile_sketch_epsilon: float = 0.01,
        train_in_memory: bool = False,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, Reduction.SUM_OVER_BATCH_SIZE)
        super().__init__(
            feature_columns, n_batches_per_layer, head, model_dir, weight_column, n_trees, max_depth,
            learning_rate, l1_regularization, l2_regularization, tree_complexity, min_node_weight, config,
            center_bias, pruning_mode, quantile_sketch_epsilon, train_in_memory,
        )  # fmt: skip
