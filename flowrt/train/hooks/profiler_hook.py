"""`ProfilerHook`: traces of single runs of a training loop, as timelines and for TensorBoard."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, final

from flowrt.executor.ends.config import RunOptions
from flowrt.profiler.timeline import Timeline
from flowrt.summary.writer import FileWriterCache
from flowrt.train.hooks.basic_session_run_hooks import SecondOrStepTimer, required_global_step
from flowrt.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)

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
