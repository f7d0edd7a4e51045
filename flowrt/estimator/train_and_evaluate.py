"""`train_and_evaluate`: training with an evaluation, and exports, after checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowrt.errors import DTypeError
from flowrt.estimator.estimator import Estimator
from flowrt.estimator.exporters import Exporter
from flowrt.graph.source import misuse
from flowrt.train.hooks.recording_hooks import CheckpointSaverListener
from flowrt.train.hooks.session_run_hook import SessionRunHook


class TrainSpec(NamedTuple):
    """Training of `train_and_evaluate`."""

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[SessionRunHook] | None = None
    saving_listeners: Sequence[CheckpointSaverListener] | None = None


class EvalSpec(NamedTuple):
    """Evaluation of `train_and_evaluate`: of each new checkpoint, at most once in ``throttle_secs``, and of
    the last one. ``start_delay_secs`` is accepted.
    """

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[SessionRunHook] | None = None
    exporters: Any = None
    start_delay_secs: float = 120
    throttle_secs: float = 600


class _EvaluationListener(CheckpointSaverListener):
    """Evaluates checkpoints, except that of a session's beginning."""

    def __init__(self, evaluate: Callable[[], Any], throttle_secs: float) -> None:
        self._evaluate, self._throttle_secs = evaluate, throttle_secs
        self._evaluated_at = time.monotonic()
        self._first = True

    def after_save(self, session: Any, global_step_value: int) -> None:
        if self._first:
            self._first = False
        elif time.monotonic() >= self._evaluated_at + self._throttle_secs:
            self._evaluate()
            self._evaluated_at = time.monotonic()


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any], list[Any]]:
    """Train until ``max_steps``, then evaluate and export; returns the metrics, and the exporters' results.
    Checkpoints are evaluated and exported in between, too, as ``eval_spec`` says. An exporter writes to the
    folder of its name in ``export`` in the model's directory. Raises `DTypeError` for anything but exporters.
    """
    given = eval_spec.exporters or ()
    exporters = [given] if isinstance(given, Exporter) else list(given)
    if wrong := [each for each in exporters if not isinstance(each, Exporter)]:
        raise misuse(f"train_and_evaluate: expected exporters; got {wrong[0]!r:.80}", DTypeError)

    def evaluate(is_final: bool = False) -> tuple[dict[str, Any], list[Any]]:
        found = estimator.evaluate(eval_spec.input_fn, eval_spec.steps, eval_spec.hooks, name=eval_spec.name)
        folder = os.path.join(estimator.model_dir, "export")
        path = estimator.latest_checkpoint()
        return found, [
            each.export(estimator, os.path.join(folder, each.name), path, found, is_final)
            for each in exporters
        ]

    listener = _EvaluationListener(evaluate, eval_spec.throttle_secs)
    listeners = [*(train_spec.saving_listeners or ()), listener]
    steps, hooks = train_spec.max_steps, train_spec.hooks
    estimator.train(train_spec.input_fn, hooks, max_steps=steps, saving_listeners=listeners)
    return evaluate(is_final=True)
