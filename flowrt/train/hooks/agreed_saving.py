"""Checkpoints and summaries where workers have graphs of their own: the first one writes, all read.

A variable that each replica of all workers has written for itself (synchronization ON_READ) has one value
only when all of them are asked. So the first worker's hook tells the others in every run whether it is going
to save after it:

    first worker   CheckpointSaverHook   due, by its steps or its clock   --agreed-->   reads, writes
    the others     SavePartnerHook                                        --agreed-->   read

A summary of what all workers compute together (`Strategy.reduce`) is fetched by all of them, in the runs in
which the first one's clock says so: each has a `SummarySaverHook`, and those of the others write nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from flowrt.dtypes import int32
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Operation, get_default_graph
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.coordination.coordinator import Coordinator
from flowrt.train.hooks.basic_session_run_hooks import required_global_step
from flowrt.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from flowrt.variables.variable import GraphKeys, global_variables


def strategy_of_workers() -> Any:
    """The strategy of the default graph's variables, if each of its workers has a graph of its own and
    initializes it; else None.
    """
    for variable in global_variables():
        strategy = getattr(variable, "strategy", None)
        if strategy is not None and strategy.extended.initializes_each_graph:
            return strategy
    return None


def needs_all_workers(fetches: Sequence[Any]) -> bool:
    """Whether to run ``fetches`` takes ranks of a group that are not in the default graph."""
    graph = get_default_graph()
    ahead = [graph.as_graph_element(fetch) for fetch in fetches]
    ahead = [each if isinstance(each, Operation) else each.op for each in ahead]
    seen = set(ahead)
    while ahead:
        op = ahead.pop()
        attrs = op.node.attrs
        if "group_size" in attrs and len(attrs["ranks"]) < attrs["group_size"]:
            return True
        new = {*(tensor.op for tensor in op.inputs), *op.control_inputs} - seen
        seen |= new
        ahead += new
    return False


def summaries_of(scaffold: Scaffold) -> list[Any]:
    """What the summary operation of ``scaffold`` runs, or is going to be made of."""
    if scaffold.summary_op is not None:
        given = scaffold.summary_op
        return list(given) if isinstance(given, list | tuple) else [given]
    graph = get_default_graph()
    return graph.get_collection(GraphKeys.SUMMARY_OP) or graph.get_collection(GraphKeys.SUMMARIES)


@final
class SaveAgreement:
    """Of a run: ``due`` is what the first worker feeds, ``agreed`` what all fetch."""

    def __init__(self, strategy: Any, name: str) -> None:
        with get_default_graph().name_scope(name):
            self._due = placeholder(int32, [])
            self._agreed = strategy.extended.broadcast_to(self._due, strategy.extended.worker_devices[0])

    @staticmethod
    def of_graph() -> SaveAgreement | None:
        """None where nobody else has to be asked for the variables' values."""
        strategy = strategy_of_workers()
        is_shared = any(variable.shared_value is not None for variable in global_variables())
        return SaveAgreement(strategy, "save_agreement") if strategy is not None and is_shared else None

    @staticmethod
    def of_summaries(summaries: Sequence[Any]) -> SaveAgreement | None:
        """None where the first worker can compute ``summaries`` alone."""
        strategy = strategy_of_workers()
        if strategy is None or not needs_all_workers(summaries):
            return None
        return SaveAgreement(strategy, "summary_agreement")

    def asked(self, global_step: Any, is_due: bool) -> SessionRunArgs:
        """Of the run: its results are the step after it, and whether all save."""
        return SessionRunArgs([global_step, self._agreed], {self._due: int(is_due)})

    def settled(self, session: Any, is_due: bool) -> bool:
        """Whether all do it, before the run: all workers ask at once, and wait for the first one's word."""
        return bool(session.run(self._agreed, {self._due: int(is_due)}))


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
