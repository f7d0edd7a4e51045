"""`beside`: copies of this process that compute meanwhile, as the other processes of a training do.

What a program takes of a core depends on what the others do: they share caches and the way to memory. A copy
has the memory of the process that it is made of, so it runs the same programs, of which nothing is sent.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager


@contextmanager
def beside(runs: Sequence[Callable[[], object]], count: int) -> Iterator[None]:
    """``count`` copies, each of which calls one of ``runs`` again and again, until the end.

    They have the thread that asks for them and no other: what is called must not wait for another one.
    """
    with ExitStack() as stack:
        for number in range(count):
            stack.callback(_end, _copy(runs[(number + 1) % len(runs)]))
        yield


def _copy(run: Callable[[], object]) -> int:
    """The number of a new process, which ends when this one does."""
    parent = os.getpid()
    process = os.fork()
    if process != 0:
        return process
    try:
        while os.getppid() == parent:
            run()
    finally:
        os._exit(1)  # not through what the copy would close or print, which is its parent's


def _end(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
