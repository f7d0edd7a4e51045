"""`Continuation`: a program without a thread of its own: whoever brings what it waits for goes on with it.

    start() on the caller's thread --> the program runs --> its tensor is not there: the thread leaves
    the tensor comes, on any thread --> that one runs the program to its next wait --> ... --> ended(values)

To wake a thread that waits takes 30 to 60 us, of which most is the way through the interpreter's lock; a step
that goes back and forth between two tasks is little else. In return a program holds up who brings its
tensors: so it has to be short, and may not wait for anything else.
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
"""``ended(values, None)`` or ``ended((), error)``, called once, by the thread that came to the end."""

_QUIET = Context()
"""What NumPy warns of is no error of a program. A copy of this takes 0.05 us, `numpy.errstate` 0.8."""
_QUIET.run(np.seterr, all="ignore")


@final
class Continuation:
    """Drives ``program``, whose step meets in ``rendezvous``; ``finish()`` gives its values when it is over.

    One thread at a time has it: who finds nothing under its key leaves a waiter there and does not touch it
    again, and a waiter is called once.
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
            except BaseException as raised:  # noqa: BLE001 (told to who waits for the end)
                failure = raised
        self._ended(values, failure)
        if failure is not None and not isinstance(failure, Exception):
            raise failure  # Ctrl-C, of the thread that it came to

    def _is_over(self, value: Any) -> bool:
        """Give the program ``value`` and run it; False when another thread goes on with it, maybe already."""
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
