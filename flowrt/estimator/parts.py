"""Parts of ready models: linear models and deep ones over feature columns, the logits of which are added.

H.-T. Cheng et al., Wide & Deep Learning for Recommender Systems (2016).
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flowrt import feature_column
from flowrt.dtypes import float32
from flowrt.errors import InvalidArgumentError
from flowrt.estimator.heads import Head
from flowrt.estimator.modes import EstimatorSpec, ModeKeys
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.base.filling import ones
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.initializers import zeros_initializer
from flowrt.layers import batch_normalization, dense, dropout
from flowrt.train.optimizers.global_step import get_or_create_global_step
from flowrt.train.optimizers.optimizer import Optimizer
from flowrt.train.optimizers.standard_optimizers import (
    AdagradOptimizer,
    AdamOptimizer,
    FtrlOptimizer,
    GradientDescentOptimizer,
    RMSPropOptimizer,
)
from flowrt.variables.get_variable import get_variable
from flowrt.variables.graph_scopes import control_dependencies
from flowrt.variables.variable import GraphKeys, trainable_variables
from flowrt.variables.variable_scope import variable_scope

_OPTIMIZERS = {
    "Adagrad": AdagradOptimizer, "Adam": AdamOptimizer, "Ftrl": FtrlOptimizer, "RMSProp": RMSPropOptimizer,
    "SGD": GradientDescentOptimizer,
}  # fmt: skip
DEEP_RATE, _BASELINE_RATE = 0.05, 0.3
"""The learning rates of deep models by themselves, and of baselines."""


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


class Linear:
    """A linear model of columns."""

    scope = "linear"
    trained_in = "linear/"

    def __init__(self, columns: Iterable[Any], optimizer: Any, sparse_combiner: str, most: float) -> None:
        self._columns, self._combiner = list(columns), sparse_combiner
        if not self._columns:
            raise misuse("feature_columns: expected at least one; got none", InvalidArgumentError)
        self.optimizer = functools.partial(_as_optimizer, optimizer, _linear_rate(self._columns, most))

    def logits(self, features: Mapping[str, Any], units: int, mode: str) -> Tensor:
        return feature_column.linear_model(features, self._columns, units, self._combiner)


class Deep:
    """Layers of hidden units over columns."""

    scope = "dnn"
    trained_in = "dnn/"

    def __init__(
        self, columns: Iterable[Any], hidden_units: Sequence[int] | None, optimizer: Any,
        activation_fn: Callable[[Tensor], Tensor], rate: float | None, batch_norm: bool,
        learning_rate: float = DEEP_RATE, layer: Callable[..., Tensor] = dense,
    ) -> None:  # fmt: skip
        if not hidden_units:
            raise misuse("hidden_units: expected a size for each layer; got none", InvalidArgumentError)
        self._columns, self._sizes = list(columns), list(hidden_units)
        self._activation, self._dropout, self._normalizes = activation_fn, rate, batch_norm
        self._layer = layer
        self.optimizer = functools.partial(_as_optimizer, optimizer, learning_rate)

    def logits(self, features: Mapping[str, Any], units: int, mode: str) -> Tensor:
        is_training = mode == ModeKeys.TRAIN
        with variable_scope("input_from_feature_columns"):
            x = feature_column.input_layer(features, self._columns)
        for i, size in enumerate(self._sizes):
            x = self._layer(x, size, self._activation, name=f"hiddenlayer_{i}")
            if self._dropout is not None:
                x = dropout(x, rate=self._dropout, training=is_training)
            if self._normalizes:
                with variable_scope(f"hiddenlayer_{i}"):
                    x = batch_normalization(x, momentum=0.999, training=is_training, name=f"batchnorm_{i}")
        return self._layer(x, units, None, name="logits")


class Baseline:
    """A bias for each logit, which the features do not change; the examples are counted by the first one."""

    scope = "baseline"
    trained_in = ""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = functools.partial(_as_optimizer, optimizer, _BASELINE_RATE)

    def logits(self, features: Mapping[str, Any], units: int, mode: str) -> Tensor:
        bias = get_variable("bias", [units], float32, initializer=zeros_initializer())
        examples = shape(next(iter(features.values())))[0]
        return bias * ones([examples, units])


Part = Linear | Deep | Baseline
"""A part makes ``logits`` in the variable scope ``scope`` and has its own ``optimizer``. ``trained_in`` is
the scope, or "", in which TensorFlow trains it, which its checkpoints show: see `_minimize`.
"""


def _minimize(part: Part, loss: Tensor) -> Operation:
    """A step of the part's optimizer, the variables of which have the names of TensorFlow's checkpoints.

    TensorFlow splits the variables of a model of one part, into one piece each, and takes the name of a piece
    off the front of its slot's. The slot's begins with the scope of training, so that as many characters of
    the piece's name are left: "t_0/Adagrad" and "part_0/Ftrl".
    """
    optimizer = copy.copy(part.optimizer())
    if part.trained_in:
        optimizer._name = "part_0/"[-len(part.trained_in) :] + optimizer.get_name()
    with loss.graph.name_scope(f"{part.trained_in}head/"):
        return optimizer.minimize(loss, var_list=trainable_variables(f"{part.scope}/"))


def model_of_parts(parts: Sequence[Part], head: Head, features: Any, labels: Any, mode: str) -> EstimatorSpec:
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
            steps = [_minimize(part, loss) for part in parts]
        with control_dependencies(steps):
            return group(get_or_create_global_step().assign_add(1))

    return head.spec(features, mode, sum(logits[1:], logits[0]), labels, train)


def wide_and_deep(
    linear_columns: Iterable[Any] | None, linear_optimizer: Any, combiner: str, most: float,
    deep_columns: Any, *deep: Any,
) -> list[Part]:  # fmt: skip
    """The linear part, the deep one, or both. Raises `InvalidArgumentError` without any columns."""
    parts: list[Part] = []
    if deep_columns:
        parts.append(Deep(deep_columns, *deep))
    if linear_columns:
        parts.append(Linear(linear_columns, linear_optimizer, combiner, most))
    if not parts:
        raise misuse("expected linear_feature_columns or dnn_feature_columns; got none", InvalidArgumentError)
    for part in parts:
        part.trained_in = ""
    return parts
