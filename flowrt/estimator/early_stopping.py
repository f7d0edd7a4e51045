"""Hooks that stop training by what evaluations have found, and that evaluate while it goes on."""

from __future__ import annotations

import operator
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.estimator.estimator import Estimator
from flowrt.estimator.eval_summaries import read_eval_metrics
from flowrt.logging import info
from flowrt.train.checkpoints.saver import Saver
from flowrt.train.hooks.basic_session_run_hooks import SecondOrStepTimer, StopAtStepHook, required_global_step
from flowrt.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)


class _AtIntervals(SessionRunHook):
    """Does `act` at intervals of steps or seconds."""

    def __init__(self, run_every_secs: float | None, run_every_steps: int | None) -> None:
        self._timer = SecondOrStepTimer(run_every_secs, run_every_steps)

    def begin(self) -> None:
        self._step = required_global_step(self)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        step = int(run_values.results)
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            self.act(run_context)

    def act(self, run_context: SessionRunContext) -> None:
        raise NotImplementedError


class _StopIf(_AtIntervals):
    """Stops training if ``should_stop_fn()`` says so."""

    def __init__(self, should_stop_fn: Callable[[], bool], secs: float | None, steps: int | None) -> None:
        super().__init__(secs, steps)
        self._should_stop = should_stop_fn

    def act(self, run_context: SessionRunContext) -> None:
        if self._should_stop():
            info("Training stops early.")
            run_context.request_stop()


def make_early_stopping_hook(
    estimator: Estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """A hook that calls ``should_stop_fn()`` every ``run_every_secs`` seconds or ``run_every_steps`` steps
    and stops training if it says True. Raises `InvalidArgumentError` unless one of the two is given.
    """
    return _StopIf(should_stop_fn, run_every_secs, run_every_steps)


_Evaluations = Sequence[tuple[int, float]]
"""Steps, and the values of a metric at them."""


def _stop_by_metric(
    estimator: Estimator,
    metric_name: str,
    should_stop: Callable[[_Evaluations], bool],
    eval_dir: str | None,
    min_steps: int,
    run_every_secs: float | None,
    run_every_steps: int | None,
) -> SessionRunHook:
    """A hook that asks ``should_stop`` about the evaluations of a metric, from step ``min_steps`` on."""
    folder = eval_dir or estimator.eval_dir()

    def should_stop_fn() -> bool:
        found = {step: each for step, each in read_eval_metrics(folder).items() if step >= min_steps}
        for step, each in found.items():
            if metric_name not in each:
                raise InvalidArgumentError(
                    f"metric_name: expected one of those in {str(folder)!r} at step {step},"
                    f" {', '.join(sorted(each))}; got {metric_name!r}"
                )
        return should_stop([(step, each[metric_name]) for step, each in found.items()])

    return make_early_stopping_hook(estimator, should_stop_fn, run_every_secs, run_every_steps)


def _crosses(is_beyond: Callable[[float, float], bool], threshold: float, values: _Evaluations) -> bool:
    """Whether a value is on the wrong side of the threshold."""
    return any(is_beyond(value, threshold) for _, value in values)


def _stands_still(is_better: Callable[[float, float], bool], steps: float, values: _Evaluations) -> bool:
    """Whether no value was better than those before for so many steps."""
    best: tuple[int, float] | None = None
    for step, value in values:
        if best is None or is_better(value, best[1]):
            best = step, value
        if step - best[0] >= steps:
            return True
    return False


def stop_if_higher_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """A hook that stops training if a metric of an evaluation is above ``threshold``.

    It looks at the evaluations from step ``min_steps`` on in ``eval_dir``, by default the estimator's. Raises
    as `make_early_stopping_hook`; training raises `InvalidArgumentError` for a metric that evaluations lack.
    """
    should_stop = partial(_crosses, operator.gt, threshold)
    return _stop_by_metric(
        estimator, metric_name, should_stop, eval_dir, min_steps, run_every_secs, run_every_steps
    )


def stop_if_lower_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """A hook that stops training if a metric of an evaluation is below ``threshold``.

    It looks at the evaluations from step ``min_steps`` on in ``eval_dir``, by default the estimator's. Raises
    as `make_early_stopping_hook`; training raises `InvalidArgumentError` for a metric that evaluations lack.
    """
    should_stop = partial(_crosses, operator.lt, threshold)
    return _stop_by_metric(
        estimator, metric_name, should_stop, eval_dir, min_steps, run_every_secs, run_every_steps
    )


def stop_if_no_increase_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """A hook that stops training if a metric was not above its highest value for so many steps.

    It looks at the evaluations from step ``min_steps`` on in ``eval_dir``, by default the estimator's. Raises
    as `make_early_stopping_hook`; training raises `InvalidArgumentError` for a metric that evaluations lack.
    """
    should_stop = partial(_stands_still, operator.gt, max_steps_without_increase)
    return _stop_by_metric(
        estimator, metric_name, should_stop, eval_dir, min_steps, run_every_secs, run_every_steps
    )


def stop_if_no_decrease_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """A hook that stops training if a metric was not below its lowest value for so many steps.

    It looks at the evaluations from step ``min_steps`` on in ``eval_dir``, by default the estimator's. Raises
    as `make_early_stopping_hook`; training raises `InvalidArgumentError` for a metric that evaluations lack.
    """
    should_stop = partial(_stands_still, operator.lt, max_steps_without_decrease)
    return _stop_by_metric(
        estimator, metric_name, should_stop, eval_dir, min_steps, run_every_secs, run_every_steps
    )


def make_stop_at_checkpoint_step_hook(
    estimator: Estimator, last_step: int, wait_after_file_check_secs: float = 30
) -> SessionRunHook:
    """A hook that stops training at ``last_step``."""
    return StopAtStepHook(last_step=last_step)


class InMemoryEvaluatorHook(_AtIntervals):
    """Evaluates the values that are being trained, every ``every_n_iter`` steps, at the beginning and at the
    end; the other arguments are those of `Estimator.evaluate`. The model's directory gets no checkpoint.
    """

    def __init__(
        self,
        estimator: Estimator,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        super().__init__(None, every_n_iter)
        self._estimator, self._given = estimator, (input_fn, steps, hooks)
        self._name = name

    def begin(self) -> None:
        super().begin()
        self._saver = Saver()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._timer.update_last_triggered_step(int(session.run(self._step)))
        self._evaluate(session)

    def act(self, run_context: SessionRunContext) -> None:
        self._evaluate(run_context.session)

    def end(self, session: Any) -> None:
        if int(session.run(self._step)) != self._timer.last_triggered_step():
            self._evaluate(session)

    def _evaluate(self, session: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = self._saver.save(session, os.path.join(folder, "model.ckpt"), write_meta_graph=False)
            self._estimator.evaluate(*self._given, path, self._name)
