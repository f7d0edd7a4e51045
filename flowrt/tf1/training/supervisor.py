"""`Supervisor`: the predecessor of `MonitoredTrainingSession`.

Prepares a plain `Session`, as `SessionManager` does, and saves checkpoints and summaries on background
threads. It does not re-create a lost session.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

from flowrt.errors import FailedPreconditionError
from flowrt.executor.ends.config import ConfigProto, RunOptions
from flowrt.executor.session.session import Session
from flowrt.graph.construction.graph import Graph, get_default_graph
from flowrt.protos.event_pb2 import SessionLog
from flowrt.summary.writer import FileWriter
from flowrt.train.checkpoints.graph_file import write_graph
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.coordination.coordinator import GRACE_S, Coordinator
from flowrt.train.coordination.queue_runner import start_queue_runners
from flowrt.train.optimizers.global_step import get_global_step
from flowrt.train.sessions.session_manager import MAX_WAIT_S, RECOVERY_WAIT_S, SessionManager

USE_DEFAULT = 0
"""Value of an argument that was not given; None disables the feature instead."""


@final
class Supervisor:
    """Trains ``graph``, by default the default one, and freezes it.

    Arguments that are not given come from the graph's collections or are created, as in `Scaffold`. The chief
    (``is_chief``) restores the newest checkpoint of ``logdir`` or runs ``init_op`` and ``init_fn(session)``;
    then it saves there every ``save_model_secs`` seconds, and summaries every ``save_summaries_secs`` (0:
    never). The others wait for it.
    """

    USE_DEFAULT = USE_DEFAULT

    def __init__(
        self,
        graph: Graph | None = None,
        ready_op: Any = USE_DEFAULT,
        ready_for_local_init_op: Any = USE_DEFAULT,
        is_chief: bool = True,
        init_op: Any = USE_DEFAULT,
        init_feed_dict: Mapping[Any, Any] | None = None,
        local_init_op: Any = USE_DEFAULT,
        logdir: str | None = None,
        summary_op: Any = USE_DEFAULT,
        saver: Any = USE_DEFAULT,
        global_step: Any = USE_DEFAULT,
        save_summaries_secs: float = 120,
        save_model_secs: float = 600,
        recovery_wait_secs: float = RECOVERY_WAIT_S,
        stop_grace_secs: float = GRACE_S,
        checkpoint_basename: str = "model.ckpt",
        session_manager: SessionManager | None = None,
        summary_writer: Any = USE_DEFAULT,
        init_fn: Callable[[Any], Any] | None = None,
        local_init_run_options: RunOptions | None = None,
    ) -> None:
        self._graph = get_default_graph() if graph is None else graph
        self.is_chief, self._logdir, self._grace_s = is_chief, logdir, stop_grace_secs
        self.coord = Coordinator()
        self.init_feed_dict, self._init_fn = init_feed_dict, init_fn
        self.save_summaries_secs, self.save_model_secs = save_summaries_secs, save_model_secs
        self.save_path = os.path.join(logdir, checkpoint_basename) if logdir else None
        with self._graph.as_default():
            self.global_step = get_global_step() if _is_default(global_step) else global_step
            made = _scaffold(ready_op, ready_for_local_init_op, init_op, local_init_op, summary_op, saver)
        self.init_op, self.local_init_op = made.init_op, made.local_init_op
        self.ready_op, self.ready_for_local_init_op = made.ready_op, made.ready_for_local_init_op
        self.summary_op, self.saver = made.summary_op, made.saver
        self.session_manager = session_manager or SessionManager(
            self.local_init_op,
            self.ready_op,
            self.ready_for_local_init_op,
            self._graph,
            recovery_wait_secs,
            local_init_run_options,
        )
        self.summary_writer = summary_writer
        if _is_default(summary_writer):
            self.summary_writer = FileWriter(logdir) if logdir and is_chief else None

    # --- sessions

    def prepare_or_wait_for_session(
        self,
        master: str = "",
        config: ConfigProto | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = MAX_WAIT_S,
        start_standard_services: bool = True,
    ) -> Session:
        """A session with initialized variables: the chief initializes them, the others wait,
        ``max_wait_secs`` at most. Raises as `SessionManager`.
        """
        self.coord.clear_stop()
        if not self.is_chief:
            session = self.session_manager.wait_for_session(master, config, max_wait_secs)
        else:
            session = self.session_manager.prepare_session(
                master,
                init_op=self.init_op,
                saver=self.saver,
                checkpoint_dir=self._logdir,
                wait_for_checkpoint=wait_for_checkpoint,
                max_wait_secs=max_wait_secs,
                config=config,
                init_feed_dict=self.init_feed_dict,
                init_fn=self._init_fn,
            )
            if self._logdir:
                write_graph(self._graph, self._logdir, "graph.pbtxt")
            if self.summary_writer is not None:
                self.summary_writer.add_graph(self._graph)
            if start_standard_services:
                self.start_standard_services(session)
        if start_standard_services:
            self.start_queue_runners(session)
        return session

    @contextmanager
    def managed_session(
        self,
        master: str = "",
        config: ConfigProto | None = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> Iterator[Session]:
        """A context with such a session. At its end the threads are stopped and the session is closed; the
        first error of the loop or of a thread is raised, except `OutOfRangeError`.
        """
        session = self.prepare_or_wait_for_session(
            master, config, start_standard_services=start_standard_services
        )
        try:
            with self.coord.stop_on_exception():
                yield session
        finally:
            try:
                self.stop(close_summary_writer=close_summary_writer)
            finally:
                session.close()

    # --- threads

    def start_standard_services(self, sess: Session) -> list[threading.Thread]:
        """Start the threads that save. Raises `FailedPreconditionError` for a task that is not the chief."""
        if not self.is_chief:
            raise FailedPreconditionError(
                "start_standard_services: expected the chief to call it; got another task"
            )
        started = []
        if self.summary_writer is not None:
            log = SessionLog(status=SessionLog.START)
            self.summary_writer.add_session_log(log, self._step_of(sess))
            if self.summary_op is not None and self.save_summaries_secs:
                started.append(self.loop(self.save_summaries_secs, self._save_summaries, (sess,)))
        if self.saver is not None and self.save_path and self.save_model_secs:
            started.append(self.loop(self.save_model_secs, self._save_model, (sess,)))
        return started

    def loop(
        self,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> threading.Thread:
        """Call ``target`` on a thread, immediately and then every ``timer_interval_secs`` seconds, until the
        stop. Its error stops all threads.
        """

        def work() -> None:
            with self.coord.stop_on_exception():
                while not self.coord.should_stop():
                    target(*args, **(kwargs or {}))
                    self.coord.wait_for_stop(timer_interval_secs or 0.0)

        thread = threading.Thread(target=work, name=f"flowrt {target.__name__}", daemon=True)
        self.coord.register_thread(thread)
        thread.start()
        return thread

    def start_queue_runners(self, sess: Session, queue_runners: Sequence[Any] | None = None) -> list[Any]:
        """Start these runners, or the graph's. See `flowrt.train.start_queue_runners`."""
        if queue_runners is None:
            return start_queue_runners(sess, self.coord)
        return [t for r in queue_runners for t in r.create_threads(sess, self.coord, daemon=True, start=True)]

    def _save_summaries(self, session: Session) -> None:
        self.summary_writer.add_summary(session.run(self.summary_op), self._step_of(session))

    def _save_model(self, session: Session) -> None:
        self.saver.save(session, self.save_path, global_step=self.global_step)

    def _step_of(self, session: Session) -> int | None:
        return None if self.global_step is None else int(session.run(self.global_step))

    def summary_computed(self, sess: Session, summary: Any, global_step: int | None = None) -> None:
        """Write a summary that the loop has fetched. Raises `FailedPreconditionError` without a writer."""
        if self.summary_writer is None:
            raise FailedPreconditionError("summary_computed: expected a chief with a logdir; got no writer")
        self.summary_writer.add_summary(summary, self._step_of(sess) if global_step is None else global_step)

    # --- stopping

    def should_stop(self) -> bool:
        return self.coord.should_stop()

    def request_stop(self, ex: Any = None) -> None:
        """See `Coordinator.request_stop`."""
        self.coord.request_stop(ex)

    def stop_on_exception(self) -> Any:
        """See `Coordinator.stop_on_exception`."""
        return self.coord.stop_on_exception()

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """See `Coordinator.wait_for_stop`."""
        return self.coord.wait_for_stop(timeout)

    def stop(
        self,
        threads: Sequence[threading.Thread] | None = None,
        close_summary_writer: bool = True,
        ignore_live_threads: bool = False,
    ) -> None:
        """Stop all threads and raise the first error that one of them, or the loop, has reported."""
        self.coord.request_stop()
        try:
            self.coord.join(threads, self._grace_s, ignore_live_threads)
        finally:
            if close_summary_writer and self.summary_writer is not None:
                self.summary_writer.add_session_log(SessionLog(status=SessionLog.STOP))
                self.summary_writer.close()


def _scaffold(*given: Any) -> Scaffold:
    """The given pieces; those that are `USE_DEFAULT` are found or created, and None stays None."""
    names = "ready_op", "ready_for_local_init_op", "init_op", "local_init_op", "summary_op", "saver"
    pieces = dict(zip(names, given, strict=True))
    scaffold = Scaffold(
        **{name: piece for name, piece in pieces.items() if not _is_default(piece)}
    ).finalize()
    for name, piece in pieces.items():
        if piece is None:
            setattr(scaffold, name, None)
    return scaffold


def _is_default(given: Any) -> bool:
    return isinstance(given, int) and given == USE_DEFAULT
