"""`Continuation`: a program without a thread: the sender of each tensor that it waits for resumes it.

    start() on the caller's thread --> the program runs --> a tensor is missing: the thread leaves
    the tensor arrives, on any thread --> that one runs the program to its next wait --> ... --> ended(values)

Waking a waiting thread takes 30 to 60 us, most of it for the interpreter's lock, which dominates a step that
alternates between two tasks. In return a program delays the sender of its tensors: so it must be short, and
must not block otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, TypeAlias, final

import numpy as np

from flowrt.errors import OpError
from flowrt.executor.program.control_flow import PAUSE
from flowrt.executor.program.runner import Running, StepControl, resume
from flowrt.rendezvous import LocalRendezvous

Ended: TypeAlias = Callable[[Sequence[Any], BaseException | None], object]
"""``ended(values, None)`` or ``ended((), error)``, called once, by the thread that finishes the program."""

_QUIET = Context()
"""Context without NumPy's floating-point warnings. Copying it takes 0.05 us, `numpy.errstate` 0.8."""
_QUIET.run(np.seterr, all="ignore")


@final
class Continuation:
    """Drives ``program`` of a step with ``rendezvous``; ``finish()`` returns its values at the end.

    One thread at a time owns it: a thread that finds no tensor under its key leaves a callback there and does
    not touch it again, and a callback is called once.
    """

    __slots__ = ("_control", "_ended", "_finish", "_program", "_rendezvous")

    def __init__(
        self,
        program: Running,
        control: StepControl,
        rendezvous: LocalRendezvous,
        finish: Callable[[], Sequence[Any]],
        ended: Ended,
    ) -> None:
        self._program, self._control, self._rendezvous = program, control, rendezvous
        self._finish, self._ended = finish, ended

    def start(self) -> None:
        """Run to the first wait, or to the end."""
        self._control.wake_by(self._rendezvous.abort)
        self._arrived(None, None)

    def _arrived(self, value: Any, error: OpError | None) -> None:
        values: Sequence[Any] = ()
        failure: BaseException | None = error
        if error is None:
            try:
                if not _QUIET.copy().run(self._is_over, value):
                    return
                self._control.check()
                values = self._finish()
            except BaseException as raised:  # noqa: BLE001 (raised for the waiter)
                failure = raised
        self._ended(values, failure)
        if failure is not None and not isinstance(failure, Exception):
            raise failure  # Ctrl-C in this thread

    def _is_over(self, value: Any) -> bool:
        """Pass ``value`` to the program and run it; False if another thread (possibly now) continues it."""
        key = resume(self._program, value)
        while key is not None:
            self._control.check()
            value = None
            if key is not PAUSE:
                value = self._rendezvous.take_or_wait(key, self._arrived)
                if value is None:
                    return False
            key = resume(self._program, value)
        return True
