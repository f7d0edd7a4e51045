"""``contrib.learn.Estimator``: the estimator of before `estimator.Estimator`, which does its work.

A model function takes features and labels, under any names, and those of mode, params, config and model_dir
that it names. It returns a `ModelFnOps`, or predictions, loss and training operation.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt import estimator as core
from flowrt.base.structure import map_structure
from flowrt.contrib.learn.arrays import input_fn_of_arrays
from flowrt.contrib.learn.model_fn import ModeKeys, ModelFnOps, metric_ops
from flowrt.contrib.learn.run_config import RunConfig
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.estimator.export import PredictOutput, ServingInputReceiver
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.node import TensorSpec
from flowrt.graph.source import misuse
from flowrt.train.hooks.basic_session_run_hooks import FeedFnHook
from flowrt.train.hooks.session_run_hook import SessionRunContext, SessionRunHook, SessionRunValues
from flowrt.variables.variable import GraphKeys

_OPTIONAL = ("mode", "params", "config", "model_dir")


class _StopAtEnd(SessionRunHook):
    """Stops after one run if the input has no end: the graph reads no queue and no iterator."""

    def begin(self) -> None:
        graph = get_default_graph()
        reads_iterator = any(operation.type == "IteratorGetNext" for operation in graph.get_operations())
        self._stops = not (reads_iterator or graph.get_collection(GraphKeys.QUEUE_RUNNERS))

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._stops:
            run_context.request_stop()


class _Labels:
    """The facts that are known of labels once there were some; predictions get placeholders like them."""

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec


class Estimator:
    """A model that is fitted, evaluated and asked, with arrays ``x`` and ``y`` or with an input function.

    Args:
        model_fn: The model function; see the module.
        model_dir: The directory of checkpoints and summaries; by default a new temporary one.
        config: A `RunConfig`.
        params: What ``model_fn`` gets as ``params``.
        feature_engineering_fn: A function of features and labels that returns both for ``model_fn``.

    Raises:
        InvalidArgumentError: ``params`` is given, and ``model_fn`` does not take it.

    Example:
        >>> def model_fn(x, y):
        ...     predictions = tf.layers.dense(x, 1)[:, 0]
        ...     loss = tf.losses.mean_squared_error(y, predictions)
        ...     train = tf.train.AdamOptimizer().minimize(loss, tf.train.get_global_step())
        ...     return predictions, loss, train
        >>> estimator = tf.contrib.learn.Estimator(model_fn)
        >>> x, y = np.ones([8, 2], np.float32), np.ones(8, np.float32)
        >>> len(list(estimator.fit(x, y, steps=3, batch_size=4).predict(x)))
        8
        >>> estimator.get_variable_value("global_step")
        array(3)
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Any = None,
        config: core.RunConfig | None = None,
        params: Any = None,
        feature_engineering_fn: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    ) -> None:
        names = list(inspect.signature(model_fn).parameters)
        if params is not None and "params" not in names:
            raise misuse("Estimator: params are given; model_fn has no argument params", InvalidArgumentError)
        self._model_fn, self._arguments = model_fn, [name for name in names if name in _OPTIONAL]
        self.params, self._engineered = params, feature_engineering_fn
        config = config or RunConfig()
        directory = model_dir or config.model_dir or tempfile.mkdtemp()
        self._engine = self._core_estimator(config.replace(model_dir=directory))
        self._labels_like: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_dir!r})"

    @property
    def model_dir(self) -> str:
        return self._engine.model_dir

    @property
    def config(self) -> core.RunConfig:
        return self._engine.config

    def get_variable_names(self) -> list[str]:
        """The names in the newest checkpoint. Raises `NotFoundError` if there is none."""
        return self._engine.get_variable_names()

    def get_variable_value(self, name: str) -> np.ndarray[Any, Any]:
        """The value of a variable in the newest checkpoint. Raises `NotFoundError`."""
        return self._engine.get_variable_value(name)

    # --- building

    def _core_estimator(self, config: core.RunConfig, metrics: Any = None) -> core.Estimator:
        def model_fn(features: Any, labels: Any, mode: str) -> core.EstimatorSpec:
            return self._spec(features, labels, mode, metrics)

        return core.Estimator(model_fn, config=config)

    def _spec(self, features: Any, labels: Any, mode: str, metrics: Any) -> core.EstimatorSpec:
        if mode == ModeKeys.INFER:
            labels = map_structure(_placeholder_like, self._labels_like)
        else:
            self._labels_like = map_structure(_spec_of, labels)
        if self._engineered is not None:
            features, labels = self._engineered(features, labels)
        offered = {"mode": mode, "params": self.params, "config": self.config, "model_dir": self.model_dir}
        found = self._model_fn(features, labels, **{name: offered[name] for name in self._arguments})
        spec = found if isinstance(found, core.EstimatorSpec) else _as_spec(mode, found)
        if mode == ModeKeys.EVAL and metrics:
            added = metric_ops(metrics, features, labels, spec.predictions)
            spec = spec._replace(eval_metric_ops={**spec.eval_metric_ops, **added})
        return spec

    # --- running

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        input_fn: Callable[..., Any] | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        monitors: Sequence[Any] | None = None,
        max_steps: int | None = None,
    ) -> Estimator:
        """Train for ``steps`` more steps, until the global step is ``max_steps``, or until the input ends, on
        shuffled batches of ``x`` and ``y`` without end or on those of ``input_fn``; returns the estimator.
        ``monitors`` are hooks, or ``contrib.learn.monitors``.
        """
        for monitor in monitors or ():
            if hasattr(monitor, "set_estimator"):
                monitor.set_estimator(self)
        given = _input_fn(x, y, input_fn, batch_size, shuffle=True, epochs=None)
        self._engine.train(given, monitors, steps, max_steps)
        return self

    def partial_fit(
        self,
        x: Any = None,
        y: Any = None,
        input_fn: Callable[..., Any] | None = None,
        steps: int | None = 1,
        batch_size: int | None = None,
        monitors: Sequence[Any] | None = None,
    ) -> Estimator:
        """`fit` for one step, or for ``steps``."""
        return self.fit(x, y, input_fn, steps, batch_size, monitors)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        input_fn: Callable[..., Any] | None = None,
        feed_fn: Callable[[], Mapping[Any, Any]] | None = None,
        batch_size: int | None = None,
        steps: int | None = None,
        metrics: Mapping[Any, Any] | None = None,
        name: str | None = None,
        checkpoint_path: Any = None,
        hooks: Sequence[SessionRunHook] | None = None,
        log_progress: bool = True,
    ) -> dict[str, Any]:
        """The model's metrics, and ``metrics``, over ``steps`` batches (None: all), the mean ``loss`` and the
        ``global_step``; see `MetricSpec`. ``feed_fn()`` is what each run is fed.

        Raises `NotFoundError` if the model was not fitted.
        """
        path = checkpoint_path or self._engine.needed_checkpoint()
        given = _input_fn(x, y, input_fn, batch_size, shuffle=False, epochs=1)
        feeding = [FeedFnHook(feed_fn)] if feed_fn else []
        engine = self._core_estimator(self.config, metrics)
        return engine.evaluate(given, steps, [*feeding, *(hooks or ())], path, name)

    def predict(
        self,
        x: Any = None,
        input_fn: Callable[..., Any] | None = None,
        batch_size: int | None = None,
        outputs: Sequence[str] | None = None,
        as_iterable: bool = True,
        iterate_batches: bool = False,
    ) -> Any:
        """The predictions for one example after the other, those in ``outputs`` of a dict of them; for
        batches with ``iterate_batches``; all in one array, or dict of arrays, without ``as_iterable``.

        Input that has no end, such as constants, is read once. Raises as `estimator.Estimator.predict`.
        """
        given = _input_fn(x, None, input_fn, batch_size, shuffle=False, epochs=1)
        singly = as_iterable and not iterate_batches
        found = self._engine.predict(given, outputs, [_StopAtEnd()], yield_single_examples=singly)
        return found if as_iterable else _joined(list(found))

    def export_savedmodel(
        self,
        export_dir_base: Any,
        serving_input_fn: Callable[[], Any],
        default_output_alternative_key: str | None = None,
        assets_extra: Mapping[str, Any] | None = None,
        as_text: bool = False,
        checkpoint_path: Any = None,
    ) -> bytes:
        """Write the model as a SavedModel, as `estimator.Estimator.export_saved_model`;
        ``serving_input_fn`` returns an `InputFnOps`.
        """

        def receiver_fn() -> ServingInputReceiver:
            features, _, fed = serving_input_fn()
            return ServingInputReceiver(features, fed)

        return self._engine.export_saved_model(
            export_dir_base, receiver_fn, assets_extra, as_text, checkpoint_path
        )


def _as_spec(mode: str, found: Any) -> core.EstimatorSpec:
    """The model that the function returned. Raises `DTypeError` for anything but `ModelFnOps` or three
    values.
    """
    if not isinstance(found, (tuple, list)) or not (isinstance(found, ModelFnOps) or len(found) == 3):
        raise misuse(
            f"model_fn: expected ModelFnOps, or predictions, loss and train_op; got {found!r:.80}", DTypeError
        )
    ops = found if isinstance(found, ModelFnOps) else ModelFnOps(mode, *found)
    outputs = {name: PredictOutput(each[1]) for name, each in (ops.output_alternatives or {}).items()}
    return core.EstimatorSpec(
        mode, ops.predictions, ops.loss, ops.train_op, ops.eval_metric_ops, outputs or None,
        ops.training_chief_hooks, ops.training_hooks, ops.scaffold,
    )  # fmt: skip


def _spec_of(tensor: Tensor | None) -> _Labels | None:
    return None if tensor is None else _Labels(tensor.spec)


def _placeholder_like(labels: _Labels | None) -> Tensor | None:
    """A placeholder for labels of any number of examples."""
    if labels is None:
        return None
    dtype, shape = labels.spec
    return placeholder(dtype, shape and (None, *shape[1:]), "labels")


def _joined(batches: list[Any]) -> Any:
    if isinstance(batches[0], Mapping):
        return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
    return np.concatenate(batches)


def _input_fn(
    x: Any,
    y: Any,
    input_fn: Callable[..., Any] | None,
    batch_size: int | None,
    shuffle: bool,
    epochs: int | None,
) -> Callable[..., Any]:
    """``input_fn``, or one of the arrays. Raises `InvalidArgumentError` if both are given."""
    if input_fn is None:
        return input_fn_of_arrays(x, y, batch_size, shuffle, epochs)
    if x is not None or y is not None or batch_size is not None:
        raise misuse("expected input_fn, or x, y and batch_size; got both", InvalidArgumentError)
    return input_fn


class SKCompat:
    """An `Estimator` with the methods of scikit-learn's, for arrays."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator

    def fit(
        self,
        x: Any,
        y: Any,
        batch_size: int = 128,
        steps: int | None = None,
        max_steps: int | None = None,
        monitors: Sequence[Any] | None = None,
    ) -> SKCompat:
        """Call `Estimator.fit`; returns itself."""
        self._estimator.fit(x, y, None, steps, batch_size, monitors, max_steps)
        return self

    def score(
        self,
        x: Any,
        y: Any,
        batch_size: int = 128,
        steps: int | None = None,
        metrics: Mapping[Any, Any] | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Call `Estimator.evaluate`."""
        return self._estimator.evaluate(x, y, batch_size=batch_size, steps=steps, metrics=metrics, name=name)

    def predict(self, x: Any, batch_size: int = 128, outputs: Sequence[str] | None = None) -> Any:
        """All predictions, an array or a dict of arrays."""
        return Estimator.predict(self._estimator, x, None, batch_size, outputs, as_iterable=False)
