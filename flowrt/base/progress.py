"""Progress: one line on a terminal for long work; nothing without a terminal.

    with Progress("restoring model-600", total=12, unit="tensors") as progress:
        for i, name in enumerate(names):
            progress.update(i, name)

    restoring model-600 [######..............] 4/12 tensors  1.3 s  layer_2/w

The line is drawn on standard error, if that is a terminal, by a separate thread, so that it is updated even
while the work reports nothing. It appears after `APPEARS_S` and is erased at the end. A report costs one
store; if nothing is drawn there is no thread.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import weakref
from typing import TextIO, final

from flowrt.base.closing import Closing

APPEARS_S = 0.5
"""Minimum duration of work for a line to appear."""

REDRAW_S = 0.1
BAR = 20
_ERASE = "\r\x1b[K"


@final
class Progress(Closing):
    """The progress of ``what``: of ``total`` ``unit``, if the amount is known. A context manager that erases
    the line at its end. `update` is thread-safe.
    """

    def __init__(
        self, what: str, total: int | None = None, unit: str = "", stream: TextIO | None = None
    ) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._stream = sys.stderr if stream is None else stream
        self._state = (0, "")
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if is_watched(self._stream):
            arguments = weakref.ref(self), self._ended, self._stream
            self._thread = threading.Thread(target=_draw, args=arguments, name="flowrt progress", daemon=True)
            self._thread.start()

    @property
    def is_shown(self) -> bool:
        """Whether the line is drawn."""
        return self._thread is not None

    def update(self, done: int, note: str = "") -> None:
        """Set the progress to ``done``; ``note`` names the current item."""
        self._state = (done, note)

    def close(self) -> None:
        """Take the line away. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def line(self, columns: int) -> str:
        """The current text, in at most ``columns`` characters."""
        done, note = self._state
        seconds = f"{time.monotonic() - self._started:.1f} s"
        words = [self._what, self._amount(done), f" {seconds}", f" {note}" if note else ""]
        text = " ".join(filter(None, words))
        return text if len(text) <= columns else text[: max(columns - 1, 0)] + "…"

    def _amount(self, done: int) -> str:
        if self._total is None:
            return f"{done} {self._unit}".strip() if done else ""
        filled = BAR * done // max(self._total, 1)
        return f"[{'#' * filled:.<{BAR}}] {done}/{self._total} {self._unit}".rstrip()


def _draw(ref: weakref.ref[Progress], ended: threading.Event, stream: TextIO) -> None:
    """Draw until ``ended``, or until the `Progress` is garbage-collected because its work was aborted."""
    if ended.wait(APPEARS_S):
        return
    try:
        while not ended.wait(REDRAW_S):
            progress = ref()
            if progress is None:
                break
            stream.write(_ERASE + progress.line(shutil.get_terminal_size().columns - 1))
            stream.flush()
            del progress
        stream.write(_ERASE)
        stream.flush()
    except (OSError, ValueError):  # the terminal is gone
        return


def is_watched(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal on which a line can be drawn again."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except ValueError:  # it is closed
        return False
