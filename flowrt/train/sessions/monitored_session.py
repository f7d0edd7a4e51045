"""`MonitoredTrainingSession`: initializes or restores variables, runs hooks, recovers from lost tasks.

    MonitoredSession      used by the loop: recovers
        HookedSession     one session, from creation to failure: hooks, coordinator
            Session       created by a SessionCreator: the chief's restores or initializes, the others' waits

Rules of this file:
  1. A session that fails with `AbortedError` or `UnavailableError` (a task was lost or restarted) is closed
     and re-created, and the run is repeated. The chief restores the newest checkpoint, so any updates of the
     failed run are discarded and no step is applied twice. A worker that lost only its own connection to the
     variables repeats a run that may have been applied: one extra step for all.
  2. Two bounds: the first session must be created within ``FLOWRT_CONNECT_TIMEOUT``, else the job never
     started: `UnavailableError`. Later, tasks may be absent for up to ``max_wait_secs``:
     `DeadlineExceededError` if no run has succeeded for that long. Both name the missing tasks.
  3. Any other error is raised in the loop. So is the loss of a worker if each has its own graph: no session
     of this process can restore its group.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, final

from flowrt.distribute.cluster.timeouts import connect_timeout_s, connecting_within
from flowrt.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    UnavailableError,
)
from flowrt.executor.ends.config import ConfigProto, RunOptions
from flowrt.executor.session.session import Session
from flowrt.graph.construction.graph import get_default_graph
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.coordination.coordinator import GRACE_S
from flowrt.train.hooks.agreed_saving import (
    SavePartnerHook,
    needs_all_workers,
    strategy_of_workers,
    summaries_of,
)
from flowrt.train.hooks.recording_hooks import CheckpointSaverHook, StepCounterHook, SummarySaverHook
from flowrt.train.hooks.session_run_hook import SessionRunHook, check_hooks
from flowrt.train.sessions.hooked_session import HookedSession, StepContext
from flowrt.train.sessions.session_manager import (
    MAX_WAIT_S,
    ChiefSessionCreator,
    SessionCreator,
    WorkerSessionCreator,
)

__all__ = ["MonitoredSession", "MonitoredTrainingSession", "SingularMonitoredSession"]

LOGGER = logging.getLogger(__name__)
Result = TypeVar("Result")

RETRY_S = 0.5
"""Delay between two attempts to re-create a session."""

USE_DEFAULT = object()


class _MonitoredSession:
    """``session_creator`` makes the sessions, by default a `ChiefSessionCreator`. ``hooks`` are called
    around each run, in this order. Threads that hooks have started get ``stop_grace_period_secs`` to end.
    """

    _may_recover: bool

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        stop_grace_period_secs: float = GRACE_S,
        *,
        max_wait_secs: float = MAX_WAIT_S,
    ) -> None:
        self._hooks, self._grace_s = check_hooks(hooks), stop_grace_period_secs
        self._max_wait_s = max_wait_secs
        self.graph = get_default_graph()
        self._recovers = self._may_recover and strategy_of_workers() is None
        self._was_finalized = self.graph.finalized
        self._current: HookedSession | None = None
        self._is_closed = self._was_lost = False
        self._made_at = time.monotonic()
        self._first_failure: float | None = None
        """Since the last run that succeeded."""
        self._has_begun = False
        """Whether there has been a session."""
        for hook in self._hooks:
            hook.begin()
        self._creator = session_creator if session_creator is not None else ChiefSessionCreator()
        try:
            self._recovering(lambda session: None)
        except BaseException as error:
            self._close(error)
            raise

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: Any = None,
    ) -> Any:
        """`Session.run`, with the hooks around it. Also raises `FailedPreconditionError` after a stop."""
        return self._recovering(lambda session: session.run(fetches, feed_dict, options, run_metadata))

    def run_step_fn(self, step_fn: Callable[[StepContext], Any]) -> Any:
        """Call ``step_fn(step_context)``, which may run operations with and without hooks; return its result.
        It is called again if the session fails meanwhile. Raises `InvalidArgumentError` for a function with
        other parameters.
        """
        expected = ["step_context"]
        names = [name for name in inspect.signature(step_fn).parameters if name != "self"]
        if names != expected:
            raise InvalidArgumentError(f"step_fn: expected a function of step_context; got one of {names}")
        return self._recovering(lambda session: step_fn(StepContext(session.session, session.run)))

    def should_stop(self) -> bool:
        """Whether the loop should end: a hook or a thread has requested it, or the session is closed."""
        if self._is_closed or self._current is None:
            return self._is_closed
        try:
            return self._current.should_stop()
        except (AbortedError, UnavailableError) as error:
            if self._recovers:
                self._give_up(error)  # the next run re-creates the session
            return not self._recovers
        except Exception:  # noqa: BLE001 - closing raises it
            return True

    def close(self) -> None:
        """End the hooks and close the session."""
        self._close(None)

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """The end of data (`OutOfRangeError`) and StopIteration end the loop and are not errors."""
        is_end = kind is None or issubclass(kind, OutOfRangeError | StopIteration)
        self._close(None if is_end else error)
        return is_end

    # --- recovery

    def _recovering(self, work: Callable[[HookedSession], Result]) -> Result:
        """``work`` with the session, repeated with a new one if the session is lost."""
        if self._is_closed:
            raise FailedPreconditionError("run: the monitored session is closed")
        while True:
            try:
                result = work(self._session())
            except (AbortedError, UnavailableError) as error:
                if not self._recovers or self._has_never_formed(error):
                    raise
                self._give_up(error)
                self._wait_to_retry(error)
            else:
                self._first_failure, self._was_lost = None, False
                return result

    def _session(self) -> HookedSession:
        """The session, a new one if it was lost. Raises `OutOfRangeError` if the new one starts after the
        last step: the repeated run would be one too many.
        """
        if self._current is None:
            began = self._first_failure or time.monotonic()
            with connecting_within(began + self._max_wait_s - time.monotonic()):
                session = self._creator.create_session()
            self._has_begun = True
            self._current = HookedSession(session, self._hooks, self._grace_s)
            if self._was_lost and self._current.should_stop():
                raise OutOfRangeError("the session was lost after the last step: training has ended")
        return self._current

    def _has_never_formed(self, error: OpError) -> bool:
        """Whether tasks have not answered for as long as a first session waits for them."""
        if self._has_begun or not isinstance(error, UnavailableError):
            return False
        return time.monotonic() + RETRY_S > self._made_at + connect_timeout_s()

    def _give_up(self, error: OpError) -> None:
        LOGGER.warning("creating a new session, because a task of the cluster was lost: %s", error)
        self._was_lost = True
        session, self._current = self._current, None
        if session is not None:
            try:
                session.close()
            except Exception as error:  # noqa: BLE001 - the error that made it useless is being handled
                LOGGER.info("closing the lost session: %s", error)

    def _wait_to_retry(self, error: OpError) -> None:
        now = time.monotonic()
        if self._first_failure is None:
            self._first_failure = now
        elif now - self._first_failure > self._max_wait_s:
            raise DeadlineExceededError(
                f"no run has succeeded for {self._max_wait_s:g} s, in any new session: {error.message}"
            ) from error
        time.sleep(RETRY_S)

    def _close(self, error: BaseException | None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        session, self._current = self._current, None
        try:
            if error is None and session is not None:
                for hook in self._hooks:
                    hook.end(session.session)
        finally:
            if not self._was_finalized:
                self.graph.unfinalize()
            if session is not None:
                session.close()


@final
class MonitoredSession(_MonitoredSession):
    """A session for a loop: ``while not session.should_stop(): session.run(train_op)``. See
    `_MonitoredSession`.

    A session that is lost, because a task of the cluster was lost or restarted, is re-created and the run
    repeated; if no run has succeeded for ``max_wait_secs``, `DeadlineExceededError` is raised. If not even
    the first session can be created, because tasks do not answer for ``FLOWRT_CONNECT_TIMEOUT`` (60 s),
    `UnavailableError` is. Both name the missing tasks and the reason.
    """

    StepContext = StepContext
    _may_recover = True


@final
class SingularMonitoredSession(_MonitoredSession):
    """A session with hooks that is not re-created; `raw_session` is the `Session`."""

    _may_recover = False

    def __init__(
        self,
        hooks: Sequence[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        stop_grace_period_secs: float = GRACE_S,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path)
        super().__init__(creator, hooks, stop_grace_period_secs)

    def raw_session(self) -> Session:
        """Raises `FailedPreconditionError` after `close`."""
        if self._current is None:
            raise FailedPreconditionError("raw_session: the monitored session is closed")
        return self._current.session


def MonitoredTrainingSession(
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: str | None = None,
    scaffold: Scaffold | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    chief_only_hooks: Sequence[SessionRunHook] | None = None,
    save_checkpoint_secs: Any = USE_DEFAULT,
    save_summaries_steps: Any = USE_DEFAULT,
    save_summaries_secs: Any = USE_DEFAULT,
    config: ConfigProto | None = None,
    stop_grace_period_secs: float = GRACE_S,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = MAX_WAIT_S,
    save_checkpoint_steps: Any = USE_DEFAULT,
    summary_dir: str | None = None,
    *,
    restore_fn: Callable[[Session], object] | None = None,
) -> MonitoredSession:
    """A `MonitoredSession` for training: the chief restores or initializes, saves checkpoints to
    ``checkpoint_dir`` (each 600 s) and summaries to ``summary_dir`` (each 100 steps; by default to
    ``checkpoint_dir``), and logs steps per second; the others wait for it, at most ``max_wait_secs``.

    0 or None disables an interval. If only one of ``..._secs`` and ``..._steps`` is given, the other is off.
    Under a strategy with one graph per worker, pass all workers the same arguments, with one
    ``checkpoint_dir``: each restores or initializes its own variables, and the strategy determines the chief.
    ``restore_fn(session)`` sets all variables in place of the newest checkpoint.
    """
    scaffold, strategy = scaffold or Scaffold(), strategy_of_workers()
    own_hooks = check_hooks(hooks)
    steps, secs = _interval(save_checkpoint_steps, save_checkpoint_secs, (None, 600))
    saves = bool(checkpoint_dir) and bool(steps or secs)
    if strategy is None and not is_chief:
        worker = WorkerSessionCreator(scaffold, master, config, max_wait_secs)
        return MonitoredSession(worker, own_hooks, stop_grace_period_secs, max_wait_secs=max_wait_secs)
    chief = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, restore_fn=restore_fn)
    summaries = _interval(save_summaries_steps, save_summaries_secs, (100, None))
    summary_dir = summary_dir or checkpoint_dir
    if strategy is not None and not strategy.extended.should_checkpoint:
        all_hooks = _partner_hooks(scaffold, bool(summary_dir), summaries, saves)
    else:
        all_hooks = check_hooks(chief_only_hooks)
        all_hooks += _summary_hooks(scaffold, summary_dir, summaries, log_step_count_steps)
        if saves:
            all_hooks.append(CheckpointSaverHook(checkpoint_dir or "", secs, steps, scaffold=scaffold))
    all_hooks += own_hooks
    return MonitoredSession(chief, all_hooks, stop_grace_period_secs, max_wait_secs=max_wait_secs)


def _summary_hooks(
    scaffold: Scaffold, directory: str | None, interval: tuple[Any, Any], log_steps: int | None
) -> list[SessionRunHook]:
    """Hooks that write to ``directory``, if given: steps per second, and summaries at each ``interval``."""
    found: list[SessionRunHook] = []
    if directory and log_steps:
        found.append(StepCounterHook(log_steps, output_dir=directory))
    if directory and any(interval):
        found.append(SummarySaverHook(*interval, directory, scaffold=scaffold))
    return found


def _partner_hooks(
    scaffold: Scaffold, writes_summaries: bool, interval: tuple[Any, Any], saves: bool
) -> list[SessionRunHook]:
    """Hooks of a worker that writes nothing but must take part when the first one does."""
    found: list[SessionRunHook] = []
    if writes_summaries and any(interval) and needs_all_workers(summaries_of(scaffold)):
        found.append(SummarySaverHook(*interval, scaffold=scaffold))
    if saves:
        found.append(SavePartnerHook(scaffold))
    return found


def _interval(steps: Any, secs: Any, default: tuple[int | None, int | None]) -> tuple[Any, Any]:
    """(steps, seconds), each None where it is off."""
    if steps is USE_DEFAULT and secs is USE_DEFAULT:
        return default
    return tuple(None if given is USE_DEFAULT or not given else given for given in (steps, secs))  # type: ignore[return-value]
