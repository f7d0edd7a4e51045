"""More metrics for an estimator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.estimator.estimator import Estimator
from flowrt.estimator.modes import EstimatorSpec, ModeKeys
from flowrt.graph.source import misuse

_ARGUMENTS = {"features", "labels", "predictions", "config"}


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Mapping[str, Any]]) -> Estimator:
    """An estimator with the model and the directory of ``estimator``, which evaluates the metrics of
    ``metric_fn``, too: a function of those of features, labels, predictions and config that it names, which
    returns pairs of values and updates by name.

    Raises `InvalidArgumentError` for other arguments.

    Example:
        >>> def metric_fn(labels, predictions):
        ...     return {"mean": tf.metrics.mean(predictions["logistic"])}
        >>> estimator = tf.estimator.BaselineClassifier()
        >>> estimator = tf.estimator.add_metrics(estimator, metric_fn)
    """
    names = inspect.signature(metric_fn).parameters.keys()
    if strange := names - _ARGUMENTS:
        raise misuse(
            f"add_metrics: expected arguments among {sorted(_ARGUMENTS)}; got {sorted(strange)}",
            InvalidArgumentError,
        )

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
        spec = estimator.call_model_fn(features, labels, mode)
        if mode != ModeKeys.EVAL:
            return spec
        offered = {"features": features, "labels": labels, "predictions": spec.predictions, "config": config}
        added = metric_fn(**{name: offered[name] for name in names})
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, **added})

    return Estimator(model_fn, estimator.model_dir, estimator.config)
