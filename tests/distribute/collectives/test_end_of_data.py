"""The end of the data at one rank: its step waits there for the others, as long as a step may."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute import collectives
from flowrt.distribute.collectives import JoinedGroup
from flowrt.errors import CancelledError, DeadlineExceededError, OpError, OutOfRangeError
from tests.contracts.check_transport import wait_until
from tests.distribute.collectives.group_parts import SOON_S, at_once, parts_of


def reduce_values(part: JoinedGroup, count: int, lowering: str, session: tf.Session, **options: Any) -> Any:
    """A step of ``part`` over data of ``count`` elements."""
    with session.graph.as_default():
        value = tf.data.Dataset.from_tensor_slices(np.ones((count, 4))).make_one_shot_iterator().get_next()
        total = collectives.all_reduce([value], group=part.group, lowering=lowering)
    return session.run(total, **options)


def step(part: JoinedGroup, count: int, lowering: str = "native", **options: Any) -> Any:
    with tf.Session(graph=tf.Graph()) as session:
        return reduce_values(part, count, lowering, session, **options)


@pytest.mark.parametrize("lowering", ["native", "ring"])
@pytest.mark.parametrize("kind", ["grpc", "shared_memory"])
def test_data_that_ends_at_one_rank_ends_the_steps_of_all(kind: str, lowering: str) -> None:
    def some(part: JoinedGroup) -> Any:
        return step(part, 1, lowering)

    with parts_of([(0,), (1,), (2,)], kind) as joined:
        errors = at_once(joined, [some, lambda part: step(part, 0, lowering), some])
        again = at_once(joined, [some] * 3)
    assert [type(error) for error in errors] == [OutOfRangeError] * 3
    assert "rank 1" in errors[0].message
    assert "end of data" in errors[0].message
    assert all(isinstance(error, OpError) for error in again)  # the group has ended


def test_who_waits_at_the_end_of_the_data_waits_until_the_deadline() -> None:
    options = tf.RunOptions(timeout_in_ms=1000)
    with parts_of([(0,), (1,)]) as joined:  # the group's own patience is a minute
        at_once(joined[:1], [lambda part: step(part, 0, options=options)])
        (error,) = at_once(joined[1:], [lambda part: step(part, 1)])
    assert isinstance(error, DeadlineExceededError)
    assert "1000 ms" in error.message


def test_who_waits_at_the_end_of_the_data_waits_until_the_session_is_closed() -> None:
    with parts_of([(0,), (1,)]) as joined, ThreadPoolExecutor(1) as pool:
        (thread,) = [member._thread for member in joined[0].members]
        with tf.Session(graph=tf.Graph()) as session:
            waiting = pool.submit(reduce_values, joined[0], 0, "native", session)
            wait_until(lambda: not thread.wait_until_idle(0), "rank 0 has come to the end")
        with pytest.raises(CancelledError, match="the session was closed"):
            waiting.result(SOON_S)
        (error,) = at_once(joined[1:], [lambda part: step(part, 1)])
    assert isinstance(error, CancelledError)
    assert "the session was closed" in error.message
