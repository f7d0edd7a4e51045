"""`StepProgress`: where the steps of a task are, in words for another task that waits for their tensors."""

from __future__ import annotations

import threading
from typing import final

from flowrt.executor.program.current_operation import current_operation
from flowrt.rendezvous.matching.key import parse_key
from flowrt.rendezvous.remote import RemoteRendezvous, source_task


@final
class StepProgress:
    """Progress of the steps running in one task. Thread-safe."""

    def __init__(self) -> None:
        self._rendezvous: dict[int, RemoteRendezvous] = {}
        self._threads: dict[int, int] = {}

    def begin(self, step: int, rendezvous: RemoteRendezvous) -> None:
        self._rendezvous[step] = rendezvous

    def run_here(self, step: int) -> None:
        """The step's first program runs on the calling thread."""
        self._threads[step] = threading.get_ident()

    def left(self, step: int) -> None:
        """Record that the thread no longer runs the step, which may still have tensors to send."""
        self._threads.pop(step, None)

    def end(self, step: int) -> None:
        self._rendezvous.pop(step, None)

    def describe(self, step: int) -> str:
        """Current activity of the step: an operation, or a wait, with the tasks waited for."""
        rendezvous = self._rendezvous.get(step)
        if rendezvous is None:
            return "does not run the step"
        node = current_operation(self._threads.get(step, 0))
        if node is not None:
            return f"is at {node.op.name} {node.name!r}{f' ({node.source})' if node.source else ''}"
        awaited = sorted(rendezvous.awaited())
        if awaited:
            return f"waits for {parse_key(awaited[0]).edge_name!r} of {source_task(awaited[0])}"
        return "runs the step"
