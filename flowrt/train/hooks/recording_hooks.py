"""Hooks that write files during training: checkpoints, summaries, steps per second, traces."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.executor.ends.config import RunOptions
from flowrt.profiler.timeline import Timeline
from flowrt.protos.event_pb2 import SessionLog, Summary
from flowrt.summary.writer import FileWriter, FileWriterCache
from flowrt.train.checkpoints.graph_file import write_graph
from flowrt.train.checkpoints.saver import Saver
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.coordination.coordinator import Coordinator
from flowrt.train.hooks.agreed_saving import SaveAgreement, summaries_of
from flowrt.train.hooks.basic_session_run_hooks import SecondOrStepTimer, required_global_step
from flowrt.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)

__all__ = ["CheckpointSaverHook", "CheckpointSaverListener", "StepCounterHook", "SummarySaverHook"]

LOGGER = logging.getLogger(__name__)


class CheckpointSaverListener:
    """Base of the listeners to `CheckpointSaverHook`'s checkpoints: does nothing."""

    def begin(self) -> None:
        """Called before the session is made."""

    def before_save(self, session: Any, global_step_value: int) -> None:
        """Called before a checkpoint of this step is written."""

    def after_save(self, session: Any, global_step_value: int) -> bool | None:
        """Called after the checkpoint is complete. Returns True to request a stop."""

    def end(self, session: Any, global_step_value: int) -> None:
        """Called after the last checkpoint."""


@final
class CheckpointSaverHook(SessionRunHook):
    """Saves checkpoints to ``checkpoint_dir`` each ``save_secs`` seconds or ``save_steps`` steps, besides one
    of each session's beginning and one at the end. One for which there is no space is left out, with an error
    in the log; only the last one raises it.

    ``saver``, or that of ``scaffold``, saves; without either, the one of the collection SAVERS. Raises
    `InvalidArgumentError` for both, and for anything but one interval.
    """

    def __init__(
        self,
        checkpoint_dir: str,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Saver | None = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Scaffold | None = None,
        listeners: Sequence[CheckpointSaverListener] | None = None,
    ) -> None:
        if saver is not None and scaffold is not None:
            raise InvalidArgumentError("CheckpointSaverHook: expected a saver or a scaffold; got both")
        self._directory, self._prefix = checkpoint_dir, os.path.join(checkpoint_dir, checkpoint_basename)
        self._saver, self._scaffold = saver, scaffold
        self._listeners = list(listeners or ())
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._saved_step: int | None = None

    def begin(self) -> None:
        os.makedirs(self._directory, exist_ok=True)
        self._writer = FileWriterCache.get(self._directory)
        self._step = required_global_step(self)
        self._agreement = SaveAgreement.of_graph()
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Any, coord: Coordinator) -> None:
        write_graph(session.graph, self._directory, "graph.pbtxt")
        self._writer.add_graph(session.graph)
        step = int(session.run(self._step))
        self._save_if_there_is_space(session, step)
        self._timer.update_last_triggered_step(step)
        self._next_step = step + 1

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        if self._agreement is None:
            return SessionRunArgs(self._step)
        return self._agreement.asked(self._step, self._timer.should_trigger_for_step(self._next_step))

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if not self._may_be_due(run_values.results):
            return
        step = int(run_context.session.run(self._step))  # the run may not have counted
        if self._agreement is not None or self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if self._save_if_there_is_space(run_context.session, step):
                run_context.request_stop()

    def _may_be_due(self, results: Any) -> bool:
        """Whether to save, as far as ``results`` of a run tell: all workers follow the agreement."""
        if self._agreement is None:
            return self._timer.should_trigger_for_step(int(results) + 1)
        step, agreed = results
        self._next_step = int(step) + 1
        return bool(agreed)

    def end(self, session: Any) -> None:
        step = int(session.run(self._step))
        if step != self._saved_step:
            self._save(session, step)
        for listener in self._listeners:
            listener.end(session, step)
        self._writer.flush()

    def _save_if_there_is_space(self, session: Any, step: int) -> bool:
        """`_save`. The steps since the last checkpoint are worth more than this one."""
        try:
            return self._save(session, step)
        except ResourceExhaustedError as error:
            last = (
                "there is none yet" if self._saved_step is None else f"the last is of step {self._saved_step}"
            )
            LOGGER.error(
                "training goes on without a checkpoint of step %d; %s: %s", step, last, error.message
            )
            return False

    def _save(self, session: Any, step: int) -> bool:
        """Save a checkpoint. Returns whether a listener requests a stop."""
        LOGGER.info("saving the checkpoint of step %d to %s", step, self._prefix)
        for listener in self._listeners:
            listener.before_save(session, step)
        self._found_saver().save(session, self._prefix, global_step=step)
        self._saved_step = step
        log = SessionLog(status=SessionLog.CHECKPOINT, checkpoint_path=self._prefix)
        self._writer.add_session_log(log, step)
        asked = [listener.after_save(session, step) for listener in self._listeners]
        return any(asked)

    def _found_saver(self) -> Saver:
        if self._saver is None:
            if self._scaffold is not None:
                self._saver = self._scaffold.saver
            else:
                self._saver = Scaffold.get_or_default("saver", "savers", Saver)
        return self._saver


@final
class StepCounterHook(SessionRunHook):
    """Logs the number of steps per second, each ``every_n_steps`` steps or ``every_n_secs`` seconds, and
    writes it as the summary "global_step/sec".
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: FileWriter | None = None,
    ) -> None:
        self._timer = SecondOrStepTimer(every_n_secs, every_n_steps)
        self._writer, self._directory = summary_writer, output_dir

    def begin(self) -> None:
        self._step = required_global_step(self)
        if self._writer is None and self._directory:
            self._writer = FileWriterCache.get(self._directory)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if not self._timer.should_trigger_for_step(int(run_values.results) + 1):
            return
        step = int(run_context.session.run(self._step))
        if not self._timer.should_trigger_for_step(step):
            return
        elapsed_s, steps = self._timer.update_last_triggered_step(step)
        if elapsed_s and steps is not None and steps >= 0:  # a session that was restored begins lower
            self._report(step, steps / elapsed_s)

    def _report(self, step: int, steps_per_s: float) -> None:
        LOGGER.info("global_step/sec: %g", steps_per_s)
        if self._writer is not None:
            value = Summary.Value(tag="global_step/sec", simple_value=steps_per_s)
            self._writer.add_summary(Summary(value=[value]), step)


@final
class SummarySaverHook(SessionRunHook):
    """Writes summaries each ``save_steps`` steps or ``save_secs`` seconds, and those of the first run.

    ``summary_op``, or that of ``scaffold``: a summary, or a list of them. Raises `InvalidArgumentError`
    unless exactly one of both, and one interval, is given.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: FileWriter | None = None,
        scaffold: Scaffold | None = None,
        summary_op: Any = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise InvalidArgumentError("SummarySaverHook: expected either a scaffold or a summary_op")
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._directory, self._writer = output_dir, summary_writer
        self._scaffold, self._summary_op = scaffold, summary_op
        self._next_step: int | None = None
        """None before the first run."""
        self._is_due = False

    def begin(self) -> None:
        self._step = required_global_step(self)
        if self._writer is None and self._directory:
            self._writer = FileWriterCache.get(self._directory)
        self._next_step = None
        summaries = self._summaries() if self._scaffold is None else summaries_of(self._scaffold)
        self._agreement = SaveAgreement.of_summaries(summaries)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        self._is_due = self._next_step is None or self._timer.should_trigger_for_step(self._next_step)
        if self._agreement is not None:
            self._is_due = self._agreement.settled(run_context.session, self._is_due)
        return SessionRunArgs({"step": self._step, "summaries": self._summaries() if self._is_due else []})

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        step = int(run_values.results["step"])
        if self._is_due:
            step = int(run_context.session.run(self._step))
            self._write(step, run_values.results["summaries"])
        self._next_step = step + 1

    def end(self, session: Any) -> None:
        if self._writer is not None:
            self._writer.flush()

    def _write(self, step: int, summaries: list[Any]) -> None:
        self._timer.update_last_triggered_step(step)
        if self._writer is None:
            return
        if self._next_step is None:
            self._writer.add_session_log(SessionLog(status=SessionLog.START), step)
        for summary in summaries:
            self._writer.add_summary(summary, step)

    def _summaries(self) -> list[Any]:
        op = self._summary_op if self._scaffold is None else self._scaffold.summary_op
        if op is None:
            return []
        return list(op) if isinstance(op, list | tuple) else [op]


LOGGER = logging.getLogger("flowrt.train")


@final
class ProfilerHook(SessionRunHook):
    """Traces a run each ``save_steps`` steps or ``save_secs`` seconds: writes ``timeline-STEP.json`` to
    ``output_dir``, for chrome://tracing, and the trace as run metadata to the event file there.

    ``show_dataflow`` and ``show_memory``: see `Timeline.generate_chrome_trace_format`. Raises
    `InvalidArgumentError` for anything but one interval.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
    ) -> None:
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._directory = Path(output_dir or ".")
        self._shown = {"show_dataflow": show_dataflow, "show_memory": show_memory}
        self._next_step: int | None = None
        self._is_due = False

    def begin(self) -> None:
        self._step = required_global_step(self)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._writer = FileWriterCache.get(self._directory)
        self._next_step = None

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        self._is_due = self._next_step is not None and self._timer.should_trigger_for_step(self._next_step)
        options = RunOptions(trace_level=RunOptions.FULL_TRACE) if self._is_due else None
        return SessionRunArgs(self._step, options=options)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        step = int(run_values.results)
        if self._next_step is None:
            self._timer.update_last_triggered_step(step)
        elif self._is_due:
            step = int(run_context.session.run(self._step))
            self._timer.update_last_triggered_step(step)
            self._write(step, run_values.run_metadata)
        self._next_step = step + 1

    def _write(self, step: int, run_metadata: Any) -> None:
        path = self._directory / f"timeline-{step}.json"
        LOGGER.info("saving the timeline of step %d to %s", step, path)
        timeline = Timeline(run_metadata.step_stats)
        path.write_text(timeline.generate_chrome_trace_format(**self._shown), encoding="utf-8")
        self._writer.add_run_metadata(run_metadata, f"step_{step}")
