"""`SessionManager`: sessions with initialized variables.

chief        prepare_session: restore the newest checkpoint, or initialize; then the local initializers
the others   wait_for_session: until the chief has done so; then the local initializers
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, final

import numpy as np

from flowrt.distribute.cluster.timeouts import connecting_within
from flowrt.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from flowrt.executor.ends.config import ConfigProto, RunOptions
from flowrt.executor.session.session import Session
from flowrt.graph.construction.graph import Graph, get_default_graph
from flowrt.profiler.text_table import first_few
from flowrt.train.checkpoints.checkpoint_state import get_checkpoint_state
from flowrt.train.checkpoints.scaffold import Scaffold

LOGGER = logging.getLogger(__name__)

RECOVERY_WAIT_S = 1.0
"""Polling interval of `wait_for_session` (TensorFlow: 30 s, which delays the start of its workers)."""

MAX_WAIT_S = 7200.0

NAMES_LOGGED = 3
"""Number of missing variables that a log line names: a model has hundreds, and there is a line per second."""


@final
class SessionManager:
    """Creates sessions of ``graph``, by default the default one.

    ``ready_op`` and ``ready_for_local_init_op`` return the names of the variables without a value, of all or
    of global ones; without them everything counts as ready. ``local_init_op`` runs in every session, with
    ``local_init_feed_dict`` and ``local_init_run_options``. ``recovery_wait_secs`` is the polling interval.
    """

    def __init__(
        self,
        local_init_op: Any = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        graph: Graph | None = None,
        recovery_wait_secs: float = RECOVERY_WAIT_S,
        local_init_run_options: RunOptions | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        self._local_init_op, self._local_init_feed_dict = local_init_op, local_init_feed_dict
        self._local_init_run_options = local_init_run_options
        self._ready_op, self._ready_for_local_init_op = ready_op, ready_for_local_init_op
        self._graph = get_default_graph() if graph is None else graph
        self._recovery_wait_s = recovery_wait_secs

    # --- the three ways to a session

    def prepare_session(
        self,
        master: str,
        init_op: Any = None,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = MAX_WAIT_S,
        config: ConfigProto | None = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Any], Any] | None = None,
    ) -> Session:
        """A session of ``master`` that is ready: restored by ``saver`` from the checkpoint, else initialized
        by ``init_op`` and ``init_fn(session)``.

        With ``wait_for_checkpoint`` it waits for a checkpoint, at most ``max_wait_secs``. Raises
        `FailedPreconditionError`, naming the variables that still have no value, and the errors of restoring;
        the session is then closed.
        """
        checkpoint = saver, checkpoint_dir, checkpoint_filename_with_path, wait_for_checkpoint, max_wait_secs
        with self._restored(master, config, *checkpoint) as (session, found):
            if found is None:
                self._initialize(session, init_op, init_feed_dict, init_fn)
            self._check_ready(session, "the init operations" if found is None else f"restoring {found}")
        return session

    def recover_session(
        self,
        master: str,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = MAX_WAIT_S,
        config: ConfigProto | None = None,
    ) -> tuple[Session, bool]:
        """A session of ``master``, and whether a checkpoint was restored that made it ready. Raises the
        errors of restoring; the session is then closed.
        """
        checkpoint = saver, checkpoint_dir, checkpoint_filename_with_path, wait_for_checkpoint, max_wait_secs
        with self._restored(master, config, *checkpoint) as (session, found):
            missing = self._missing(session)
        if found is not None and missing:
            LOGGER.info("restoring %s left variables uninitialized: %s", found, ", ".join(missing))
        return session, found is not None and not missing

    def wait_for_session(
        self, master: str, config: ConfigProto | None = None, max_wait_secs: float | None = float("inf")
    ) -> Session:
        """A session of ``master``, after another process, the chief, has initialized its variables.

        Raises `DeadlineExceededError`, naming the variables without a value, after ``max_wait_secs``; and
        `UnavailableError` if tasks of the cluster do not answer for ``FLOWRT_CONNECT_TIMEOUT`` (60 s), or for
        ``max_wait_secs`` if that is less.
        """
        end = time.monotonic() + (float("inf") if max_wait_secs is None else max_wait_secs)
        level = logging.INFO  # to wait once is usual
        while True:
            with connecting_within(end - time.monotonic()), self._new_session(master, config) as session:
                missing = self._missing(session)
            if not missing:
                return session
            session.close()
            if time.monotonic() + self._recovery_wait_s > end:
                raise DeadlineExceededError(
                    f"session of {master!r}: expected initialized variables within {max_wait_secs:g} s; still"
                    f" uninitialized: {', '.join(missing)}. Is the chief running?"
                )
            LOGGER.log(level, "waiting for the chief to initialize %s", first_few(missing, NAMES_LOGGED))
            level = logging.WARNING
            time.sleep(self._recovery_wait_s)

    # --- steps on the way

    @contextmanager
    def _new_session(self, master: str, config: ConfigProto | None) -> Iterator[Session]:
        """A session, closed if the ``with`` block fails."""
        session = Session(master, graph=self._graph, config=config)
        try:
            yield session
        except BaseException:
            session.close()
            raise

    @contextmanager
    def _restored(
        self, master: str, config: ConfigProto | None, *checkpoint: Any
    ) -> Iterator[tuple[Session, str | None]]:
        """A new session and the checkpoint restored into it: see `_restore`."""
        with self._new_session(master, config) as session:
            yield session, self._restore(session, *checkpoint)

    def _restore(
        self,
        session: Session,
        saver: Any,
        directory: str | None,
        prefix: str | None,
        waits: bool,
        max_wait_s: float,
    ) -> str | None:
        """Restore the checkpoint at ``prefix``, or the newest of ``directory``; its prefix, None for none."""
        if directory and prefix:
            raise InvalidArgumentError(
                "session: expected either checkpoint_dir or checkpoint_filename_with_path; got both"
            )
        if saver is None or not (directory or prefix):
            return None
        if not directory:
            saver.restore(session, prefix)
            return prefix
        end = time.monotonic() + (max_wait_s if waits else 0.0)
        while (state := get_checkpoint_state(directory)) is None and time.monotonic() < end:
            time.sleep(self._recovery_wait_s)
        if state is None:
            return None
        saver.restore(session, state.model_checkpoint_path)
        saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        return state.model_checkpoint_path

    def _initialize(
        self,
        session: Session,
        init_op: Any,
        feed_dict: Mapping[Any, Any] | None,
        init_fn: Callable[[Any], Any] | None,
    ) -> None:
        if init_op is None and init_fn is None and self._local_init_op is None:
            raise FailedPreconditionError(
                "session: expected a checkpoint, init_op, init_fn or local_init_op; got none of them"
            )
        if init_op is not None:
            session.run(init_op, feed_dict)
        if init_fn is not None:
            init_fn(session)

    def _check_ready(self, session: Session, what: str) -> None:
        missing = self._missing(session)
        if missing:
            raise FailedPreconditionError(
                f"session: expected initialized variables after {what}; uninitialized: {', '.join(missing)}"
            )

    def _missing(self, session: Session) -> list[str]:
        """Run the local initializers if the global variables have values; the names of those without one."""
        missing = _names(session, self._ready_for_local_init_op)
        if missing:
            return missing
        if self._local_init_op is not None:
            session.run(self._local_init_op, self._local_init_feed_dict, self._local_init_run_options)
        return _names(session, self._ready_op)


def _names(session: Session, op: Any) -> list[str]:
    """The elements of ``op``, a vector of strings, as text; empty without an op."""
    if op is None:
        return []
    return [name.decode() if isinstance(name, bytes) else str(name) for name in np.ravel(session.run(op))]


class SessionCreator(Protocol):
    """Creates sessions with initialized variables."""

    def create_session(self) -> Session: ...


@final
class ChiefSessionCreator:
    """Restores the newest checkpoint of ``checkpoint_dir`` (or that at ``checkpoint_filename_with_path``),
    else initializes with ``scaffold``. ``restore_fn(session)`` sets all variables in place of a checkpoint.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        *,
        restore_fn: Callable[[Session], object] | None = None,
    ) -> None:
        self._scaffold, self._master, self._config = scaffold or Scaffold(), master, config
        self._checkpoint_dir, self._checkpoint_path = checkpoint_dir, checkpoint_filename_with_path
        self._restore_fn = restore_fn
        self._manager: SessionManager | None = None

    def create_session(self) -> Session:
        """Raises as `SessionManager.prepare_session`."""
        self._manager = self._manager or _manager_of(self._scaffold)
        session = self._manager.prepare_session(
            self._master,
            saver=self._scaffold.saver,
            checkpoint_dir=None if self._restore_fn else self._checkpoint_dir,
            checkpoint_filename_with_path=self._checkpoint_path,
            config=self._config,
            init_op=self._scaffold.init_op,
            init_feed_dict=self._scaffold.init_feed_dict,
            init_fn=self._scaffold.init_fn,
        )
        if self._restore_fn is not None:
            try:
                self._restore_fn(session)
            except BaseException:
                session.close()
                raise
            state = get_checkpoint_state(self._checkpoint_dir) if self._checkpoint_dir else None
            if state is not None:
                self._scaffold.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        return session


@final
class WorkerSessionCreator:
    """Waits until the chief has done its part, ``max_wait_secs`` at most."""

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        max_wait_secs: float = 30 * 60,
    ) -> None:
        self._scaffold, self._master, self._config = scaffold or Scaffold(), master, config
        self._max_wait_s = max_wait_secs
        self._manager: SessionManager | None = None

    def create_session(self) -> Session:
        """Raises as `SessionManager.wait_for_session`."""
        self._manager = self._manager or _manager_of(self._scaffold)
        return self._manager.wait_for_session(self._master, self._config, self._max_wait_s)


def _manager_of(scaffold: Scaffold) -> SessionManager:
    """Freezes the graph."""
    scaffold.finalize()
    return SessionManager(
        local_init_op=scaffold.local_init_op,
        local_init_feed_dict=scaffold.local_init_feed_dict,
        ready_op=scaffold.ready_op,
        ready_for_local_init_op=scaffold.ready_for_local_init_op,
    )
