"""Checkpoints and summaries if each worker has its own graph: the first one writes, all read.

The value of a variable that each replica writes separately (synchronization ON_READ) is computed from the
copies on all workers, and of variables with layouts each worker writes what it has. So in every run the first
worker's hook broadcasts whether it will save afterwards:

    first worker   CheckpointSaverHook   due, by step count or time       --agreed-->   reads, writes
    the others     SavePartnerHook                                        --agreed-->   read, write their part

A summary of a value that all workers compute together (`Strategy.reduce`) is fetched by all of them, in the
runs for which the first one's timer is due: each has a `SummarySaverHook`; those of the others write nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from flowrt.dtypes import int32
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Operation, get_default_graph
from flowrt.graph.layouts.attributes import MESH
from flowrt.graph.passes.layouts.processes import own_of_variable
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
    """The strategy of the graph's variables if each worker has a graph and initializes it; else None."""
    for variable in global_variables():
        strategy = getattr(variable, "strategy", None)
        if strategy is not None and strategy.extended.initializes_each_graph:
            return strategy
    return None


def needs_all_workers(fetches: Sequence[Any]) -> bool:
    """Whether running ``fetches`` involves ranks of a group that are not in the default graph, or layouts."""
    graph = get_default_graph()
    ahead = [graph.as_graph_element(fetch) for fetch in fetches]
    ahead = [each if isinstance(each, Operation) else each.op for each in ahead]
    seen = set(ahead)
    while ahead:
        op = ahead.pop()
        attrs = op.node.attrs
        if MESH in attrs or ("group_size" in attrs and len(attrs["ranks"]) < attrs["group_size"]):
            return True
        new = {*(tensor.op for tensor in op.inputs), *op.control_inputs} - seen
        seen |= new
        ahead += new
    return False


def summaries_of(scaffold: Scaffold) -> list[Any]:
    """The tensors that the summary operation of ``scaffold`` runs or will be built from."""
    if scaffold.summary_op is not None:
        given = scaffold.summary_op
        return list(given) if isinstance(given, list | tuple) else [given]
    graph = get_default_graph()
    return graph.get_collection(GraphKeys.SUMMARY_OP) or graph.get_collection(GraphKeys.SUMMARIES)


@final
class SaveAgreement:
    """A run's agreement whether to save: the first worker feeds ``due``, all fetch ``agreed``."""

    def __init__(self, strategy: Any, name: str) -> None:
        with get_default_graph().name_scope(name):
            self._due = placeholder(int32, [])
            self._agreed = strategy.extended.broadcast_to(self._due, strategy.extended.worker_devices[0])

    @staticmethod
    def of_graph() -> SaveAgreement | None:
        """The agreement, or None if the variables can be saved without the other workers."""
        strategy = strategy_of_workers()
        is_shared = any(
            v.shared_value is not None or own_of_variable(v.op.node.attrs) is not None
            for v in global_variables()
        )
        return SaveAgreement(strategy, "save_agreement") if strategy is not None and is_shared else None

    @staticmethod
    def of_summaries(summaries: Sequence[Any]) -> SaveAgreement | None:
        """None if the first worker can compute ``summaries`` alone."""
        strategy = strategy_of_workers()
        if strategy is None or not needs_all_workers(summaries):
            return None
        return SaveAgreement(strategy, "summary_agreement")

    def asked(self, global_step: Any, is_due: bool) -> SessionRunArgs:
        """Run arguments that fetch the step after the run and the agreement whether all workers save."""
        return SessionRunArgs([global_step, self._agreed], {self._due: int(is_due)})

    def settled(self, session: Any, is_due: bool) -> bool:
        """Whether all workers save, before the run: all ask together and await the first one's answer."""
        return bool(session.run(self._agreed, {self._due: int(is_due)}))


@final
class SavePartnerHook(SessionRunHook):
    """Takes part in the checkpoints of the first worker's `CheckpointSaverHook`, as all must."""

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
