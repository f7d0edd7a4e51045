"""Progress: one line on a terminal or in a notebook for long work; nothing without them.

    with Progress("restoring model-600", total=12, unit="tensors") as progress:
        for i, name in enumerate(names):
            progress.update(i, name)

    restoring model-600 [######..............] 4/12 tensors  1.3 s  layer_2/w

The line is drawn on standard error, if that is a terminal, by a separate thread, so that it is updated even
while the work reports nothing. It appears after `APPEARS_S` and is erased at the end. A report costs one
store; if nothing is drawn there is no thread.

In a notebook it is an output of its own, which IPython updates. Nothing else is needed: ipywidgets would be
5 MB and an extension of the browser's side, and what it shows is lost in a saved notebook; rich takes 0.1 s
to import, and tqdm writes each state into the cell's output.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import weakref
from typing import Any, TextIO, final

from flowrt.base.closing import Closing
from flowrt.base.user_frames import notebook_shell

APPEARS_S = 0.5
"""Minimum duration of work for a line to appear."""

REDRAW_S = 0.1
NOTEBOOK_COLUMNS = 100
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
        self._state = (0, "")
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        surface = _surface(stream)
        if surface is not None:
            arguments = weakref.ref(self), self._ended, surface
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


class _Terminal:
    """The last line of a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def columns(self) -> int:
        return shutil.get_terminal_size().columns - 1

    def show(self, text: str) -> None:
        self._stream.write(_ERASE + text)
        self._stream.flush()


class _Cell:
    """An output of a notebook's cell. It stays there, empty at the end: outputs cannot be removed."""

    def __init__(self) -> None:
        self._handle: Any = None

    def columns(self) -> int:
        return NOTEBOOK_COLUMNS

    def show(self, text: str) -> None:
        if self._handle is None:
            display = sys.modules["IPython"].display.display
            self._handle = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)


def _surface(stream: TextIO | None) -> _Terminal | _Cell | None:
    """The place to draw in: ``stream``, by default standard error or the notebook; None if nobody looks."""
    chosen = sys.stderr if stream is None else stream
    if is_watched(chosen):
        return _Terminal(chosen)
    return _Cell() if stream is None and hasattr(notebook_shell(), "kernel") else None


def _draw(ref: weakref.ref[Progress], ended: threading.Event, surface: _Terminal | _Cell) -> None:
    """Draw until ``ended``, or until the `Progress` is garbage-collected because its work was aborted."""
    if ended.wait(APPEARS_S):
        return
    try:
        while not ended.wait(REDRAW_S):
            progress = ref()
            if progress is None:
                break
            surface.show(progress.line(surface.columns()))
            del progress
        surface.show("")
    except (OSError, ValueError):  # the terminal is gone
        return


def is_watched(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal on which a line can be drawn again."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except ValueError:  # it is closed
        return False
