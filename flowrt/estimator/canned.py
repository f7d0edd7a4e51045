"""Estimators of ready models over feature columns: linear ones, deep ones, and both together.

H.-T. Cheng et al., Wide & Deep Learning for Recommender Systems (2016).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flowrt import feature_column
from flowrt.errors import InvalidArgumentError
from flowrt.estimator.estimator import Estimator
from flowrt.estimator.heads import Head, RegressionHead, classifying_head
from flowrt.estimator.modes import EstimatorSpec, ModeKeys
from flowrt.estimator.run_config import RunConfig
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.nn.activations import relu
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.layers import batch_normalization, dense, dropout
from flowrt.losses import Reduction
from flowrt.train.optimizers.global_step import get_or_create_global_step
from flowrt.train.optimizers.optimizer import Optimizer
from flowrt.train.optimizers.standard_optimizers import (
    AdagradOptimizer,
    AdamOptimizer,
    FtrlOptimizer,
    GradientDescentOptimizer,
    RMSPropOptimizer,
)
from flowrt.variables.graph_scopes import control_dependencies
from flowrt.variables.variable import GraphKeys, trainable_variables
from flowrt.variables.variable_scope import variable_scope

_OPTIMIZERS = {
    "Adagrad": AdagradOptimizer, "Adam": AdamOptimizer, "Ftrl": FtrlOptimizer, "RMSProp": RMSPropOptimizer,
    "SGD": GradientDescentOptimizer,
}  # fmt: skip
_DEEP_RATE = 0.05
"""The learning rate of deep models."""


def _linear_rate(columns: Sequence[Any], most: float) -> float:
    """The learning rate of a linear model: the smaller, the more columns there are."""
    return min(most, 1 / math.sqrt(len(columns)))


def _as_optimizer(given: Any, rate: float) -> Optimizer:
    """The optimizer: given itself, as a function of no arguments, or as a name. Raises
    `InvalidArgumentError` for an unknown name.
    """
    if isinstance(given, str):
        if given not in _OPTIMIZERS:
            raise misuse(
                f"optimizer: expected one of {', '.join(_OPTIMIZERS)}; got {given!r}", InvalidArgumentError
            )
        made: Optimizer = _OPTIMIZERS[given](rate)
        return made
    found: Optimizer = given() if callable(given) and not isinstance(given, Optimizer) else given
    return found


class _Linear:
    """A linear model of columns."""

    scope = "linear"

    def __init__(self, columns: Iterable[Any], optimizer: Any, sparse_combiner: str, most: float) -> None:
        self._columns, self._combiner = list(columns), sparse_combiner
        self.optimizer = functools.partial(_as_optimizer, optimizer, _linear_rate(self._columns, most))

    def logits(self, features: Mapping[str, Any], units: int, mode: str) -> Tensor:
        return feature_column.linear_model(features, self._columns, units, self._combiner)


class _Deep:
    """Layers of hidden units over columns."""

    scope = "dnn"

    def __init__(
        self, columns: Iterable[Any], hidden_units: Sequence[int] | None, optimizer: Any,
        activation_fn: Callable[[Tensor], Tensor], rate: float | None, batch_norm: bool,
    ) -> None:  # fmt: skip
        if not hidden_units:
            raise misuse("hidden_units: expected a size for each layer; got none", InvalidArgumentError)
        self._columns, self._sizes = list(columns), list(hidden_units)
        self._activation, self._dropout, self._normalizes = activation_fn, rate, batch_norm
        self.optimizer = functools.partial(_as_optimizer, optimizer, _DEEP_RATE)

    def logits(self, features: Mapping[str, Any], units: int, mode: str) -> Tensor:
        is_training = mode == ModeKeys.TRAIN
        with variable_scope("input_from_feature_columns"):
            x = feature_column.input_layer(features, self._columns)
        for i, size in enumerate(self._sizes):
            x = dense(x, size, activation=self._activation, name=f"hiddenlayer_{i}")
            if self._dropout is not None:
                x = dropout(x, rate=self._dropout, training=is_training)
            if self._normalizes:
                with variable_scope(f"hiddenlayer_{i}"):
                    x = batch_normalization(x, momentum=0.999, training=is_training, name=f"batchnorm_{i}")
        return dense(x, units, name="logits")


def _model_fn(
    parts: Sequence[_Linear | _Deep], head: Head, features: Any, labels: Any, mode: str
) -> EstimatorSpec:
    """The model that sums the logits of ``parts``, each trained by its own optimizer."""
    if not isinstance(features, Mapping):
        raise misuse(
            f"features: expected a dict of tensors; got {type(features).__name__}", InvalidArgumentError
        )
    logits = []
    for part in parts:
        with variable_scope(part.scope):
            logits.append(part.logits(features, head.logits_dimension, mode))

    def train(loss: Tensor) -> Any:
        updates = GraphKeys.UPDATE_OPS
        with control_dependencies(loss.graph.get_collection(updates)):
            steps = [
                part.optimizer().minimize(loss, var_list=trainable_variables(f"{part.scope}/"))
                for part in parts
            ]
        with control_dependencies(steps):
            return group(get_or_create_global_step().assign_add(1))

    return head.spec(features, mode, sum(logits[1:], logits[0]), labels, train)


class _Canned(Estimator):
    """An estimator of ``parts`` and a head."""

    def __init__(
        self, parts: Sequence[_Linear | _Deep], head: Head, model_dir: Any, config: RunConfig | None,
        warm_start_from: Any,
    ) -> None:  # fmt: skip
        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            return _model_fn(parts, head, features, labels, mode)

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
        parts = [_Linear(feature_columns, optimizer, sparse_combiner, 0.2)]
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
        parts = [_Linear(feature_columns, optimizer, sparse_combiner, 0.2)]
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
        parts = [_Deep(feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)]
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
        parts = [_Deep(feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)]
        super().__init__(parts, head, model_dir, config, warm_start_from)


def _wide_and_deep(
    linear_columns: Iterable[Any] | None, linear_optimizer: Any, combiner: str, deep_columns: Any, *deep: Any
) -> list[_Linear | _Deep]:
    """The linear part, the deep one, or both. Raises `InvalidArgumentError` without any columns."""
    parts: list[_Linear | _Deep] = []
    if deep_columns:
        parts.append(_Deep(deep_columns, *deep))
    if linear_columns:
        parts.append(_Linear(linear_columns, linear_optimizer, combiner, 0.005 if deep_columns else 0.2))
    if not parts:
        raise misuse("expected linear_feature_columns or dnn_feature_columns; got none", InvalidArgumentError)
    return parts


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
        parts = _wide_and_deep(
            linear_feature_columns, linear_optimizer, linear_sparse_combiner, dnn_feature_columns,
            dnn_hidden_units, dnn_optimizer, dnn_activation_fn, dnn_dropout, batch_norm,
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
        parts = _wide_and_deep(
            linear_feature_columns, linear_optimizer, linear_sparse_combiner, dnn_feature_columns,
            dnn_hidden_units, dnn_optimizer, dnn_activation_fn, dnn_dropout, batch_norm,
        )  # fmt: skip
        super().__init__(parts, head, model_dir, config, warm_start_from)
