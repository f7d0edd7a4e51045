"""Experiments: an estimator with what it is trained and evaluated on, and the orders of doing both."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flowrt import estimator as core
from flowrt.contrib.learn.monitors import ValidationMonitor
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.source import misuse


class ExportStrategy(NamedTuple):
    """``export_fn(estimator, export_path)`` writes the model to a new folder in ``export_path`` and returns
    it; ``name`` is that of the path.
    """

    name: str
    export_fn: Callable[..., Any]
    strip_default_attrs: bool | None = None

    def export(
        self, estimator: Any, export_path: Any, checkpoint_path: Any = None, eval_result: Any = None
    ) -> Any:
        """Call the function, with those of the last two arguments that it takes."""
        taken = self.export_fn.__code__.co_varnames[: self.export_fn.__code__.co_argcount]
        offered = {"checkpoint_path": checkpoint_path, "eval_result": eval_result}
        more = {name: value for name, value in offered.items() if name in taken}
        return self.export_fn(estimator, export_path, **more)


def make_export_strategy(
    serving_input_fn: Callable[[], Any],
    default_output_alternative_key: str | None = None,
    assets_extra: Mapping[str, Any] | None = None,
    as_text: bool = False,
    exports_to_keep: int | None = 5,
    strip_default_attrs: bool | None = None,
) -> ExportStrategy:
    """An `ExportStrategy`, "Servo", that writes a SavedModel and keeps the newest ``exports_to_keep`` (None:
    all). ``serving_input_fn`` is that of the estimator's `export_savedmodel`.
    """

    def export_fn(estimator: Any, export_path: Any, checkpoint_path: Any = None) -> Any:
        made = estimator.export_savedmodel(
            export_path, serving_input_fn, assets_extra=assets_extra, as_text=as_text,
            checkpoint_path=checkpoint_path,
        )  # fmt: skip
        core.exporters.keep_newest(export_path, exports_to_keep)
        return made

    return ExportStrategy("Servo", export_fn, strip_default_attrs)


class Experiment:
    """``estimator``, one of ``contrib.learn`` or an `estimator.Estimator`, trained for ``train_steps`` steps
    (None: while there is input) and evaluated for ``eval_steps`` batches.

    ``min_eval_frequency`` is the number of steps between looks for a new checkpoint to evaluate (0: only at
    the end). ``train_steps_per_iteration`` is for `continuous_train_and_eval`. One process does everything:
    the delays and throttles are accepted.
    """

    def __init__(
        self,
        estimator: Any,
        train_input_fn: Callable[..., Any],
        eval_input_fn: Callable[..., Any],
        eval_metrics: Mapping[Any, Any] | None = None,
        train_steps: int | None = None,
        eval_steps: int | None = 100,
        train_monitors: Sequence[Any] | None = None,
        eval_hooks: Sequence[Any] | None = None,
        local_eval_frequency: int | None = None,
        eval_delay_secs: float = 120,
        continuous_eval_throttle_secs: float = 60,
        min_eval_frequency: int | None = None,
        delay_workers_by_global_step: bool = False,
        export_strategies: Any = None,
        train_steps_per_iteration: int | None = None,
        checkpoint_and_export: bool = False,
        saving_listeners: Any = None,
        check_interval_secs: float = 5,
    ) -> None:
        if eval_metrics is not None and isinstance(estimator, core.Estimator):
            raise misuse(
                "Experiment: expected eval_metric_ops in the EstimatorSpec; got eval_metrics",
                InvalidArgumentError,
            )
        given = [export_strategies] if isinstance(export_strategies, ExportStrategy) else export_strategies
        self._exports = list(given or ())
        if wrong := [each for each in self._exports if not isinstance(each, ExportStrategy)]:
            raise misuse(f"Experiment: expected ExportStrategy; got {wrong[0]!r:.80}", DTypeError)
        self.estimator, self.eval_metrics = estimator, eval_metrics
        self.train_steps, self.eval_steps = train_steps, eval_steps
        self._train_input_fn, self._eval_input_fn = train_input_fn, eval_input_fn
        self._monitors, self._eval_hooks = list(train_monitors or ()), list(eval_hooks or ())
        self._local_frequency = local_eval_frequency
        self._frequency = 1 if min_eval_frequency is None else min_eval_frequency
        self._iteration_steps, self._check_interval = train_steps_per_iteration, check_interval_secs

    def extend_train_hooks(self, additional_hooks: Sequence[Any]) -> None:
        """More hooks for training."""
        self._monitors.extend(additional_hooks)

    def train(self, delay_secs: float | None = None) -> Any:
        """Train until the global step is ``train_steps``; returns the estimator."""
        return self._train(self._monitors, self.train_steps)

    def evaluate(self, delay_secs: float | None = None, name: str | None = None) -> dict[str, Any]:
        """The metrics of the newest checkpoint."""
        return self._evaluate(name)

    def train_and_evaluate(self) -> tuple[dict[str, Any], list[Any]]:
        """Train, with evaluations of new checkpoints, then evaluate and export; returns the metrics and the
        exports.
        """
        return self._train_and_evaluate(self._frequency)

    def local_run(self) -> tuple[dict[str, Any], list[Any]]:
        """`train_and_evaluate` with evaluations every ``local_eval_frequency`` steps."""
        return self._train_and_evaluate(self._local_frequency or 0)

    def continuous_train_and_eval(
        self, continuous_eval_predicate_fn: Callable[[Any], bool] | None = None
    ) -> tuple[dict[str, Any] | None, list[Any]]:
        """Train ``train_steps_per_iteration`` steps (1,000, or a tenth of ``train_steps``) and evaluate, over
        and over until ``train_steps``, or until the function says False of the last evaluation.
        """
        size = self._iteration_steps or min(1000, max(1, (self.train_steps or 10_000) // 10))
        found: dict[str, Any] | None = None
        step = -1
        while continuous_eval_predicate_fn is None or continuous_eval_predicate_fn(found):
            reached = 0 if found is None else int(found["global_step"])
            if reached == step or (self.train_steps is not None and reached >= self.train_steps):
                break
            step = reached
            goal = reached + size if self.train_steps is None else min(reached + size, self.train_steps)
            self._train(self._monitors, goal)
            found = self._evaluate()
        return found, self._export(found)

    def test(self) -> tuple[dict[str, Any], list[Any]]:
        """One step of training, one of evaluation, and the exports."""
        self._train(self._monitors, None, steps=1)
        found = self._evaluate("one_pass", steps=1)
        return found, self._export(found)

    def _train_and_evaluate(self, frequency: int) -> tuple[dict[str, Any], list[Any]]:
        monitors = list(self._monitors)
        if frequency:
            monitor = ValidationMonitor(
                input_fn=self._eval_input_fn, eval_steps=self.eval_steps, every_n_steps=frequency,
                metrics=self.eval_metrics, hooks=self._eval_hooks,
                check_interval_secs=self._check_interval,
            )  # fmt: skip
            monitor.set_estimator(self.estimator)
            monitors.append(monitor)
        self._train(monitors, self.train_steps)
        found = self._evaluate()
        return found, self._export(found)

    def _train(self, monitors: Sequence[Any], max_steps: int | None, steps: int | None = None) -> Any:
        if isinstance(self.estimator, core.Estimator):
            return self.estimator.train(self._train_input_fn, monitors, steps, max_steps)
        return self.estimator.fit(
            input_fn=self._train_input_fn, steps=steps, max_steps=max_steps, monitors=monitors
        )

    def _evaluate(self, name: str | None = None, steps: int | None = None) -> dict[str, Any]:
        metrics = {} if self.eval_metrics is None else {"metrics": self.eval_metrics}
        found: dict[str, Any] = self.estimator.evaluate(
            input_fn=self._eval_input_fn, steps=steps or self.eval_steps, hooks=self._eval_hooks, name=name,
            **metrics,
        )  # fmt: skip
        return found

    def _export(self, found: Any) -> list[Any]:
        folder = os.path.join(self.estimator.model_dir, "export")
        return [
            each.export(self.estimator, os.path.join(folder, each.name), eval_result=found)
            for each in self._exports
        ]


def run(
    experiment_fn: Callable[..., Experiment],
    output_dir: Any = None,
    schedule: str | None = None,
    run_config: Any = None,
    hparams: Any = None,
) -> Any:
    """Make an experiment and call its method ``schedule``, by default `train_and_evaluate`; returns what that
    returns. ``experiment_fn`` is called with ``run_config`` and ``hparams``, or with ``output_dir`` only.

    Raises `InvalidArgumentError` unless one of output_dir and run_config is given, and for an unknown
    schedule; `DTypeError` if there is no experiment.
    """
    if (output_dir is None) == (run_config is None):
        raise misuse("learn_runner.run: expected output_dir or run_config", InvalidArgumentError)
    made = experiment_fn(output_dir) if run_config is None else experiment_fn(run_config, hparams)
    if not isinstance(made, Experiment):
        raise misuse(f"learn_runner.run: expected an Experiment; got {made!r:.80}", DTypeError)
    task = getattr(made, schedule or "train_and_evaluate", None)
    if task is None:
        raise misuse(f"learn_runner.run: an Experiment has no schedule {schedule!r}", InvalidArgumentError)
    return task()
