"""`current_operation`: what a thread is computing, found from outside while it does.

Programs note nothing of where they are: it would cost every operation of every step. A thread's frames tell,
as a profiler that samples reads them, when somebody asks.
"""

from __future__ import annotations

import sys

from flowrt.executor.observe.gc_pause import paused_collector
from flowrt.executor.program.program import Program
from flowrt.graph.node import Node

_CODES = {
    method.__code__
    for method in (Program.run_straight, Program._run_block, Program._run_stretch, Program._step_block)
}
"""Of the functions that call instructions one by one, under one set of names."""


def current_operation(thread: int) -> Node | None:
    """The innermost operation that the thread with this identifier is at. None where it runs none, or several
    of them as one piece of machine code.
    """
    with paused_collector():  # in 3.11.2 one that begins in there may wait for the call's own lock
        frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code in _CODES:
            names = frame.f_locals
            segment, call = names.get("segment"), (names.get("function"), names.get("arguments"))
            if segment is not None:
                return next(
                    (
                        node
                        for (function, arguments), node in zip(
                            segment.instructions, segment.nodes, strict=True
                        )
                        if function is call[0] and arguments is call[1]
                    ),
                    None,
                )
        frame = frame.f_back
    return None
