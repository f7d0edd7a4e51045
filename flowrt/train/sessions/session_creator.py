"""Creators of a training loop's sessions: the chief's restores or initializes, the others' waits."""

from __future__ import annotations

from typing import Protocol, final

from flowrt.executor.ends.config import ConfigProto
from flowrt.executor.session.session import Session
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.sessions.session_manager import SessionManager


class SessionCreator(Protocol):
    """Creates sessions with initialized variables."""

    def create_session(self) -> Session: ...


@final
class ChiefSessionCreator:
    """Restores the newest checkpoint of ``checkpoint_dir`` (or that at ``checkpoint_filename_with_path``),
    else initializes with ``scaffold``.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        self._scaffold, self._master, self._config = scaffold or Scaffold(), master, config
        self._checkpoint_dir, self._checkpoint_path = checkpoint_dir, checkpoint_filename_with_path
        self._manager: SessionManager | None = None

    def create_session(self) -> Session:
        """Raises as `SessionManager.prepare_session`."""
        self._manager = self._manager or _manager_of(self._scaffold)
        return self._manager.prepare_session(
            self._master,
            saver=self._scaffold.saver,
            checkpoint_dir=self._checkpoint_dir,
            checkpoint_filename_with_path=self._checkpoint_path,
            config=self._config,
            init_op=self._scaffold.init_op,
            init_feed_dict=self._scaffold.init_feed_dict,
            init_fn=self._scaffold.init_fn,
        )


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
