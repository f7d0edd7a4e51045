"""`current_operation`: the operation that a thread is computing, determined from outside.

Programs do not record their position: that would slow down every operation. It is read from a thread's frames
on demand, as by a sampling profiler.
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
"""Code objects of the functions that call instructions one by one; all use the same variable names."""


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
