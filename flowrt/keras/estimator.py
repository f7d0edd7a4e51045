"""``flowrt.keras.estimator``: `model_to_estimator`, a compiled model as a `flowrt.estimator.Estimator`.

Each call of the estimator builds a copy of the model in a graph of its own, on the tensors of its input
function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flowrt.errors import UnimplementedError
from flowrt.estimator import Estimator, EstimatorSpec, ModeKeys, RunConfig
from flowrt.estimator.export import PredictOutput
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.keras import losses, optimizers
from flowrt.keras.engine.model import Model
from flowrt.keras.engine.objective import Objective, Settings, make_objective, per_output
from flowrt.keras.identifiers import custom_object_scope
from flowrt.keras.losses import takes_integers
from flowrt.keras.metrics import Metric
from flowrt.keras.models import clone_model, load_model
from flowrt.keras.state.sessions import set_learning_phase
from flowrt.nest import flatten
from flowrt.saved_model.signature_constants import DEFAULT_SERVING_SIGNATURE_DEF_KEY
from flowrt.train.checkpoints.saver import Saver
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.optimizers.global_step import get_or_create_global_step
from flowrt.variables.variable import Variable

__all__ = ["model_to_estimator"]


def model_to_estimator(
    keras_model: Model | None = None,
    keras_model_path: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: Any = None,
    config: RunConfig | None = None,
    checkpoint_format: str | None = None,
    use_v2_estimator: bool = False,
) -> Estimator:
    """The compiled ``keras_model``, or the one saved at ``keras_model_path``, as an `Estimator` that begins
    with its weights.

    Features are a tensor, a list, or a dict with the names of the model's inputs, labels likewise of its
    outputs; predictions are by the names of outputs. ``checkpoint_format`` and ``use_v2_estimator`` change
    nothing: checkpoints are those of a `Saver`.

    Raises `InvalidArgumentError` without a model or for one that is not compiled, `UnimplementedError` for
    one that is a class.
    """
    if (keras_model is None) == (keras_model_path is None):
        raise misuse("model_to_estimator: expected keras_model or keras_model_path, and not both")
    model = keras_model if keras_model is not None else load_model(keras_model_path or "", custom_objects)
    if model._settings is None:
        raise misuse(f"model_to_estimator: expected a compiled model; {model.name!r} is not. Call compile()")
    if model.inputs is None or model._is_graph_network is False:
        raise misuse(
            f"model_to_estimator: expected a model of layers; {model.name!r} is a class", UnimplementedError
        )
    model_fn = _model_fn(
        model, model._settings, _copier(model.optimizer), model.get_weights(), custom_objects
    )
    return Estimator(model_fn, model_dir, config)


def _copier(optimizer: Any) -> Callable[[], Any]:
    """A function that makes an equal optimizer in another graph; those of `flowrt.train` need no copy."""
    if not isinstance(optimizer, optimizers.Optimizer):
        return lambda: optimizer
    config = optimizer.get_config()
    return lambda: type(optimizer).from_config(config)


def _model_fn(
    model: Model,
    settings: Settings,
    new_optimizer: Callable[[], Any],
    weights: list[Any],
    custom_objects: Any,
) -> Callable[..., EstimatorSpec]:
    """The model function of ``model`` with these first weights."""

    def model_fn(features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
        set_learning_phase(mode == ModeKeys.TRAIN)
        with custom_object_scope(custom_objects):
            copy = clone_model(model)
        inputs = [
            cast(x, own.dtype)
            for x, own in zip(_ordered(features, model.input_names, "features"), copy.inputs, strict=True)
        ]
        outputs = flatten(copy(inputs if len(inputs) > 1 else inputs[0]))
        predictions = dict(zip(model.output_names, outputs, strict=True))
        exports = {DEFAULT_SERVING_SIGNATURE_DEF_KEY: PredictOutput(predictions)}
        loss, train, measures = None, None, {}
        if mode != ModeKeys.PREDICT:
            objective = _objective(model, copy, settings, inputs, outputs, labels)
            loss, measures = objective.total_loss, _measures(objective, model.output_names)
        if mode == ModeKeys.TRAIN:
            updates = [*copy.get_updates_for(None), *copy.get_updates_for(inputs)]
            train = group(_minimized(new_optimizer(), loss, copy.trainable_weights), *updates)
        saver = Saver(
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
        )
        scaffold = Scaffold(init_fn=_loader(copy.weights, weights), saver=saver)
        return EstimatorSpec(mode, predictions, loss, train, measures, exports, scaffold=scaffold)

    return model_fn


def _ordered(given: Any, names: Sequence[str], what: str) -> list[Tensor]:
    """Tensors in the order of ``names``. Raises `InvalidArgumentError` for other names, or another number."""
    if isinstance(given, Mapping):
        if set(given) != set(names):
            raise misuse(f"{what}: expected the names {', '.join(names)}; got {', '.join(map(str, given))}")
        given = [given[name] for name in names]
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(found) != len(names) or found == [None]:
        raise misuse(f"{what}: expected {len(names)} tensors, for {', '.join(names)}; got {given!r}")
    return [convert_to_tensor(each) for each in found]


def _objective(
    model: Model, copy: Model, settings: Settings, inputs: Any, outputs: list[Tensor], labels: Any
) -> Objective:
    targets = [
        _as_target(label, output, loss)
        for label, output, loss in zip(
            _ordered(labels, model.output_names, "labels"),
            outputs,
            per_output(settings.loss, model.output_names, "loss", spread=True),
            strict=True,
        )
    ]
    own = replace(
        settings,
        metrics=_new_metrics(settings.metrics),
        weighted_metrics=_new_metrics(settings.weighted_metrics),
        target_tensors=targets,
    )
    more = [*copy.get_losses_for(None), *copy.get_losses_for(inputs)]
    return make_objective(outputs, model.output_names, own, more)


def _as_target(label: Tensor, output: Tensor, loss: Any) -> Tensor:
    """``label`` in the form that ``loss`` takes: numbers of the output's dtype; a vector as a column."""
    if not takes_integers(losses.get(loss)):
        label = cast(label, output.dtype)
    is_vector = label.shape.ndims == 1 and (output.shape.ndims or 2) > 1
    return expand_dims(label, -1) if is_vector else label


def _new_metrics(given: Any) -> Any:
    """``given`` with metrics, which have variables, made anew in this graph."""
    if isinstance(given, Mapping):
        return {key: _new_metrics(each) for key, each in given.items()}
    if isinstance(given, (list, tuple)):
        return [_new_metrics(each) for each in given]
    return type(given).from_config(given.get_config()) if isinstance(given, Metric) else given


def _measures(objective: Objective, output_names: Sequence[str]) -> dict[str, tuple[Tensor, Operation]]:
    """The value of each metric that was asked for, and the update of all."""
    update = group(*objective.updates)
    parts = {f"{name}_loss" for name in output_names}
    named = zip(objective.measures, objective.metrics, strict=True)
    return {n: (convert_to_tensor(metric.result()), update) for n, metric in named if n not in parts}


def _minimized(optimizer: Any, loss: Any, weights: list[Variable]) -> Operation:
    """A step of ``optimizer``, which counts in the global step."""
    step = get_or_create_global_step()
    if not isinstance(optimizer, optimizers.Optimizer):
        return optimizer.minimize(loss, step, weights)
    optimizer.iterations = step
    return group(*optimizer.get_updates(loss, weights))


def _loader(variables: list[Variable], values: list[Any]) -> Callable[[Scaffold, Any], None]:
    """The first work of a session that restores no checkpoint: give ``variables`` their ``values``."""

    def load(_: Scaffold, session: Any) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.load(value, session)

    return load
