"""``flowrt.contrib.tensor_forest``: random forests that grow while examples stream by.

forest_params      `ForestHParams`
forest_graphs      `RandomForestGraphs`: training and predictions as operations
forest_estimator   `TensorForestEstimator`, of ``contrib.learn``
"""

from flowrt.contrib.tensor_forest.forest_estimator import (
    VARIANCE_PREDICTION_KEY,
    TensorForestEstimator,
    TensorForestLossHook,
)
from flowrt.contrib.tensor_forest.forest_graphs import RandomForestGraphs
from flowrt.contrib.tensor_forest.forest_params import ForestHParams
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "VARIANCE_PREDICTION_KEY", "ForestHParams", "RandomForestGraphs", "TensorForestEstimator",
    "TensorForestLossHook",
]  # fmt: skip

__getattr__ = missing_from("contrib.tensor_forest")
