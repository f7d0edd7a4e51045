"""``contrib.learn.monitors``: what `Estimator.fit` does between steps, besides hooks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flowrt.logging import info
from flowrt.tf1.missing_names import missing_from
from flowrt.train.checkpoints.checkpoint_state import latest_checkpoint
from flowrt.train.hooks.basic_session_run_hooks import required_global_step
from flowrt.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)

__all__ = ["ValidationMonitor"]


class ValidationMonitor(SessionRunHook):
    """Evaluates each new checkpoint, for which it looks every ``every_n_steps`` steps, at most once in
    ``check_interval_secs``, and at the end. The input, ``eval_steps`` and the others are those of
    `Estimator.evaluate`.

    Training stops if ``early_stopping_metric`` has not been better for ``early_stopping_rounds`` steps (None:
    it never stops); `best_step`, `best_value` and `best_metrics` are those of the best evaluation. Set
    `RunConfig.save_checkpoints_steps` so that there are checkpoints.
    """

    def __init__(
        self,
        x: Any = None,
        y: Any = None,
        input_fn: Any = None,
        batch_size: int | None = None,
        eval_steps: int | None = None,
        every_n_steps: int = 100,
        metrics: Mapping[Any, Any] | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        early_stopping_rounds: int | None = None,
        early_stopping_metric: str = "loss",
        early_stopping_metric_minimize: bool = True,
        name: str | None = None,
        check_interval_secs: float = 5,
    ) -> None:
        arrays = {"x": x, "y": y, "batch_size": batch_size, "metrics": metrics}
        self._evaluation = {
            "input_fn": input_fn, "steps": eval_steps, "hooks": hooks, "name": name,
            **{key: value for key, value in arrays.items() if value is not None},
        }  # fmt: skip
        self._every, self._rounds, self._check_interval = (
            every_n_steps,
            early_stopping_rounds,
            check_interval_secs,
        )
        self._metric, self._sign = early_stopping_metric, 1 if early_stopping_metric_minimize else -1
        self._estimator: Any = None
        self._evaluated: str | None = None
        self._checked_at, self._checked_step = float("-inf"), -every_n_steps
        self.early_stopped = False
        self.best_step: int | None = None
        self.best_value: Any = None
        self.best_metrics: Mapping[str, Any] | None = None

    def set_estimator(self, estimator: Any) -> None:
        """Called by `Estimator.fit` with itself."""
        self._estimator = estimator

    def begin(self) -> None:
        self._step_tensor = required_global_step(self)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step_tensor)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self._step = int(run_values.results)
        if self._step < self._checked_step + self._every:
            return
        self._checked_step = self._step
        if time.monotonic() >= self._checked_at + self._check_interval and self._has_stopped_improving():
            info("No better %s for %s steps: training stops.", self._metric, self._rounds)
            self.early_stopped = True
            run_context.request_stop()

    def end(self, session: Any) -> None:
        self._has_stopped_improving()

    def _has_stopped_improving(self) -> bool:
        self._checked_at = time.monotonic()
        path = latest_checkpoint(self._estimator.model_dir)
        if path is None or path == self._evaluated:
            return False
        self._evaluated = path
        found = self._estimator.evaluate(**self._evaluation, checkpoint_path=path)
        value = found[self._metric]
        if self.best_value is None or self._sign * value < self._sign * self.best_value:
            self.best_step, self.best_value, self.best_metrics = self._step, value, found
        return self._rounds is not None and self._step - (self.best_step or 0) >= self._rounds


__getattr__ = missing_from("contrib.learn.monitors")
