"""Hyperparameters of random forests, under TensorFlow's names."""

from __future__ import annotations

import math
import random
from typing import Any

from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.source import misuse

_MODELS = ("all_dense", "all_sparse", "sparse_then_dense")
_ONLY = {
    "split_finish_name": "basic", "split_pruning_name": "none", "collate_examples": False,
    "checkpoint_stats": False, "initialize_average_splits": False, "inference_tree_paths": False,
    "param_file": None,
}  # fmt: skip
"""Arguments of which there is one value."""


class ForestHParams:
    """The hyperparameters of a forest; those that are not given get values by `fill`.

    Args:
        num_trees: How many trees there are.
        max_nodes: How many nodes a tree may have: no leaf of one with as many is split.
        bagging_fraction: The share of each batch that a tree learns.
        num_splits_to_consider: Candidates of splits in each leaf; by default the root of the number of
            features, from 10 to 1000.
        feature_bagging_fraction: The share of the features that a tree knows.
        split_after_samples: How many examples a leaf counts before it is split.
        model_name: "all_dense"; the sparse ones have the same results.
        split_name: "less_or_equal", or "less": which examples go to the left.
        num_classes: The number of classes, or of numbers of a regression.
        num_features: The number of features.
        regression: Whether labels are numbers.
        base_random_seed: The seed of the first tree, others have those that follow; 0: each run has another.

    Raises:
        InvalidArgumentError: ``num_classes`` or ``num_features`` is missing, or a value out of its range.
        UnimplementedError: An argument with another value than the only one: early finish, pruning,
            statistics in checkpoints, paths through trees. In TensorFlow most of these fail as well.

    Example:
        >>> params = tf.contrib.tensor_forest.ForestHParams(num_classes=3, num_features=400)
        >>> params.fill().num_splits_to_consider
        20
    """

    num_classes: int
    num_features: int
    num_trees: int
    max_nodes: int
    bagging_fraction: float
    feature_bagging_fraction: float
    num_splits_to_consider: int
    split_after_samples: Any
    model_name: str
    split_name: str

    def __init__(
        self,
        num_trees: int = 100,
        max_nodes: int = 10000,
        bagging_fraction: float = 1.0,
        num_splits_to_consider: int = 0,
        feature_bagging_fraction: float = 1.0,
        max_fertile_nodes: int = 0,
        split_after_samples: Any = 250,
        valid_leaf_threshold: int = 1,
        dominate_method: str = "bootstrap",
        dominate_fraction: float = 0.99,
        model_name: str = "all_dense",
        split_finish_name: str = "basic",
        split_pruning_name: str = "none",
        prune_every_samples: int = 0,
        early_finish_check_every_samples: int = 0,
        collate_examples: bool = False,
        checkpoint_stats: bool = False,
        use_running_stats_method: bool = False,
        initialize_average_splits: bool = False,
        inference_tree_paths: bool = False,
        param_file: Any = None,
        split_name: str = "less_or_equal",
        **others: Any,
    ) -> None:
        given = dict(locals())
        for name in ("self", "others", "__class__"):
            given.pop(name, None)
        for name, value in {**given, **others}.items():
            setattr(self, name, value)

    def values(self) -> dict[str, Any]:
        return self.__dict__

    def fill(self) -> ForestHParams:
        """Check the values, and set those that follow from others; returns the object."""
        for name in ("num_classes", "num_features"):
            if getattr(self, name, 0) < 1:
                raise misuse(f"ForestHParams: expected {name} from 1 on", InvalidArgumentError)
        for name, value in _ONLY.items():
            if getattr(self, name) != value:
                raise misuse(
                    f"ForestHParams: {name}: expected {value!r}; got {getattr(self, name)!r}",
                    UnimplementedError,
                )
        if self.model_name not in _MODELS or self.split_name not in ("less_or_equal", "less"):
            raise misuse(
                f"ForestHParams: expected a model_name of {', '.join(_MODELS)}, and a split_name "
                f"less_or_equal or less; got {self.model_name!r}, {self.split_name!r}",
                InvalidArgumentError,
            )
        self.split_after_samples = int(self.split_after_samples)
        self.regression = getattr(self, "regression", False)
        self.base_random_seed = getattr(self, "base_random_seed", 0)
        self.num_outputs = self.num_classes if self.regression else 1
        self.num_output_columns = self.num_classes + 1
        if not self.num_splits_to_consider:
            self.num_splits_to_consider = min(max(10, math.isqrt(self.num_features)), 1000)
        self.bagged_num_features = int(self.feature_bagging_fraction * self.num_features)
        self.bagged_features = None
        if self.feature_bagging_fraction < 1:
            every = range(self.num_features)
            self.bagged_features = [
                random.sample(every, self.bagged_num_features) for _ in range(self.num_trees)
            ]
        return self
