"""The result of a model function of ``contrib.learn``, and metrics that an evaluation adds to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.estimator import modes
from flowrt.graph.source import misuse


class ModeKeys(modes.ModeKeys):
    """`estimator.ModeKeys`, with the name that prediction had before."""

    INFER = modes.ModeKeys.PREDICT


class ModelFnOps(NamedTuple):
    """A model for ``mode``, as `estimator.EstimatorSpec`; what the mode does not need is left out.

    ``output_alternatives`` are outputs for servers: a problem type and tensors by name, by the head's name.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Mapping[str, Any] | None = None
    output_alternatives: Mapping[Any, tuple[Any, Mapping[str, Any]]] | None = None
    training_chief_hooks: Sequence[Any] | None = None
    training_hooks: Sequence[Any] | None = None
    scaffold: Any = None


class MetricSpec:
    """A metric of an evaluation: ``metric_fn`` of the predictions ``prediction_key``, the labels
    ``label_key`` and the weights, the feature ``weight_key``. A key is None where there is one tensor only.
    """

    def __init__(
        self,
        metric_fn: Callable[..., Any],
        prediction_key: str | None = None,
        label_key: str | None = None,
        weight_key: str | None = None,
    ) -> None:
        self.metric_fn, self.prediction_key = metric_fn, prediction_key
        self.label_key, self.weight_key = label_key, weight_key

    def create_metric_ops(self, inputs: Any, labels: Any, predictions: Any) -> Any:
        """The metric's value and update. Raises `InvalidArgumentError` for a key that is missing or
        unknown.
        """
        given = {
            "predictions": _part("prediction_key", predictions, self.prediction_key),
            "labels": _part("label_key", labels, self.label_key),
        }
        if self.weight_key is not None:
            given["weights"] = _part("weight_key", inputs, self.weight_key)
        names = inspect.signature(self.metric_fn).parameters
        if given.keys() <= names.keys():
            return self.metric_fn(**given)
        return self.metric_fn(*given.values())


def _part(what: str, given: Any, key: str | None) -> Any:
    """The tensor ``key`` of a dict, or the only one."""
    if not isinstance(given, Mapping):
        return given
    if key is None and len(given) == 1:
        return next(iter(given.values()))
    if key not in given:
        raise misuse(
            f"MetricSpec: {what}: expected one of {sorted(map(str, given))}; got {key!r}",
            InvalidArgumentError,
        )
    return given[key]


def metric_ops(metrics: Mapping[Any, Any] | None, features: Any, labels: Any, predictions: Any) -> Any:
    """The values and updates of ``metrics`` by name: `MetricSpec`, or functions of predictions and labels,
    which are named by ``(name, prediction_key)`` where there are several predictions.

    Raises `DTypeError` for anything but a dict, and `InvalidArgumentError` as `MetricSpec`.
    """
    if metrics is not None and not isinstance(metrics, Mapping):
        raise misuse(f"metrics: expected a dict; got {metrics!r:.80}", DTypeError)
    found = {}
    for name, metric in (metrics or {}).items():
        shown, key = name if isinstance(name, tuple) else (name, None)
        spec = metric if isinstance(metric, MetricSpec) else MetricSpec(metric, key)
        found[shown] = spec.create_metric_ops(features, labels, predictions)
    return found
