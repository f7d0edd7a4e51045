"""Groups of some ranks of a joined group: the same links, ranks numbered anew."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from flowrt.distribute.collectives import Group, join
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.errors import AbortedError, DeadlineExceededError, InvalidArgumentError
from flowrt.executor.program.group_steps import end_groups
from flowrt.executor.program.runner import StepControl
from flowrt.graph.resources.groups import (
    JoinedMember,
    joined_member,
    joined_rank,
    member_of,
    ranks_here,
    split_key,
)

_numbers = itertools.count()
NAMES = [f"rank (axis={i})" for i in range(4)]


@contextmanager
def joined(kind: str, size: int = 4, timeout_s: float = 60.0) -> Iterator[str]:
    """The key of a group with all ranks here."""
    key = f"to split {next(_numbers)}"
    with ReservedPorts(1) as reserved:
        addresses = [f"127.0.0.1:{reserved.ports[0]}"] * size
        group = Group(key, size, tuple(range(size)))
        with join(group, addresses, kind, timeout_s, names=NAMES[:size]):
            yield key


def begin(key: str, ranks: Sequence[int], value: float, edge: str) -> None:
    """The start of the sum of ``value`` and the rank's number, for each of ``ranks``."""
    attrs = {"reduction": "sum", "plan": ""}
    for rank in ranks:
        array = np.full(3, value + joined_rank(key, rank)[1])
        member_of(key, rank).start(edge, "AllReduce", [array], attrs)


@pytest.mark.parametrize("kind", ["grpc", "shared_memory"])
def test_rows_and_columns_reduce_in_turn_over_one_set_of_links(kind: str) -> None:
    with joined(kind) as key:
        assert ranks_here(key) == (0, 1, 2, 3)
        rows = [split_key(key, "row", ranks) for ranks in ((0, 1), (2, 3))]
        columns = [split_key(key, "column", ranks) for ranks in ((0, 2), (3, 1))]
        for value in (10.0, 20.0):
            for group in (*rows, *columns):
                begin(group, (0, 1), value, f"{group} {value}")
            begin(key, range(4), value, f"all {value}")
            for group, numbers in zip((*rows, *columns), (1, 5, 2, 4), strict=True):
                for rank in (0, 1):
                    (found,) = member_of(group, rank).wait(f"{group} {value}")
                    assert list(found) == [2 * value + numbers] * 3
            for rank in range(4):
                assert list(member_of(key, rank).wait(f"all {value}")[0]) == [4 * value + 6] * 3
        member_of(rows[1], 0).send(1, "edge", np.arange(3.0))
        assert list(member_of(rows[1], 1).receive(0, "edge").view(np.float64)) == [0, 1, 2]


def test_a_rank_that_does_not_come_is_named_with_its_part_of_the_group() -> None:
    with joined("grpc", timeout_s=3.0) as key:
        row = split_key(key, "row", (2, 3))
        begin(row, [0], 1.0, "sum")
        with pytest.raises(DeadlineExceededError, match=r"group 'row': rank \(axis=2\) .* rank \(axis=3\)"):
            member_of(row, 0).wait("sum")


def test_plans_are_compared_once() -> None:
    def agree(plans: Sequence[str]) -> list[Any]:
        members: list[JoinedMember] = [joined_member(key, rank) for rank in range(2)]
        return [member.agree(plan, str) for member, plan in zip(members, plans, strict=True)]

    with joined("grpc", size=2) as key:
        for wait in [*agree(["a\nb", "a\nb"]), *agree(["a\nb", "a\nb"])]:
            wait()
        for wait in agree(["a\nc", "a\nd"]):
            with pytest.raises(InvalidArgumentError, match=r"number 2, c at .* and d at"):
                wait()


@pytest.mark.parametrize("is_split", [False, True])
def test_a_step_that_fails_ends_when_collectives_use_its_memory_no_more(is_split: bool) -> None:
    """Here one is in the midst of a call, which no error reaches, when another operation fails."""
    with joined("grpc", 2) as key:
        begun, may_end, ended = threading.Event(), threading.Event(), list[bool]()

        def call(communicator: Any) -> None:
            begun.set()
            may_end.wait()
            ended.append(True)

        member: Any = joined_member(key, 0)
        member.begin("in its midst", call)
        assert begun.wait(60.0)  # what has not begun is left out
        timer = threading.Timer(0.1, may_end.set)
        timer.start()
        failed = split_key(key, "row", (0, 1)) if is_split else key
        end_groups([(failed, 0)], AbortedError("another operation failed"), StepControl())
        assert ended
        timer.join()
