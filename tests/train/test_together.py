"""Processes that act together: each learns what all have found, and of the first error."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flowrt.distribute.collectives.group import Group, join
from flowrt.errors import DataLossError, InvalidArgumentError, OpError, UnknownError
from flowrt.graph.construction.graph import Graph
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.passes.layouts.processes import Own
from flowrt.train.checkpoints.together import ALONE, Together, processes_of
from flowrt.variables.variable import Variable

MESH = Mesh([("dp", 2), ("tp", 2)], [f"/job:pair/task:{i // 2}/device:CPU:{i % 2}" for i in range(4)])


def together(*actions: Callable[[], Any]) -> list[Any]:
    """What two processes, of two ranks each, find or raise, for each of which a thread stands."""
    with join(Group("pair", 4, (0, 1, 2, 3)), kind="local", timeout_s=20):

        def act(task: int) -> Any:
            processes = Together(Own(MESH, "pair", (2 * task, 2 * task + 1)), "save")
            assert (processes.number, processes.count) == (task, 2)
            try:
                return processes.all(actions[task])
            except BaseException as error:  # noqa: BLE001 (it is what the test looks at)
                return error

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(act, (0, 1)))


def fails(error: BaseException) -> Callable[[], Any]:
    def action() -> Any:
        raise error

    return action


def test_all_learn_what_each_has_found() -> None:
    long = ["ä" * 1000, 3]
    assert together(lambda: None, lambda: long) == [[None, long], [None, long]]


def test_an_error_keeps_its_type_and_names_its_process() -> None:
    first, second = together(lambda: 1, fails(DataLossError("lost")))
    assert (type(first), str(first)) == (DataLossError, "process 1: lost")
    assert (type(second), str(second)) == (DataLossError, "lost")


def test_each_raises_its_own_error_first() -> None:
    found = together(fails(InvalidArgumentError("one")), fails(DataLossError("two")))
    assert [str(error) for error in found] == ["one", "two"]


@pytest.mark.parametrize("error", [KeyboardInterrupt("by hand"), ZeroDivisionError("by zero")])
def test_other_errors_are_unknown_to_the_others(error: BaseException) -> None:
    first, second = together(fails(error), lambda: 1)
    assert first is error
    assert (type(second), str(second)) == (UnknownError, f"process 0: {type(error).__name__}: {error}")


def test_a_process_alone_needs_nobody() -> None:
    assert ALONE.all(lambda: 5) == [5]
    with pytest.raises(OpError, match="lost"):
        ALONE.all(fails(DataLossError("lost")))
    with Graph().as_default():
        assert processes_of([Variable([1.0])], "save") is ALONE
