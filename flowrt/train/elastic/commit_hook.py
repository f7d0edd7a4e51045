"""`CommitHook`: commits the state after steps of a monitored session, and ends an epoch that is over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, final

from flowrt.errors import FailedPreconditionError
from flowrt.train.coordination.coordinator import Coordinator
from flowrt.train.elastic.commits import Commit, check_committable, commit_of
from flowrt.train.hooks.basic_session_run_hooks import required_global_step
from flowrt.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)

_logger = logging.getLogger(__name__)


class EpochOverError(Exception):
    """Leaves the training loop: the group changes. No error of the script."""


@final
class CommitHook(SessionRunHook):
    """Commits when ``every`` steps have passed since the last commit: calls ``committed(commit)``. 0: never,
    a checkpoint counts instead.

    ``begin_step`` is the step at which the session must begin. ``over(is_committed)`` is the reason why the
    epoch is over after a run, if it is: then `EpochOverError` is raised. With ``needs_step_each_run``, the
    data goes on at the batch of that number: the first run that counts no step, or several, is logged as a
    warning, also if it reads no batch (an evaluation), which does no harm.
    """

    def __init__(
        self,
        every: int,
        begin_step: int,
        committed: Callable[[Commit], object],
        over: Callable[[bool], str | None],
        needs_step_each_run: bool,
    ) -> None:
        self._every, self._begin_step = every, begin_step
        self._committed, self._over = committed, over
        self._needs_step_each_run, self._runs = needs_step_each_run, 0

    def begin(self) -> None:
        if self._every:
            check_committable()
        self._step = required_global_step(self)

    def after_create_session(self, session: Any, coord: Coordinator) -> None:
        self._last = int(session.run(self._step))
        if self._last != self._begin_step:
            raise FailedPreconditionError(
                f"elastic job: expected a session that begins at step {self._begin_step}, as in all workers; "
                f"got step {self._last}. Is checkpoint_dir the same directory in all of them?"
            )

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self._runs += 1
        is_committed = self._commit_if_due(run_context.session, int(run_values.results) + 1)
        why = self._over(is_committed)
        if why is not None:
            raise EpochOverError(why)

    def _commit_if_due(self, session: Any, reached: int) -> bool:
        """Returns whether it was. ``reached`` is the global step if the last run has counted one."""
        due = self._last + max(1, self._every)
        if reached < due or (step := int(session.run(self._step))) < due:
            return False
        if self._every:
            self._committed(commit_of(session, self._step))
        if self._needs_step_each_run and self._runs != step - self._last:
            self._warn(step - self._last)
        self._last, self._runs = step, 0
        return True

    def _warn(self, steps: int) -> None:
        self._needs_step_each_run = False  # once is enough
        _logger.warning(
            "elastic job: expected runs that read one batch and count one step each; %d counted %d. The data "
            "goes on at the batch of the global step: after a change of the group, batches %s. A loss scale "
            "counts no step for gradients that are not finite",
            self._runs,
            steps,
            "come again, unless runs read none" if self._runs > steps else "are left out",
        )
