"""`ProgressHook`: a progress line of the training loop on the terminal."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from flowrt.base.progress import Progress
from flowrt.train.coordination.coordinator import Coordinator
from flowrt.train.hooks.basic_session_run_hooks import required_global_step
from flowrt.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)


@final
class ProgressHook(SessionRunHook):
    """Shows the global step out of ``last_step`` and, if given, the value of ``loss``, a scalar tensor. If
    standard error is not a terminal it shows and fetches nothing.
    """

    def __init__(self, last_step: int, loss: Any = None) -> None:
        self._last_step, self._loss = last_step, loss
        self._progress: Progress | None = None

    def begin(self) -> None:
        self._step = required_global_step(self)

    def after_create_session(self, session: Any, coord: Coordinator) -> None:
        self.end(session)  # of a session that was lost and is re-created
        self._progress = Progress("training", self._last_step, "steps")

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        if self._progress is None or not self._progress.is_shown:
            return None
        return SessionRunArgs([self._step] if self._loss is None else [self._step, self._loss])

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._progress is None or not run_values.results:
            return
        step, *loss = run_values.results
        self._progress.update(int(step), "".join(f"loss {float(np.asarray(value)):.4g}" for value in loss))

    def end(self, session: Any) -> None:
        if self._progress is not None:
            self._progress.close()
