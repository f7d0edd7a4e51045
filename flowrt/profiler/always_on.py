"""``FLOWRT_TRACE``: keeps the last steps of a process and writes them at exit.

    FLOWRT_TRACE=50           keep the last 50 steps, for `recent_step_stats`
    FLOWRT_TRACE=run.json     keep the last 100, and write a Chrome trace to run.json at exit
    FLOWRT_TRACE=traces/      the same, with one file per process: traces/<pid>.trace.json

Steps are kept per process: each task of a cluster has its own.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.executor.observe.recent_steps import keep_recent_steps, recent_steps
from flowrt.profiler.timeline import Timeline
from flowrt.protos.step_stats_pb2 import StepStats

LOGGER = logging.getLogger(__name__)

VARIABLE = "FLOWRT_TRACE"
DEFAULT_STEPS = 100


def recent_step_stats() -> list[Any]:
    """A ``StepStats`` for each step that is kept, oldest first; none where ``FLOWRT_TRACE`` is not set."""
    kept = recent_steps()
    stats = []
    for recorder in kept.read() if kept is not None else ():
        stats.append(StepStats())
        recorder.fill(stats[-1])
    return stats


@contextmanager
def kept_steps() -> Iterator[None]:
    """Keep the last `DEFAULT_STEPS` steps within the context, unless steps are already being kept."""
    if recent_steps() is not None:
        yield
        return
    keep_recent_steps(DEFAULT_STEPS)
    try:
        yield
    finally:
        keep_recent_steps(0)


def write_recent_steps(path: Path) -> None:
    """Write the kept steps as a Chrome trace to ``path``, atomically. Raises OSError.

    A process without steps, such as the launcher of the workers, writes nothing: the file may be another's.
    """
    steps = recent_step_stats()
    if not steps:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise OSError(f"expected a file; got {'a directory' if path.is_dir() else 'a device or a pipe'}")
    path = path.resolve()  # a link stays one
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        partial.write_text(Timeline(steps).generate_chrome_trace_format(), encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def start(setting: str) -> None:
    """Start tracing as configured by ``setting``, the variable's value. Raises `InvalidArgumentError` for a
    number that is not positive.
    """
    if setting.lstrip("-").isdigit():
        if int(setting) < 1:
            raise InvalidArgumentError(f"{VARIABLE}: expected a number of steps, or a file; got {setting!r}")
        keep_recent_steps(int(setting))
        return
    keep_recent_steps(DEFAULT_STEPS)
    path = Path(setting)
    if setting.endswith("/") or path.is_dir():
        path = path / f"{os.getpid()}.trace.json"
    atexit.register(_write_at_exit, path)


def _write_at_exit(path: Path) -> None:
    try:
        write_recent_steps(path)
    except OSError as error:
        LOGGER.warning("%s: %s could not be written: %s", VARIABLE, path, error.strerror or error)
