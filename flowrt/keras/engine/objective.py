"""The objective of a compiled model: targets, weights of samples, the loss to minimize, metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import placeholder, placeholder_with_default
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise.arithmetic import add_n, multiply
from flowrt.graph.source import misuse
from flowrt.keras import losses, metrics
from flowrt.keras.losses import Loss, reduced, takes_integers
from flowrt.keras.metrics import Mean, MeanMetricWrapper, Metric


@dataclass(frozen=True)
class Settings:
    """The arguments of `compile` that say what is measured, as they were given."""

    loss: Any
    metrics: Any = None
    loss_weights: Any = None
    sample_weight_mode: Any = None
    weighted_metrics: Any = None
    target_tensors: Any = None


@dataclass
class Objective:
    """Placeholders of the ``targets`` and ``sample_weights``, each None for an output without a loss; the
    ``total_loss``; names and tensors of the ``measures`` and the operations that update them.
    """

    targets: list[Tensor | None] = field(default_factory=list)
    sample_weights: list[Tensor | None] = field(default_factory=list)
    fed: list[bool] = field(default_factory=list)
    total_loss: Tensor | None = None
    metrics: list[Metric] = field(default_factory=list)
    measures: dict[str, Tensor] = field(default_factory=dict)
    updates: list[Operation] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return ["loss", *self.measures]


def make_objective(
    outputs: Sequence[Tensor], names: Sequence[str], settings: Settings, more_losses: Sequence[Tensor]
) -> Objective:
    """The objective for ``outputs`` with these names; ``more_losses``, of weights and activities, are added.

    Raises `InvalidArgumentError` for names of outputs that the model does not have, and for no loss at all.
    """
    found = Objective()
    functions = per_output(settings.loss, names, "loss", spread=True)
    weights = per_output(settings.loss_weights, names, "loss_weights")
    targets = per_output(settings.target_tensors, names, "target_tensors")
    modes = per_output(settings.sample_weight_mode, names, "sample_weight_mode", spread=True)
    parts: list[Tensor] = []
    losses_of: list[Tensor | None] = []
    for output, name, function, weight, target, mode in zip(
        outputs, names, functions, weights, targets, modes, strict=True
    ):
        function = losses.get(function)
        has_target = function is not None
        found.targets.append(
            (_target(output, name, function) if target is None else target) if has_target else None
        )
        found.fed.append(has_target and target is None)
        found.sample_weights.append(_sample_weight(name, mode) if has_target else None)
        if not has_target:
            losses_of.append(None)
            continue
        with get_default_graph().name_scope(f"loss/{name}_loss"):
            loss = _loss_of(function, found.targets[-1], output, found.sample_weights[-1])
            losses_of.append(loss)
            parts.append(loss if weight in (None, 1, 1.0) else multiply(loss, float(weight)))
    more = [convert_to_tensor(loss) for loss in more_losses]
    parts += [cast(loss, (parts or more)[0].dtype) for loss in more]
    if not parts:
        raise misuse("compile: expected a loss for an output, or losses of layers; got none")
    with get_default_graph().name_scope("loss"):
        found.total_loss = parts[0] if len(parts) == 1 else add_n(parts)
    if len(outputs) > 1:
        _measure_losses(found, names, losses_of)
    _measure(found, outputs, names, functions, settings)
    return found


def _target(output: Tensor, name: str, loss: Any) -> Tensor:
    """The placeholder of true values. Their shape is known for Keras's own losses, and a feed of another one
    is an error; other functions may take any.
    """
    dims = output.shape.as_list() if output.shape.ndims else [None, None]
    if takes_integers(loss):
        return placeholder(dtypes.int64, [None, *dims[1:-1], 1], name=f"{name}_target")
    is_known = getattr(type(loss), "__module__", "") == losses.__name__ or (
        getattr(loss, "__module__", "") == losses.__name__
    )
    return placeholder(
        output.dtype, [None, *(dims[1:] if is_known else [None] * len(dims[1:]))], name=f"{name}_target"
    )


def _sample_weight(name: str, mode: Any) -> Tensor:
    """A weight for each sample, or with the mode "temporal" for each time step; 1 unless fed."""
    rank = 2 if mode == "temporal" else 1
    return placeholder_with_default(
        np.ones([1] * rank, np.float32), [None] * rank, name=f"{name}_sample_weights"
    )


def _loss_of(function: Any, target: Any, output: Tensor, weight: Any) -> Tensor:
    if isinstance(function, Loss):
        return function(target, output, weight)
    return reduced(function(target, output), weight)


def per_output(given: Any, names: Sequence[str], what: str, spread: bool = False) -> list[Any]:
    """``given`` for each output: a list, a dict by name, or one for all (with ``spread``) or the only one."""
    if given is None:
        return [None] * len(names)
    if isinstance(given, Mapping):
        for name in given:
            if name not in names:
                raise misuse(f"{what}: expected names of outputs, {', '.join(names)}; got {name!r}")
        return [given.get(name) for name in names]
    if isinstance(given, (list, tuple)):
        if len(given) != len(names):
            raise misuse(f"{what}: expected {len(names)}, one for each output; got {len(given)}")
        return list(given)
    if not spread and len(names) > 1:
        raise misuse(f"{what}: expected one for each of the outputs {', '.join(names)}; got {given!r}")
    return [given] * len(names)


# --- metrics


def _measure_losses(found: Objective, names: Sequence[str], losses_of: Sequence[Tensor | None]) -> None:
    """The loss of each output, as the mean over batches."""
    for name, loss in zip(names, losses_of, strict=True):
        if loss is not None:
            _add(found, Mean(f"{name}_loss"), loss)


def _measure(
    found: Objective,
    outputs: Sequence[Tensor],
    names: Sequence[str],
    functions: Sequence[Any],
    settings: Settings,
) -> None:
    for given, is_weighted in ((settings.metrics, False), (settings.weighted_metrics, True)):
        for index, asked in enumerate(_metricsper_output(given, names)):
            target = found.targets[index]
            if target is None:
                continue
            for each in asked:
                metric = _as_metric(each, outputs[index], functions[index], is_weighted)
                if len(outputs) > 1:
                    metric.name = f"{names[index]}_{metric.name}"
                weight = found.sample_weights[index] if is_weighted else None
                _add(found, metric, target, outputs[index], sample_weight=weight)


def _metricsper_output(given: Any, names: Sequence[str]) -> list[list[Any]]:
    if not given:
        return [[] for _ in names]
    if isinstance(given, Mapping):
        return [_as_list(each) for each in per_output(given, names, "metrics")]
    if len(names) > 1 and any(isinstance(each, (list, tuple)) for each in given):
        return [_as_list(each) for each in per_output(given, names, "metrics")]
    return [_as_list(given) for _ in names]


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _as_metric(asked: Any, output: Tensor, loss: Any, is_weighted: bool) -> Metric:
    if isinstance(asked, Metric):
        return asked
    function = _metric_function(asked, output, losses.get(loss))
    if isinstance(function, Metric):
        return function
    name = (
        {"accuracy": "acc", "acc": "acc", "crossentropy": "ce", "ce": "ce"}.get(asked)
        if isinstance(asked, str)
        else None
    )
    name = name or getattr(function, "__name__", "metric")
    function = function.call if isinstance(function, Loss) else function
    return MeanMetricWrapper(function, f"weighted_{name}" if is_weighted else name)


def _metric_function(asked: Any, output: Tensor, loss: Any) -> Callable[..., Any]:
    """The function of a metric; "accuracy" and "crossentropy" are chosen by the loss and the output."""
    if asked not in ("accuracy", "acc", "crossentropy", "ce"):
        return metrics.get(asked)
    is_binary = (
        output.shape.as_list()[-1] == 1 or getattr(type(loss), "function", loss) is losses.binary_crossentropy
    )
    sparse, binary, categorical = (
        (metrics.sparse_categorical_accuracy, metrics.binary_accuracy, metrics.categorical_accuracy)
        if asked in ("accuracy", "acc")
        else (
            losses.sparse_categorical_crossentropy, losses.binary_crossentropy,
            losses.categorical_crossentropy,
        )
    )  # fmt: skip
    if is_binary:
        return binary
    return sparse if takes_integers(loss) else categorical


def _add(found: Objective, metric: Metric, *values: Any, **options: Any) -> None:
    """Measure ``values`` with ``metric``, under a name of its own."""
    own = metric.name.strip("<>")  # that of a lambda
    name, count = own, 0
    while name in found.measures:
        count += 1
        name = f"{own}_{count}"
    with get_default_graph().name_scope(f"metrics/{metrics.scope_of(name)}"):
        given = {key: value for key, value in options.items() if value is not None}
        found.measures[name], updates = metric.updated(*values, **given)
    found.metrics.append(metric)
    found.updates += updates


def add_measure(found: Objective, name: str, value: Any) -> None:
    """Measure the mean of the tensor ``value`` of a model."""
    _add(found, Mean(name), value)
