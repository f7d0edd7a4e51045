"""Estimators of ready models over feature columns: linear ones, deep ones, and both together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flowrt.estimator.estimator import Estimator
from flowrt.estimator.heads import Head, RegressionHead, classifying_head
from flowrt.estimator.modes import EstimatorSpec
from flowrt.estimator.parts import Baseline, Deep, Linear, Part, model_of_parts, wide_and_deep
from flowrt.estimator.run_config import RunConfig
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.nn.activations import relu
from flowrt.losses import Reduction

_LINEAR_RATE_OF_BOTH, _DEEP_RATE_OF_BOTH = 0.005, 0.001
"""The learning rates of a linear model, at most, and a deep one that are trained together."""


class _Canned(Estimator):
    """An estimator of ``parts`` and a head."""

    def __init__(
        self, parts: Sequence[Part], head: Head, model_dir: Any, config: RunConfig | None,
        warm_start_from: Any,
    ) -> None:  # fmt: skip
        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            return model_of_parts(parts, head, features, labels, mode)

        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class LinearClassifier(_Canned):
    """A linear model of ``feature_columns`` that says which of ``n_classes`` an example belongs to.

    ``label_vocabulary`` are the classes' words, if labels are words. ``weight_column`` is the feature of the
    examples' weights, ``optimizer`` an optimizer, a function that makes one, or a name. Each call of
    `Estimator` works; evaluations have the mean ``loss``, ``average_loss``, ``accuracy``, and for two classes
    ``precision``, ``recall``, ``auc`` and more.

    Example:
        >>> x = {"x": np.array([1.0, 2.0, 3.0, 4.0])}
        >>> inputs = tf.estimator.inputs.numpy_input_fn(x, np.array([0, 0, 1, 1]), shuffle=False)
        >>> estimator = tf.estimator.LinearClassifier([tf.feature_column.numeric_column("x")])
        >>> sorted(estimator.train(inputs, steps=1).evaluate(inputs))[:2]
        ['accuracy', 'accuracy_baseline']
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        warm_start_from: Any = None,
        loss_reduction: Any = Reduction.SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = classifying_head(n_classes, label_vocabulary, weight_column, loss_reduction)
        parts = [Linear(feature_columns, optimizer, sparse_combiner, 0.2)]
        super().__init__(parts, head, model_dir, config, warm_start_from)


class LinearRegressor(_Canned):
    """A linear model of ``feature_columns`` that predicts ``label_dimension`` numbers; see
    `LinearClassifier`.
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        warm_start_from: Any = None,
        loss_reduction: Any = Reduction.SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        parts = [Linear(feature_columns, optimizer, sparse_combiner, 0.2)]
        super().__init__(parts, head, model_dir, config, warm_start_from)


class DNNClassifier(_Canned):
    """Layers of ``hidden_units`` over ``feature_columns``, all dense, that say which of ``n_classes`` an
    example belongs to; see `LinearClassifier`. ``dropout`` is the share of units that training drops.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[Tensor], Tensor] = relu,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: Any = Reduction.SUM,
        batch_norm: bool = False,
    ) -> None:
        head = classifying_head(n_classes, label_vocabulary, weight_column, loss_reduction)
        parts = [Deep(feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)]
        super().__init__(parts, head, model_dir, config, warm_start_from)


class DNNRegressor(_Canned):
    """Layers of ``hidden_units`` over ``feature_columns``, all dense, that predict ``label_dimension``
    numbers; see `DNNClassifier`.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[Tensor], Tensor] = relu,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: Any = Reduction.SUM,
        batch_norm: bool = False,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        parts = [Deep(feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)]
        super().__init__(parts, head, model_dir, config, warm_start_from)


class DNNLinearCombinedClassifier(_Canned):
    """A linear model of some columns and a deep one of others, each trained by its own optimizer; their
    logits are added. See `LinearClassifier` and `DNNClassifier`.
    """

    def __init__(
        self,
        model_dir: Any = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Callable[[Tensor], Tensor] = relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: Any = Reduction.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = classifying_head(n_classes, label_vocabulary, weight_column, loss_reduction)
        parts = wide_and_deep(
            linear_feature_columns, linear_optimizer, linear_sparse_combiner,
            _LINEAR_RATE_OF_BOTH, dnn_feature_columns, dnn_hidden_units, dnn_optimizer,
            dnn_activation_fn, dnn_dropout, batch_norm, _DEEP_RATE_OF_BOTH,
        )  # fmt: skip
        super().__init__(parts, head, model_dir, config, warm_start_from)


class DNNLinearCombinedRegressor(_Canned):
    """A linear model of some columns and a deep one of others, the sum of which predicts ``label_dimension``
    numbers; see `DNNLinearCombinedClassifier`.
    """

    def __init__(
        self,
        model_dir: Any = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Callable[[Tensor], Tensor] = relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: Any = Reduction.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        parts = wide_and_deep(
            linear_feature_columns, linear_optimizer, linear_sparse_combiner,
            _LINEAR_RATE_OF_BOTH, dnn_feature_columns, dnn_hidden_units, dnn_optimizer,
            dnn_activation_fn, dnn_dropout, batch_norm, _DEEP_RATE_OF_BOTH,
        )  # fmt: skip
        super().__init__(parts, head, model_dir, config, warm_start_from)


class LinearEstimator(_Canned):
    """A linear model of ``feature_columns`` with a head, as `BinaryClassHead`; see `LinearClassifier`."""

    def __init__(
        self,
        head: Head,
        feature_columns: Iterable[Any],
        model_dir: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        parts = [Linear(feature_columns, optimizer, sparse_combiner, 0.2)]
        super().__init__(parts, head, model_dir, config, warm_start_from)


class DNNEstimator(_Canned):
    """Layers of ``hidden_units`` over ``feature_columns`` with a head; see `DNNClassifier`."""

    def __init__(
        self,
        head: Head,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[Tensor], Tensor] = relu,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ) -> None:
        parts = [Deep(feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)]
        super().__init__(parts, head, model_dir, config, warm_start_from)


class DNNLinearCombinedEstimator(_Canned):
    """A linear model of some columns and a deep one of others, with a head; see
    `DNNLinearCombinedClassifier`.
    """

    def __init__(
        self,
        head: Head,
        model_dir: Any = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Callable[[Tensor], Tensor] = relu,
        dnn_dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        parts = wide_and_deep(
            linear_feature_columns, linear_optimizer, linear_sparse_combiner,
            _LINEAR_RATE_OF_BOTH, dnn_feature_columns, dnn_hidden_units, dnn_optimizer,
            dnn_activation_fn, dnn_dropout, batch_norm, _DEEP_RATE_OF_BOTH,
        )  # fmt: skip
        super().__init__(parts, head, model_dir, config, warm_start_from)


class BaselineEstimator(_Canned):
    """A model that ignores features, with a head."""

    def __init__(
        self, head: Head, model_dir: Any = None, optimizer: Any = "Ftrl", config: RunConfig | None = None
    ) -> None:
        super().__init__([Baseline(optimizer)], head, model_dir, config, None)


class BaselineClassifier(_Canned):
    """A classifier that ignores features: it learns how frequent each class is. See `LinearClassifier`."""

    def __init__(
        self,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: Any = Reduction.SUM,
    ) -> None:
        head = classifying_head(n_classes, label_vocabulary, weight_column, loss_reduction)
        super().__init__([Baseline(optimizer)], head, model_dir, config, None)


class BaselineRegressor(_Canned):
    """A regressor that ignores features: it learns the mean of the labels. See `LinearRegressor`."""

    def __init__(
        self,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: Any = Reduction.SUM,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        super().__init__([Baseline(optimizer)], head, model_dir, config, None)
