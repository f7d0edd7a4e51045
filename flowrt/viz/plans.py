"""The plan of a step to show: of the given session, else of an equivalent one created for this.

    CompileRequest -> Session.plan_of -> settled Plan -> read(plan)

A plan is read while its session is open. Nothing runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from flowrt.errors import FailedPreconditionError
from flowrt.executor.ends.config import ConfigProto
from flowrt.executor.plan.plan import Plan
from flowrt.executor.plan.plan_description import settled
from flowrt.executor.session.session import BaseSession, Session
from flowrt.viz.compile_request import CompileRequest

THIS_PROCESS = ("localhost", 0, 0)
"""Job, replica and task of the devices of a session without a cluster."""

OF_TASKS = "the tasks of the cluster plan their parts: flowrt explain grpc://host:port asks one"

T = TypeVar("T")


def read_plan(
    asked: CompileRequest, read: Callable[[Plan], T], session: BaseSession | None = None
) -> tuple[T | None, str]:
    """The result of ``read`` for the plan of ``asked`` in ``session``; None, and the reason, if the devices
    are not of this process. Raises the errors of `Session.run` if the step does not compile.
    """
    if session is not None:
        return _read(session, asked, read)
    kinds = [device.device_type or "" for device in asked.options.devices]
    if {(device.job, device.replica, device.task) for device in asked.options.devices} != {THIS_PROCESS}:
        return None, OF_TASKS
    if set(kinds) - {"CPU", "NULL"}:
        return None, "it asks for devices that are planned where they are"
    config = ConfigProto(device_count=Counter(kinds), allow_soft_placement=True)
    with closing(Session(graph=asked.graph, config=config)) as made:
        try:
            return _read(made, asked, read)
        except FailedPreconditionError as error:  # datasets and Python functions are not in a file
            return None, error.message


def _read(session: BaseSession, asked: CompileRequest, read: Callable[[Plan], T]) -> tuple[T | None, str]:
    plan = session.plan_of([*asked.tensors, *asked.targets], asked.feeds)
    return (None, OF_TASKS) if plan is None else (read(settled(plan)), "")
