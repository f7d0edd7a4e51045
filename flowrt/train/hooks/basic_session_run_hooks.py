"""Hooks that watch, feed and stop a training loop. For hooks that write files see `recording_hooks`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from flowrt.base.progress import Progress
from flowrt.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from flowrt.graph.typing import NumericLike
from flowrt.train.coordination.coordinator import Coordinator
from flowrt.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from flowrt.train.optimizers.global_step import get_global_step
from flowrt.variables.variable import Variable

__all__ = [
    "FeedFnHook", "FinalOpsHook", "GlobalStepWaiterHook", "LoggingTensorHook", "NanLossDuringTrainingError",
    "NanTensorHook", "SecondOrStepTimer", "StopAtStepHook",
]  # fmt: skip

LOGGER = logging.getLogger(__name__)

POLL_S = 0.5


@final
class SecondOrStepTimer:
    """Triggers every ``every_secs`` seconds, or every ``every_steps`` steps; the first time immediately.

    Raises `InvalidArgumentError` unless exactly one of them is given.
    """

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if (every_secs is None) == (every_steps is None):
            raise InvalidArgumentError(
                f"timer: expected either seconds or steps; got {every_secs} s and {every_steps} steps"
            )
        self._every_s, self._every_steps = every_secs, every_steps
        self.reset()

    def reset(self) -> None:
        self._last_step: int | None = None
        self._last_time: float | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether to trigger; never twice for one step."""
        if self._last_step is None or self._last_time is None:
            return True
        if step == self._last_step:
            return False
        if self._every_s is not None:
            return time.monotonic() >= self._last_time + self._every_s
        assert self._every_steps is not None
        return step >= self._last_step + self._every_steps

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Record a trigger at ``step``. Returns the (seconds, steps) since the previous one, or Nones."""
        now = time.monotonic()
        elapsed: tuple[float | None, int | None] = (None, None)
        if self._last_time is not None and self._last_step is not None:
            elapsed = now - self._last_time, step - self._last_step
        self._last_time, self._last_step = now, step
        return elapsed

    def last_triggered_step(self) -> int | None:
        return self._last_step


def required_global_step(hook: SessionRunHook) -> Variable:
    """The graph's global step. Fetched with a run that counts, it is the value after that run; where another
    task counts (`SyncReplicasOptimizer`), it may be one less. Raises `FailedPreconditionError` where there is
    none.
    """
    step = get_global_step()
    if step is None:
        raise FailedPreconditionError(
            f"{type(hook).__name__}: expected a global step in the graph; got none. Call "
            "train.get_or_create_global_step() and pass it to minimize()"
        )
    return step


@final
class LoggingTensorHook(SessionRunHook):
    """Logs tensors, at level INFO: every ``every_n_iter`` runs or ``every_n_secs`` seconds, or only
    ``at_end``.

    ``tensors``: a dict of tags to tensors or names, or a list of them. ``formatter`` converts the dict of
    tags to values to text. Raises `InvalidArgumentError` unless an interval or ``at_end`` is given.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any] | Sequence[Any],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        only_at_end = at_end and every_n_iter is None and every_n_secs is None
        if every_n_iter is not None and every_n_iter <= 0:
            raise InvalidArgumentError(f"LoggingTensorHook: expected every_n_iter > 0; got {every_n_iter}")
        if not isinstance(tensors, Mapping):
            tensors = {item if isinstance(item, str) else item.name: item for item in tensors}
        self._tensors = dict(tensors)
        self._timer = None if only_at_end else SecondOrStepTimer(every_n_secs, every_n_iter)
        self._at_end, self._formatter = at_end, formatter
        self._runs = 0
        self._is_due = False

    def begin(self) -> None:
        if self._timer is not None:
            self._timer.reset()
        self._runs = 0

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        self._is_due = self._timer is not None and self._timer.should_trigger_for_step(self._runs)
        return SessionRunArgs(self._tensors) if self._is_due else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._is_due:
            self._log(run_values.results)
        self._runs += 1

    def end(self, session: Any) -> None:
        if self._at_end:
            self._log(session.run(self._tensors))

    def _log(self, values: dict[str, Any]) -> None:
        elapsed_s = None if self._timer is None else self._timer.update_last_triggered_step(self._runs)[0]
        with np.printoptions(suppress=True):
            if self._formatter is not None:
                text = self._formatter(values)
            else:
                text = ", ".join(f"{tag} = {value}" for tag, value in values.items())
                text += "" if elapsed_s is None else f" ({elapsed_s:.3f} sec)"
        LOGGER.info("%s", text)


@final
class StopAtStepHook(SessionRunHook):
    """Requests a stop when the global step is ``last_step``, or ``num_steps`` more than at the beginning.

    A session that begins at its last step (a checkpoint of finished training) is stopped immediately. Raises
    `InvalidArgumentError` unless exactly one of them is given.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise InvalidArgumentError(
                f"StopAtStepHook: expected either num_steps or last_step; got {num_steps} and {last_step}"
            )
        self._num_steps, self._last_step = num_steps, last_step

    def begin(self) -> None:
        self._step = required_global_step(self)

    def after_create_session(self, session: Any, coord: Coordinator) -> None:
        step = int(session.run(self._step))
        if self._last_step is None:
            assert self._num_steps is not None
            self._last_step = step + self._num_steps
        if step >= self._last_step:
            coord.request_stop()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        assert self._last_step is not None
        if run_values.results + 1 < self._last_step:
            return
        if run_context.session.run(self._step) >= self._last_step:  # the run may not have counted
            run_context.request_stop()


class NanLossDuringTrainingError(RuntimeError):
    """The loss is not a number."""

    def __str__(self) -> str:
        return "NaN loss during training."


@final
class NanTensorHook(SessionRunHook):
    """Ends the loop when ``loss_tensor`` is NaN: with `NanLossDuringTrainingError`, or with
    ``fail_on_nan_loss=False`` by a request to stop.
    """

    def __init__(self, loss_tensor: NumericLike, fail_on_nan_loss: bool = True) -> None:
        self._loss, self._fails = loss_tensor, fail_on_nan_loss

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._loss)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if not np.isnan(run_values.results).any():
            return
        LOGGER.error("the loss is NaN")
        if self._fails:
            raise NanLossDuringTrainingError
        run_context.request_stop()


@final
class GlobalStepWaiterHook(SessionRunHook):
    """Holds the first run back until the global step is ``wait_until_step``: workers that start one after the
    other interfere less. Raises `DeadlineExceededError` after ``max_wait_secs``.
    """

    def __init__(self, wait_until_step: int, *, max_wait_secs: float = 7200.0) -> None:
        self._wait_until, self._max_wait_s = wait_until_step, max_wait_secs
        self._has_begun = wait_until_step <= 0

    def begin(self) -> None:
        self._step = required_global_step(self)

    def before_run(self, run_context: SessionRunContext) -> None:
        if self._has_begun:
            return
        LOGGER.info("waiting for the global step to be %d", self._wait_until)
        end = time.monotonic() + self._max_wait_s
        while (step := int(run_context.session.run(self._step))) < self._wait_until:
            if time.monotonic() > end:
                raise DeadlineExceededError(
                    f"GlobalStepWaiterHook: expected global step {self._wait_until} within "
                    f"{self._max_wait_s:g} s; got {step}. Are the other workers training?"
                )
            time.sleep(POLL_S)
        self._has_begun = True


@final
class FinalOpsHook(SessionRunHook):
    """Runs ``final_ops`` when the loop has ended; `final_ops_values` are their values."""

    def __init__(self, final_ops: Any, final_ops_feed_dict: Mapping[Any, Any] | None = None) -> None:
        self._ops, self._feed_dict = final_ops, final_ops_feed_dict
        self.final_ops_values: Any = None

    def end(self, session: Any) -> None:
        self.final_ops_values = session.run(self._ops, self._feed_dict)


@final
class FeedFnHook(SessionRunHook):
    """Feeds each run with the result of ``feed_fn()``: a dict as for `Session.run`."""

    def __init__(self, feed_fn: Callable[[], Mapping[Any, Any]]) -> None:
        self._feed_fn = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(None, self._feed_fn())


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
