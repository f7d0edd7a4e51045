"""Evaluations of ``contrib.training``: metrics of a checkpoint, or of each new one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from flowrt.graph.construction.graph import get_default_graph
from flowrt.logging import info
from flowrt.summary import merge_all
from flowrt.summary.writer import FileWriter
from flowrt.train.checkpoints.new_checkpoints import checkpoints_iterator
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.hooks.basic_session_run_hooks import FinalOpsHook
from flowrt.train.hooks.session_run_hook import SessionRunContext, SessionRunHook, SessionRunValues
from flowrt.train.optimizers.global_step import get_or_create_global_step
from flowrt.train.sessions.monitored_session import MonitoredSession
from flowrt.train.sessions.session_manager import ChiefSessionCreator


class StopAfterNEvalsHook(SessionRunHook):
    """Stops each evaluation after ``num_evals`` runs (None: at the end of the input)."""

    def __init__(self, num_evals: int | None, log_progress: bool = True) -> None:
        self._number, self._shows = num_evals, log_progress

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._done = 0

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self._done += 1
        if self._shows:
            info("Evaluation [%d/%s]", self._done, self._number)
        if self._number is not None and self._done >= self._number:
            run_context.request_stop()


class SummaryAtEndHook(SessionRunHook):
    """Writes ``summary_op``, by default all summaries, fed with ``feed_dict``, to ``log_dir`` after each
    evaluation.
    """

    def __init__(
        self, log_dir: Any = None, summary_writer: Any = None, summary_op: Any = None, feed_dict: Any = None
    ) -> None:
        self._folder, self._writer = log_dir, summary_writer
        self._summary, self._fed = summary_op, feed_dict

    def begin(self) -> None:
        self._summary = merge_all() if self._summary is None else self._summary
        self._step = get_or_create_global_step()

    def end(self, session: Any) -> None:
        if self._summary is None:
            return
        if self._writer is None:
            self._writer = FileWriter(self._folder, get_default_graph())
        summary, step = session.run([self._summary, self._step], self._fed)
        self._writer.add_summary(summary, step)
        self._writer.flush()


def evaluate_once(
    checkpoint_path: Any,
    master: str = "",
    scaffold: Scaffold | None = None,
    eval_ops: Any = None,
    feed_dict: Any = None,
    final_ops: Any = None,
    final_ops_feed_dict: Any = None,
    hooks: Sequence[SessionRunHook] | None = None,
    config: Any = None,
) -> Any:
    """Restore ``checkpoint_path``, run ``eval_ops`` until a hook or the end of the input stops it, and return
    the values of ``final_ops``. A `StopAfterNEvalsHook` limits the runs.
    """
    final = FinalOpsHook(final_ops, final_ops_feed_dict)
    creator = ChiefSessionCreator(scaffold, master, config, checkpoint_filename_with_path=checkpoint_path)
    with MonitoredSession(creator, [*(hooks or ()), final]) as session:
        while eval_ops is not None and not session.should_stop():
            session.run(eval_ops, feed_dict)
    info("Evaluated %s", checkpoint_path)
    return final.final_ops_values


def evaluate_repeatedly(
    checkpoint_dir: Any,
    master: str = "",
    scaffold: Scaffold | None = None,
    eval_ops: Any = None,
    feed_dict: Any = None,
    final_ops: Any = None,
    final_ops_feed_dict: Any = None,
    eval_interval_secs: float = 60,
    hooks: Sequence[SessionRunHook] | None = None,
    config: Any = None,
    max_number_of_evaluations: int | None = None,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Any:
    """`evaluate_once` for each new checkpoint of a directory, at most once in ``eval_interval_secs``, until
    ``max_number_of_evaluations`` or ``timeout`` seconds without a new one; returns the last values.
    """
    values = None
    scaffold = scaffold or Scaffold()
    paths = checkpoints_iterator(checkpoint_dir, eval_interval_secs, timeout, timeout_fn)
    for path in itertools.islice(paths, max_number_of_evaluations):
        values = evaluate_once(
            path, master, scaffold, eval_ops, feed_dict, final_ops, final_ops_feed_dict, hooks, config
        )
    return values
