"""`StepProgress`: where the steps of a task are, in words for another task that waits for their tensors."""

from __future__ import annotations

from typing import final

from flowrt.executor.program.runner import StepControl
from flowrt.rendezvous.matching.key import parse_key
from flowrt.rendezvous.remote import RemoteRendezvous, source_task


@final
class StepProgress:
    """Progress of the steps running in one task. Thread-safe."""

    def __init__(self) -> None:
        self._steps: dict[int, tuple[StepControl, RemoteRendezvous]] = {}

    def begin(self, step: int, control: StepControl, rendezvous: RemoteRendezvous) -> None:
        self._steps[step] = control, rendezvous

    def end(self, step: int) -> None:
        self._steps.pop(step, None)

    def describe(self, step: int) -> str:
        """Current activity of the step: an operation, or a wait, with the tasks waited for."""
        if (running := self._steps.get(step)) is None:
            return "does not run the step"
        control, rendezvous = running
        operation = getattr(control, "operation", None)
        if operation is not None and (node := operation()) is not None:
            return f"is at {node.op.name} {node.name!r}{f' ({node.source})' if node.source else ''}"
        awaited = sorted(rendezvous.awaited())
        if awaited:
            return f"waits for {parse_key(awaited[0]).edge_name!r} of {source_task(awaited[0])}"
        return "runs the step"
