"""Hooks that stop training by what evaluations have found, and that evaluate while it goes on."""

from __future__ import annotations

import operator
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

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


class _Evaluations:
    """The values of a metric in a directory of summaries, as pairs of step and value."""

    def __init__(self, estimator: Estimator, metric_name: str, eval_dir: str | None, min_steps: int) -> None:
        self._folder, self._name = eval_dir or estimator.eval_dir(), metric_name
        self._first_step = min_steps

    def _pairs(self) -> list[tuple[int, float]]:
        found = read_eval_metrics(self._folder)
        return [(step, each[self._name]) for step, each in found.items() if step >= self._first_step]

    def have(self, is_reached: Callable[[float, float], bool], threshold: float) -> bool:
        """Whether one is on the wrong side of the threshold."""
        return any(is_reached(value, threshold) for _, value in self._pairs())

    def stand_still(self, is_better: Callable[[float, float], bool], steps: float) -> bool:
        """Whether none was better than those before for so many steps."""
        best: tuple[int, float] | None = None
        for step, value in self._pairs():
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
    as `make_early_stopping_hook`.
    """
    found = _Evaluations(estimator, metric_name, eval_dir, min_steps)

    def should_stop() -> bool:
        return found.have(operator.gt, threshold)

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


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
    as `make_early_stopping_hook`.
    """
    found = _Evaluations(estimator, metric_name, eval_dir, min_steps)

    def should_stop() -> bool:
        return found.have(operator.lt, threshold)

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


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
    as `make_early_stopping_hook`.
    """
    found = _Evaluations(estimator, metric_name, eval_dir, min_steps)

    def should_stop() -> bool:
        return found.stand_still(operator.gt, max_steps_without_increase)

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


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
    as `make_early_stopping_hook`.
    """
    found = _Evaluations(estimator, metric_name, eval_dir, min_steps)

    def should_stop() -> bool:
        return found.stand_still(operator.lt, max_steps_without_decrease)

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


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
