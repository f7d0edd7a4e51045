"""Checkpoints where workers have graphs of their own: the first one writes, all read what is saved.

A variable that each replica of all workers has written for itself (synchronization ON_READ) has one value
only when all of them are asked. So the first worker's hook tells the others in every run whether it is going
to save after it:

    first worker   CheckpointSaverHook   due, by its steps or its clock   --agreed-->   reads, writes
    the others     SavePartnerHook                                        --agreed-->   read
"""

from __future__ import annotations

from typing import Any, final

from flowrt.dtypes import int32
from flowrt.graph.graph import get_default_graph
from flowrt.graph.ops.constant import placeholder
from flowrt.train.basic_session_run_hooks import required_global_step
from flowrt.train.coordinator import Coordinator
from flowrt.train.scaffold import Scaffold
from flowrt.train.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from flowrt.variables import global_variables


def strategy_of_workers() -> Any:
    """The strategy of the default graph's variables, if each of its workers has a graph of its own and
    initializes it; else None.
    """
    for variable in global_variables():
        strategy = getattr(variable, "strategy", None)
        if strategy is not None and strategy.extended.initializes_each_graph:
            return strategy
    return None


@final
class SaveAgreement:
    """Of a run: ``due`` is what the first worker feeds, ``agreed`` what all fetch."""

    def __init__(self, strategy: Any) -> None:
        with get_default_graph().name_scope("save_agreement"):
            self._due = placeholder(int32, [])
            self._agreed = strategy.extended.broadcast_to(self._due, strategy.extended.worker_devices[0])

    @staticmethod
    def of_graph() -> SaveAgreement | None:
        """None where nobody else has to be asked for the variables' values."""
        strategy = strategy_of_workers()
        is_shared = any(variable.shared_value is not None for variable in global_variables())
        return SaveAgreement(strategy) if strategy is not None and is_shared else None

    def asked(self, global_step: Any, is_due: bool) -> SessionRunArgs:
        """Of the run: its results are the step before it, and whether all save."""
        return SessionRunArgs([global_step, self._agreed], {self._due: int(is_due)})


@final
class SavePartnerHook(SessionRunHook):
    """Does of a checkpoint what all workers have to do, when `CheckpointSaverHook` of the first one saves."""

    def __init__(self, scaffold: Scaffold) -> None:
        self._scaffold = scaffold
        self._last_step = -1

    def begin(self) -> None:
        self._agreement, self._step = SaveAgreement.of_graph(), required_global_step(self)

    def after_create_session(self, session: Any, coord: Coordinator) -> None:
        self._take_part(session)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        return None if self._agreement is None else self._agreement.asked(self._step, False)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._agreement is not None and run_values.results[1]:
            self._take_part(run_context.session)

    def end(self, session: Any) -> None:
        if self._agreement is not None and int(session.run(self._step)) != self._last_step:
            self._take_part(session)

    def _take_part(self, session: Any) -> None:
        if self._agreement is not None:
            self._last_step = int(session.run(self._step))
            self._scaffold.saver.take_part(session)
