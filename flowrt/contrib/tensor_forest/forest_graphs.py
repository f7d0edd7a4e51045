"""Random forests as operations: `RandomForestGraphs`. The trees are variables on the host, on CPU:0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrt.contrib.tensor_forest.forest_params import ForestHParams
from flowrt.dtypes import float32
from flowrt.errors import UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.reductions import reduce_mean
from flowrt.graph.ops.array.segments import unsorted_segment_sum
from flowrt.graph.ops.base.filling import fill
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.ops.elementwise.comparison import not_equal
from flowrt.graph.ops.elementwise.math import square
from flowrt.graph.ops.trees.random_forest import forest_growth_op, forest_predict, forest_train
from flowrt.graph.source import misuse
from flowrt.graph.trees.forest import room_of
from flowrt.variables.variable import Variable

_HOST = "/device:CPU:0"


class RandomForestGraphs:
    """The graph of a forest of ``params``, filled.

    A leaf gets candidates of splits from its first examples, then counts ``split_after_samples`` of those
    that follow, and is split by the candidate with the least impurity: Gini's, or the variance of a
    regression. What leaves have counted begins anew in each session; the trees are saved.

    Example:
        >>> params = tf.contrib.tensor_forest.ForestHParams(
        ...     num_classes=2, num_features=2, num_trees=5, split_after_samples=10, base_random_seed=1).fill()
        >>> forest = tf.contrib.tensor_forest.RandomForestGraphs(params)
        >>> x = np.random.default_rng(0).random((64, 2), np.float32)
        >>> train = forest.training_graph(x, x[:, 0] > 0.5)
        >>> probabilities, paths, variance = forest.inference_graph(x)
        >>> session.run(tf.global_variables_initializer())
        >>> for _ in range(10):
        ...     session.run(train)
        >>> bool(np.mean((session.run(probabilities)[:, 1] > 0.5) == (x[:, 0] > 0.5)) > 0.9)
        True
    """

    def __init__(
        self,
        params: ForestHParams,
        tree_configs: Any = None,
        tree_stats: Any = None,
        device_assigner: Any = None,
        variables: Any = None,
        tree_variables_class: Any = None,
        tree_graphs: Any = None,
        training: bool = True,
    ) -> None:
        if not (tree_configs is tree_stats is variables is tree_variables_class is tree_graphs is None):
            raise misuse(
                "RandomForestGraphs: expected trees of its own; got some, or classes of them",
                UnimplementedError,
            )
        self.params = params
        trees, room = params.num_trees, room_of(params.max_nodes)
        with get_default_graph().device(_HOST):
            self._splits = _kept(np.zeros((trees, room, 3), np.int32), "trees/splits")
            self._thresholds = _kept(np.zeros((trees, room), np.float32), "trees/thresholds")
            self._values = _kept(np.zeros((trees, room, params.num_classes), np.float32), "trees/values")
            self._sizes = _kept(np.ones(trees, np.int32), "trees/sizes")

    def get_all_resource_handles(self) -> list[Tensor]:
        return [variable.handle for variable in self._variables]

    @property
    def _variables(self) -> tuple[Variable, ...]:
        return self._splits, self._thresholds, self._values, self._sizes

    def training_graph(
        self, input_data: Any, input_labels: Any, num_trainers: int = 1, trainer_id: int = 0,
        input_weights: Any = None,
    ) -> Operation:  # fmt: skip
        """The operation that lets the forest learn a batch: ``input_data``, [examples, features] or a dict of
        such, by the order of names; ``input_labels``, [examples], or numbers, [examples, num_classes]; and
        perhaps the examples' weights. Of several trainers each grows its own trees.
        """
        params, share = self.params, self.params.num_trees / num_trainers
        bags = params.bagged_features or []
        weights = np.zeros(0, np.float32) if input_weights is None else cast(input_weights, float32)
        labels = cast(_one_tensor(input_labels), float32)
        with get_default_graph().device(_HOST):
            growth = forest_growth_op(
                outputs=params.num_classes, is_regression=params.regression,
                candidates=params.num_splits_to_consider, split_after=float(params.split_after_samples),
                max_nodes=params.max_nodes, is_strict=params.split_name == "less", trees=params.num_trees,
                seed=params.base_random_seed, bagged_features=[i for bag in bags for i in bag],
                bagging_fraction=float(params.bagging_fraction),
            )  # fmt: skip
            return forest_train(
                *[variable.handle for variable in self._variables], growth, _features(input_data), labels,
                weights, first=int(trainer_id * share), end=int((trainer_id + 1) * share), name="train",
            )  # fmt: skip

    def inference_graph(self, input_data: Any, **inference_args: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The mean prediction of the trees, [examples, num_classes]: probabilities, or numbers; the paths
        through trees, of which there are none, [0, trees]; and the variance between trees.
        """
        params = self.params
        with get_default_graph().device(_HOST):
            found, _ = forest_predict(
                self._splits, self._thresholds, self._values, _features(input_data),
                is_regression=params.regression,
            )  # fmt: skip
        mean = identity(reduce_mean(found, 1), name="probabilities")
        variance = maximum(0.0, reduce_mean(square(found), 1) - square(mean))
        return mean, fill([0, params.num_trees], ""), variance

    def average_size(self) -> Tensor:
        """The mean number of nodes of the trees."""
        return reduce_mean(cast(self._sizes, float32))

    def training_loss(self, features: Any, labels: Any, name: str = "training_loss") -> Tensor:
        """Minus the mean number of nodes: it falls as long as trees grow."""
        return identity(-self.average_size(), name=name)

    def validation_loss(self, features: Any, labels: Any) -> Tensor:
        return -self.average_size()

    def feature_importances(self) -> Tensor:
        """The share of splits by each feature, [num_features]."""
        splits = reshape(self._splits, [-1, 3])
        is_split = cast(not_equal(splits[:, 1], splits[:, 2]), float32)
        counts = unsorted_segment_sum(is_split, splits[:, 0], self.params.num_features)
        return counts / maximum(1.0, reduce_mean(counts) * float(self.params.num_features))


def _kept(value: Any, name: str) -> Variable:
    return Variable(value, trainable=False, name=name)


def _one_tensor(given: Any) -> Tensor:
    if isinstance(given, Mapping):
        (given,) = given.values()
    return convert_to_tensor(given)


def _features(given: Any) -> Tensor:
    """The features as one matrix, float32."""
    parts = [given[name] for name in sorted(given)] if isinstance(given, Mapping) else [given]
    if any(isinstance(part, SparseTensor) for part in parts):
        raise misuse("RandomForestGraphs: expected dense features; got sparse ones", UnimplementedError)
    columns = [cast(convert_to_tensor(part), float32) for part in parts]
    return columns[0] if len(columns) == 1 else concat(columns, 1)
