"""What is said of a choice that was not taken."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from flowrt.plan.choice import Choice
from flowrt.plan.explain import others
from flowrt.plan.planning import Candidate, Planned
from flowrt.plan.replay.step_times import Played, PlayedClass
from flowrt.plan.stage_search import Estimate, Machine


def candidate(sharding: int, reduced: float) -> Candidate:
    """A step of 1 ms of computing, and ``reduced`` seconds of waiting for all-reduces."""
    waits = {"all_reduce": np.array([reduced])}
    step = PlayedClass(0, 1e-3, np.array([1e-3]), waits, np.array([0.0]))
    choice = Choice(dp=2, sharding=sharding)
    return Candidate(Estimate(choice, 1e-3, 1, {}), (), Played(1e-3 + reduced, (step,), {}))


@pytest.mark.parametrize(
    ("reduced", "said"),
    [(3e-3, "2 ms more of waiting for all-reduces"), (1e-3, "as fast")],
    ids=["slower", "as fast"],
)
def test_a_choice_is_slower_by_a_part_of_its_step_or_as_fast(reduced: float, said: str) -> None:
    planned = Planned((candidate(1, 1e-3), candidate(2, reduced)), (), (), 2)
    (other,) = others(planned, cast("Machine", None))
    assert (other.choice, other.why) == ("dp=2 sharding=2", said)
