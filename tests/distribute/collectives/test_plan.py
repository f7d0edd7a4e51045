"""`check_plan`: ranks that differ all learn where."""

from __future__ import annotations

from typing import Any

import pytest

from flowrt.distribute.collectives.plan import check_plan
from flowrt.errors import InvalidArgumentError
from tests.distribute.collectives.ranks import run_threads, thread_group

SAME = "Broadcast 'w' float32[3]\nAllReduce 'loss' float32[]"


def outcomes(plans: list[str]) -> list[Any]:
    def outcome(communicator: Any) -> Any:
        try:
            return check_plan(communicator, plans[communicator.rank])
        except InvalidArgumentError as error:
            return error.message

    with thread_group("local", len(plans)) as communicators:
        return run_threads(communicators, outcome)


def test_one_plan_is_silent() -> None:
    assert outcomes([SAME] * 3) == [None] * 3


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(
    ("plan", "number", "line"),
    [
        (SAME.replace("float32[3]", "float64[3]"), 1, "Broadcast 'w' float64[3]"),
        (SAME + "\nBarrier 'end'", 3, "Barrier 'end'"),
        (SAME.splitlines()[0], 2, "none"),
    ],
)
def test_the_first_line_that_differs_is_shown_of_both(rank: int, plan: str, number: int, line: str) -> None:
    plans = [SAME] * 3
    plans[rank] = plan
    own = [*SAME.splitlines(), "none"][number - 1]
    for message in outcomes(plans):
        assert f"as number {number}, " in message
        assert line in message
        assert own in message
        assert "at rank 0" in message
        assert f"at rank {rank or 1}" in message
