"""``flowrt.metrics``: streaming metrics, each a pair ``(value, update_op)`` over local variables.

streaming_metrics   the metrics
curves              areas under curves
"""

from flowrt.metrics.streaming_metrics import (
    accuracy,
    auc,
    false_negatives,
    false_positives,
    mean,
    mean_absolute_error,
    mean_iou,
    mean_per_class_accuracy,
    mean_squared_error,
    percentage_below,
    precision,
    recall,
    root_mean_squared_error,
    true_negatives,
    true_positives,
)
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "accuracy",
    "auc",
    "false_negatives",
    "false_positives",
    "mean",
    "mean_absolute_error",
    "mean_iou",
    "mean_per_class_accuracy",
    "mean_squared_error",
    "percentage_below",
    "precision",
    "recall",
    "root_mean_squared_error",
    "true_negatives",
    "true_positives",
]

__getattr__ = missing_from("metrics")
