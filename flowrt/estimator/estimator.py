"""`Estimator`: a graph for each call, built by the model function and run by a monitored session; what lasts
are the checkpoints in ``model_dir``.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt import metrics
from flowrt.data import Dataset
from flowrt.errors import DTypeError, InvalidArgumentError, NotFoundError
from flowrt.estimator.eval_summaries import write_eval_metrics
from flowrt.estimator.export import PredictOutput, signatures
from flowrt.estimator.export_folder import final_name, new_export
from flowrt.estimator.modes import EstimatorSpec, ModeKeys
from flowrt.estimator.run_config import RunConfig
from flowrt.executor.session.session import Session
from flowrt.graph.construction.graph import Graph
from flowrt.graph.ops.random.random_ops import set_random_seed
from flowrt.graph.source import misuse
from flowrt.logging import info
from flowrt.saved_model.builder import SavedModelBuilder
from flowrt.saved_model.signature_constants import DEFAULT_SERVING_SIGNATURE_DEF_KEY
from flowrt.saved_model.tag_constants import SERVING
from flowrt.train.checkpoints.checkpoint_state import latest_checkpoint
from flowrt.train.checkpoints.open_checkpoint import open_checkpoint
from flowrt.train.checkpoints.saver import Saver
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.checkpoints.warm_start_settings import WarmStartSettings, warm_start
from flowrt.train.hooks.basic_session_run_hooks import (
    FinalOpsHook,
    LoggingTensorHook,
    NanTensorHook,
    StopAtStepHook,
)
from flowrt.train.hooks.recording_hooks import CheckpointSaverHook, CheckpointSaverListener
from flowrt.train.hooks.session_run_hook import SessionRunHook
from flowrt.train.optimizers.global_step import get_or_create_global_step
from flowrt.train.sessions.monitored_session import MonitoredSession, MonitoredTrainingSession
from flowrt.train.sessions.session_manager import ChiefSessionCreator
from flowrt.variables.variable import GraphKeys

_ALWAYS = ("features",)
_OPTIONAL = ("labels", "mode", "params", "config")


class _StartIterator(SessionRunHook):
    """Runs the initializer of a dataset's iterator in each new session."""

    def __init__(self, initializer: Any) -> None:
        self._initializer = initializer

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._initializer)


class Estimator:
    """A model that is trained, evaluated and asked. An input function gives features, or features and labels,
    as tensors or as a `Dataset` of them. Each call builds a graph anew and begins with the newest checkpoint.

    Args:
        model_fn: A function ``model_fn(features, labels, mode, params, config)`` that takes ``features`` and
            those of the others that it names, and returns an `EstimatorSpec`.
        model_dir: The directory of checkpoints and summaries; by default a new temporary one.
        config: A `RunConfig`.
        params: A dict for ``model_fn``.
        warm_start_from: A checkpoint, a directory of them, or `WarmStartSettings`: values with which
            variables begin if ``model_dir`` has no checkpoint yet.

    Raises:
        InvalidArgumentError: The function has other arguments.

    Example:
        >>> def model_fn(features, labels, mode):
        ...     predictions = tf.layers.dense(features['x'], 1)
        ...     loss = tf.losses.mean_squared_error(labels, predictions)
        ...     train = tf.train.AdamOptimizer().minimize(loss, tf.train.get_global_step())
        ...     return tf.estimator.EstimatorSpec(mode, predictions, loss, train)
        >>> data = {'x': np.ones([8, 2], np.float32)}, np.ones([8, 1], np.float32)
        >>> input_fn = tf.estimator.inputs.numpy_input_fn(*data, batch_size=4, num_epochs=None, shuffle=False)
        >>> estimator = tf.estimator.Estimator(model_fn, 'model').train(input_fn, steps=3)
        >>> estimator.get_variable_value('global_step')
        array(3)
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Any = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        known = _asked_for(model_fn)
        if strange := [name for name in known if name not in (*_ALWAYS, *_OPTIONAL)]:
            raise misuse(
                f"Estimator: expected a model_fn of {', '.join((*_ALWAYS, *_OPTIONAL))}; it has {strange}",
                InvalidArgumentError,
            )
        self._model_fn, self._arguments = model_fn, [name for name in known if name in _OPTIONAL]
        config = config or RunConfig()
        directory = model_dir or config.model_dir or tempfile.mkdtemp()
        self._config = config.replace(model_dir=os.fspath(directory))
        self._params = copy.deepcopy(dict(params or {}))
        self._warm_start = (
            warm_start_from
            if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings)
            else WarmStartSettings(warm_start_from)
        )

    @property
    def model_dir(self) -> str:
        return str(self._config.model_dir)

    @property
    def config(self) -> RunConfig:
        return self._config

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the parameters."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., Any]:
        return self._model_fn

    def eval_dir(self, name: str | None = None) -> str:
        """The directory of the summaries of evaluations of this name."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint, or None."""
        return latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """The names in the newest checkpoint. Raises `NotFoundError` if there is none."""
        return sorted(self._reader().get_variable_to_shape_map())

    def get_variable_value(self, name: str) -> np.ndarray[Any, Any]:
        """The value of the variable ``name`` in the newest checkpoint. Raises `NotFoundError`."""
        return self._reader().get_tensor(name)

    def _reader(self) -> Any:
        return open_checkpoint(self.needed_checkpoint())

    def needed_checkpoint(self, path: Any = None) -> str:
        """``path``, or the newest checkpoint. Raises `NotFoundError` if there is none."""
        found = os.fspath(path) if path else self.latest_checkpoint()
        if found is None:
            raise NotFoundError(f"Estimator: expected a checkpoint in {self.model_dir}; there is none")
        return found

    # --- building

    def _input(self, input_fn: Callable[..., Any], mode: str) -> tuple[Any, Any, list[SessionRunHook]]:
        """Features, labels or None, and the hook that starts their iterator."""
        offered = {"params": self._params_of(mode), "config": self._config, "mode": mode}
        taken = inspect.signature(input_fn).parameters
        given = input_fn(**{name: value for name, value in offered.items() if name in taken})
        hooks: list[SessionRunHook] = []
        if isinstance(given, Dataset):
            iterator = given.make_initializable_iterator()
            hooks.append(_StartIterator(iterator.initializer))
            given = iterator.get_next()
        if isinstance(given, (tuple, list)):
            if len(given) != 2:
                raise misuse(
                    f"input_fn: expected features and labels; got {len(given)} parts", InvalidArgumentError
                )
            return given[0], given[1], hooks
        return given, None, hooks

    def call_model_fn(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        """The model in the default graph. Raises as the function, and `DTypeError` if it returns none."""
        params = self._params_of(mode)
        offered = {"labels": labels, "mode": mode, "params": params, "config": self._config}
        if labels is not None and "labels" not in self._arguments:
            raise misuse(
                "Estimator: model_fn has no argument labels, and input_fn gives some", InvalidArgumentError
            )
        return self._checked(self._model_fn(features, **{name: offered[name] for name in self._arguments}))

    def _params_of(self, mode: str) -> dict[str, Any]:
        """The parameters that the functions get in ``mode``."""
        return self.params

    def _checked(self, spec: Any) -> EstimatorSpec:
        """The model that the function returned. Raises `DTypeError` if it is no model."""
        if not isinstance(spec, EstimatorSpec):
            raise misuse(f"model_fn: expected an EstimatorSpec; got {spec!r:.80}", DTypeError)
        return spec

    def _built(self, input_fn: Callable[..., Any], mode: str) -> tuple[EstimatorSpec, list[SessionRunHook]]:
        """The model of ``input_fn`` in the default graph."""
        if self._config.tf_random_seed is not None:
            set_random_seed(self._config.tf_random_seed)
        get_or_create_global_step()
        features, labels, hooks = self._input(input_fn, mode)
        return self.call_model_fn(features, None if mode == ModeKeys.PREDICT else labels, mode), hooks

    def _scaffold(self, spec: EstimatorSpec) -> Scaffold:
        if spec.scaffold is not None:
            return spec.scaffold
        config = self._config
        hours = config.keep_checkpoint_every_n_hours
        return Scaffold(
            saver=Saver(max_to_keep=config.keep_checkpoint_max, keep_checkpoint_every_n_hours=hours)
        )

    # --- running

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[SessionRunHook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[CheckpointSaverListener] | None = None,
    ) -> Estimator:
        """Train for ``steps`` more steps, or until the global step is ``max_steps``, or the input ends;
        returns the estimator. Checkpoints are saved as the configuration says, and at the end;
        ``saving_listeners`` are `CheckpointSaverListener` of them. ``hooks`` come before those of the
        `EstimatorSpec`.

        Raises `InvalidArgumentError` if both are given, and for less than one step; errors of the step
        otherwise.
        """
        if steps is not None and max_steps is not None:
            raise misuse("train: expected steps or max_steps; got both", InvalidArgumentError)
        _check_steps("train: steps", steps)
        _check_steps("train: max_steps", max_steps)
        if max_steps is not None and self._trained_steps() >= max_steps:
            return self
        config = self._config
        with Graph().as_default():
            spec, own = self._built(input_fn, ModeKeys.TRAIN)
            if self._warm_start is not None and self.latest_checkpoint() is None:
                warm_start(*self._warm_start)
            watching: list[SessionRunHook] = []
            if steps is not None or max_steps is not None:
                watching += [StopAtStepHook(num_steps=steps, last_step=max_steps)]
            watching += [NanTensorHook(spec.loss)]
            if config.log_step_count_steps:
                shown = {"loss": spec.loss, "step": get_or_create_global_step()}
                watching += [LoggingTensorHook(shown, every_n_iter=config.log_step_count_steps)]
            scaffold = self._scaffold(spec)
            if config.save_checkpoints_secs or config.save_checkpoints_steps:
                every = config.save_checkpoints_secs, config.save_checkpoints_steps
                own += [
                    CheckpointSaverHook(self.model_dir, *every, scaffold=scaffold, listeners=saving_listeners)
                ]
            with MonitoredTrainingSession(
                checkpoint_dir=self.model_dir,
                scaffold=scaffold,
                hooks=[*own, *(hooks or ()), *watching, *spec.training_hooks],
                chief_only_hooks=list(spec.training_chief_hooks),
                save_checkpoint_secs=None,
                save_summaries_steps=config.save_summary_steps,
                config=config.session_config,
                log_step_count_steps=config.log_step_count_steps,
            ) as session:
                loss = None
                while not session.should_stop():
                    _, loss = session.run([spec.train_op, spec.loss])
            info("Loss for final step: %s.", loss)
        return self

    def _trained_steps(self) -> int:
        path = self.latest_checkpoint()
        return int(self.get_variable_value("global_step")) if path else 0

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: Any = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """The model's metrics over ``steps`` batches (None: all), the mean ``loss``, and the ``global_step``,
        of the newest checkpoint, or of ``checkpoint_path``. Without any checkpoint the model is initialized.

        Raises `InvalidArgumentError` for less than one step, and for input without a batch.
        """
        _check_steps("evaluate: steps", steps)
        path = os.fspath(checkpoint_path) if checkpoint_path else self.latest_checkpoint()
        with Graph().as_default():
            spec, own = self._built(input_fn, ModeKeys.EVAL)
            found = dict(spec.eval_metric_ops)
            found.setdefault("loss", metrics.mean(spec.loss))
            values = {key: value for key, (value, _) in found.items()}
            updates = [update for _, update in found.values()]
            step = get_or_create_global_step()
            final = FinalOpsHook({**values, "global_step": step})
            count = 0
            with self._session(spec, path, [*own, *(hooks or ()), *spec.evaluation_hooks, final]) as session:
                while (steps is None or count < steps) and not session.should_stop():
                    session.run(updates)  # the end of the input ends the session
                    count += 1
        if count == 0:
            raise InvalidArgumentError("evaluate: expected at least one batch; input_fn gives none")
        results = dict(sorted(final.final_ops_values.items()))
        info("Evaluation %s: %s", name or "", results)
        write_eval_metrics(self.eval_dir(name), results)
        return results

    def _session(self, spec: EstimatorSpec, path: str | None, hooks: Sequence[SessionRunHook]) -> Any:
        creator = ChiefSessionCreator(
            self._scaffold(spec), config=self._config.session_config, checkpoint_filename_with_path=path
        )
        return MonitoredSession(creator, list(hooks))

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Any = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: Any = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yield the predictions for one example after the other, or, without ``yield_single_examples``, for
        batches; of a dict of predictions those in ``predict_keys`` (None: all).

        Raises `NotFoundError` without a checkpoint, and `InvalidArgumentError` for keys that there are not
        and for predictions that are not one for each example.
        """
        path = self.needed_checkpoint(checkpoint_path)
        with Graph().as_default():
            spec, own = self._built(input_fn, ModeKeys.PREDICT)
            asked = _chosen(spec.predictions, predict_keys)
            with self._session(spec, path, [*own, *(hooks or ()), *spec.prediction_hooks]) as session:
                while not session.should_stop():
                    batch = session.run(asked)  # the end of the input ends the session
                    if not yield_single_examples:
                        yield batch
                        continue
                    _check_examples(batch)
                    if isinstance(batch, dict):
                        yield from (
                            dict(zip(batch, each, strict=True)) for each in zip(*batch.values(), strict=True)
                        )
                    else:
                        yield from batch

    # --- for serving

    def export_saved_model(
        self,
        export_dir_base: Any,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, Any] | None = None,
        as_text: bool = False,
        checkpoint_path: Any = None,
    ) -> bytes:
        """Write the model with the values of the newest checkpoint, or of ``checkpoint_path``, as a
        SavedModel; returns its directory, ``export_dir_base`` and the time in seconds, as bytes.

        The signatures are ``export_outputs`` of the `EstimatorSpec`, by default the predictions as
        ``serving_default``. ``assets_extra`` has files by their names in the folder ``assets.extra``. Raises
        `NotFoundError` without a checkpoint, and as `SavedModelBuilder`.
        """
        path = self.needed_checkpoint(checkpoint_path)
        with Graph().as_default():
            get_or_create_global_step()
            receiver = serving_input_receiver_fn()
            spec = self.call_model_fn(receiver.features, None, ModeKeys.PREDICT)
            outputs = spec.export_outputs or {
                DEFAULT_SERVING_SIGNATURE_DEF_KEY: PredictOutput(spec.predictions)
            }
            found = signatures(receiver, outputs)
            scaffold = spec.scaffold or Scaffold()
            main_op = scaffold.local_init_op or Scaffold.default_local_init_op()
            saver = scaffold.saver or Saver()
            with Session(config=self._config.session_config) as session, new_export(export_dir_base) as to:
                saver.restore(session, path)
                builder = SavedModelBuilder(to)
                builder.add_meta_graph_and_variables(
                    session, [SERVING], found,
                    assets_collection=session.graph.get_collection(GraphKeys.ASSET_FILEPATHS),
                    main_op=main_op,
                )  # fmt: skip
                builder.save(as_text)
                for name, source in (assets_extra or {}).items():
                    copy_to = os.path.join(to, "assets.extra", name)
                    os.makedirs(os.path.dirname(copy_to), exist_ok=True)
                    shutil.copyfile(source, copy_to)
        return os.fsencode(final_name(to))

    def export_savedmodel(
        self,
        export_dir_base: Any,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, Any] | None = None,
        as_text: bool = False,
        checkpoint_path: Any = None,
        strip_default_attrs: bool = False,
    ) -> bytes:
        """`export_saved_model` under its older name."""
        given = (export_dir_base, serving_input_receiver_fn, assets_extra, as_text, checkpoint_path)
        return self.export_saved_model(*given)


def _asked_for(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments that are left to give: without those that a `functools.partial` has given,
    and without ``*args`` and ``**kwargs``.
    """
    given = function.keywords if isinstance(function, functools.partial) else {}
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in given and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _check_steps(what: str, steps: int | None) -> None:
    if steps is not None and steps < 1:
        raise misuse(f"{what}: expected at least 1; got {steps}", InvalidArgumentError)


def _check_examples(batch: Any) -> None:
    """Raise `InvalidArgumentError` unless the values of a batch are of the same number of examples."""
    named = batch if isinstance(batch, dict) else {"predictions": batch}
    shapes = {name: np.shape(value) for name, value in named.items()}
    if len({dims[:1] for dims in shapes.values()}) > 1 or () in shapes.values():
        raise InvalidArgumentError(
            f"predict: expected a prediction for each example; got the shapes {shapes}. Use "
            "yield_single_examples=False for others"
        )


def _chosen(predictions: Any, keys: Any) -> Any:
    if not keys:
        return predictions
    wanted = [keys] if isinstance(keys, str) else list(keys)
    if not isinstance(predictions, dict) or not set(wanted) <= predictions.keys():
        known = list(predictions) if isinstance(predictions, dict) else "one tensor"
        raise misuse(f"predict: expected keys among {known}; got {wanted}", InvalidArgumentError)
    return {key: value for key, value in predictions.items() if key in wanted}
