"""`Steps`: what ends a step that no thread waits for, and what its errors keep."""

from __future__ import annotations

from typing import Any, cast

import pytest

from flowrt.distribute.machines.events import StartStep, StepEnded
from flowrt.distribute.observe.observer import Observer
from flowrt.distribute.worker.steps import Steps
from flowrt.errors import DeadlineExceededError, InvalidArgumentError, OpError, Origin
from flowrt.graph.evaluate import located
from flowrt.graph.text.graph_text import parse_subgraph
from flowrt.rendezvous.remote import RemoteRendezvous
from tests.contracts.check_transport import wait_until

HERE, THERE = "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"
KEY = f"{THERE}/device:CPU:0;1;{HERE}/device:CPU:0;x:0;0:0"


def new_step(timeout_ms: int) -> tuple[Steps, StartStep, list[StepEnded]]:
    """The steps of a task, one to begin, and those that have ended."""
    ended: list[StepEnded] = []
    steps = Steps(HERE, cast(Any, None), ended.append, Observer(HERE, 1))
    rendezvous = RemoteRendezvous(HERE, lambda task, keys: None)
    fields = dict.fromkeys(StartStep._fields) | {"step": 7, "timeout_ms": timeout_ms, "trace_level": 0}
    return steps, StartStep(**cast(Any, fields | {"rendezvous": rendezvous})), ended


@pytest.mark.parametrize("timeout_ms", [0, 1, 3_600_000])
def test_a_step_that_waits_on_no_thread_ends_at_its_deadline(timeout_ms: int) -> None:
    steps, start, _ = new_step(timeout_ms)
    control, rendezvous = steps.begin(start), start.rendezvous
    told: list[OpError | None] = []
    rendezvous.recv_async(KEY, lambda value, error: told.append(error))
    if timeout_ms == 1:
        wait_until(lambda: control.remaining_s() == 0, "the deadline has passed", 30.0)
    steps.end_late([(7, rendezvous)])
    assert [type(error) for error in told] == [DeadlineExceededError] * (timeout_ms == 1)
    assert (control.cancelled is None) == (timeout_ms != 1)


def test_a_step_of_which_a_value_is_not_fetched_by_its_deadline_does_not_end_well() -> None:
    """Its programs have succeeded, which helps nobody who needs that value."""
    steps, start, ended = new_step(1)
    control = steps.begin(start)
    start.rendezvous.send(f"{HERE}/device:CPU:0;1;{THERE}/device:CPU:0;x:0;0:0", 1.0)
    steps.finish(start, [2.0])
    assert ended == []
    wait_until(lambda: control.remaining_s() == 0, "the deadline has passed", 30.0)
    steps.end_late([(7, start.rendezvous)])
    (end,) = ended
    assert type(end.error) is DeadlineExceededError
    assert end.values == ()


def test_an_error_that_names_its_operation_keeps_its_task() -> None:
    (node,) = parse_subgraph("%n = NoOp()")
    error = InvalidArgumentError("no such value")
    error.origin = Origin(THERE, True)
    assert located(node, error).origin == Origin(THERE, True)
    assert located(node, error).op == "n"
