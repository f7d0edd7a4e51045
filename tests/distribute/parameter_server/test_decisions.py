"""What is decided without a graph: modes, places of variables, homes of shards."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.distribute.parameter_server.consistency import (
    Async,
    Backup,
    StaleSynchronous,
    Sync,
    as_mode,
    policy_of,
)
from flowrt.distribute.parameter_server.homes import Home, Seen, find_home
from flowrt.distribute.parameter_server.placement import MIN_PART_BYTES, ByteBalancer
from flowrt.errors import InvalidArgumentError, UnavailableError
from flowrt.graph.resources.parameter_shard import Policy


@pytest.mark.parametrize(
    ("said", "mode", "policy"),
    [
        ("sync", Sync(), Policy(4, 4, None)),
        ("async", Async(), Policy(4, 1, None)),
        (("ssp", 0), StaleSynchronous(0), Policy(4, 4, None)),
        (("ssp", 3), StaleSynchronous(3), Policy(4, 1, 3)),
        (["backup", 1], Backup(1), Policy(4, 3, None, is_backup=True)),
        (("backup", 3), Backup(3), Policy(4, 1, None, is_backup=True)),
        (Backup(0), Backup(0), Policy(4, 4, None)),
    ],
)
def test_a_mode_says_what_a_shard_does(said, mode, policy):
    assert as_mode(said) == mode
    assert policy_of(mode, 4, False) == policy
    assert policy_of(mode, 4, True).is_replicated


@pytest.mark.parametrize(
    "said", ["ssp", "Sync", ("ssp",), ("sync", 1), ("ssp", -1), ("backup", 1.5), 3, (), None]
)
def test_what_is_no_mode_is_refused(said):
    with pytest.raises(InvalidArgumentError, match=r"mode: expected 'sync', 'async', \('ssp', staleness\)"):
        as_mode(said)


def test_not_all_workers_can_be_spares():
    with pytest.raises(InvalidArgumentError, match="Backup: expected 0 to 2 of 3 workers; got 3"):
        policy_of(Backup(3), 3, False)


# --- places

shapes = st.lists(st.lists(st.integers(1, 2000), min_size=0, max_size=2), max_size=20)


@given(st.integers(1, 8), shapes)
def test_every_row_has_one_server_and_no_server_has_much_more_than_another(servers, shapes):
    balancer = ByteBalancer(servers, 1 << 12)
    largest = 0
    for shape in shapes:
        parts = balancer.place(shape, 4)
        rows = shape[0] if shape else 1
        assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))
        assert len({part.server for part in parts}) == len(parts)
        largest = max(largest, *((p.stop - p.start) * math.prod(shape[1:]) * 4 for p in parts))
    assert sum(balancer.loads) == sum(math.prod(shape) * 4 for shape in shapes)
    assert max(balancer.loads) - min(balancer.loads) <= 2 * largest


def test_a_large_variable_is_split_evenly_and_a_small_one_is_not():
    balancer = ByteBalancer(4)
    assert [p.server for p in balancer.place([5 * MIN_PART_BYTES // 40, 10], 4)] == [0, 1, 2, 3]
    assert max(balancer.loads) - min(balancer.loads) <= 40
    assert len(balancer.place([100, 10], 4)) == 1
    assert balancer.place([], 8)[0][1:] == (0, 1)


# --- homes


def test_a_shard_begins_on_its_own_server_with_its_replica_on_the_next():
    assert [find_home(i, 3, {}, [0, 1, 2]) for i in range(3)] == [Home(0, 1), Home(1, 2), Home(2, 0)]


def test_the_replica_takes_over_and_the_next_server_keeps_the_new_one():
    seen = {1: Seen(False, 1, 7)}
    assert find_home(0, 3, seen, [1, 2]) == Home(1, 2)
    assert find_home(0, 2, seen, [1]) == Home(1, 1)


def test_the_last_generation_wins_over_a_primary_that_was_replaced():
    seen = {0: Seen(True, 1, 9), 1: Seen(True, 2, 8)}
    assert find_home(0, 2, seen, [0, 1]) == Home(1, 0)
    assert find_home(0, 2, {0: Seen(True, 1, 9), 1: Seen(False, 1, 9)}, [0, 1]) == Home(0, 1)


def test_a_server_that_came_back_without_its_state_keeps_the_replica():
    assert find_home(0, 2, {1: Seen(True, 2, 8)}, [0, 1]) == Home(1, 0)


def test_a_shard_without_a_server_is_lost():
    with pytest.raises(UnavailableError, match=r"shard 0.*all servers with the state are lost"):
        find_home(0, 2, {}, [1])
