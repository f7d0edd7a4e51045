"""Every algorithm by itself: who ends with what, in how many steps, with how many messages and bytes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.graph.collectives.algorithms import ALGORITHMS, Group, algorithms_for
from flowrt.graph.collectives.cost import (
    DEFAULT_LINKS,
    LINKS_VARIABLE,
    Link,
    Links,
    cheapest,
    format_links,
    links_of,
    parse_links,
    schedule_of,
    seconds,
    traffic,
)
from flowrt.graph.collectives.ends import ends, gets, gives
from flowrt.graph.collectives.schedule import Schedule, Transfer, offset

NAMES = [(kind, name) for kind, found in ALGORITHMS.items() for name in found]
POWERS = (2, 4, 8, 16)
A, B = 50e-6, 1e-9  # of the numbers that the formulas are quoted with
LINKS = Links(Link(A, B), Link(A, B))


def apart(p: int, root: int = 0) -> Group:
    """Each rank in a task of its own."""
    return Group(tuple(range(p)), root)


# --- what ranks end with


def played(kind: str, schedule: Schedule, root: int) -> list[dict[int, list[int]]]:
    """For each rank and chunk the ranks whose values it is made of, when the schedule was played."""
    state: list[dict[int, list[int]]] = [{} for _ in range(schedule.ranks)]
    for rank in range(schedule.ranks):
        if (before := ends(kind, schedule, rank, root).before) is not None:
            state[rank] = {chunk: [rank] for chunk in range(*before)}
    for step in schedule.steps:
        sent = [(t, {c: state[t.source][c] for c in range(t.first, t.end)}) for t in step]
        for transfer, chunks in sent:
            own = state[transfer.target]
            own |= {c: own[c] + made if transfer.reduces else made for c, made in chunks.items()}
    return state


def wanted(kind: str, p: int, root: int, chunk: int) -> list[int]:
    if kind in ("Broadcast", "Scatter"):
        return [root]
    if kind in ("AllGather", "Gather"):
        return [chunk]
    return [chunk // p] if kind == "AllToAll" else list(range(p))


@given(st.sampled_from(NAMES), st.lists(st.integers(0, 3), min_size=1, max_size=17), st.integers(0, 16))
@settings(max_examples=3 * settings.default.max_examples, deadline=None)
def test_ranks_end_with_what_the_kind_says(which: tuple[str, str], tasks: list[int], root: int) -> None:
    kind, name = which
    p = len(tasks)
    group = Group(tuple(tasks), root % p)
    if name not in algorithms_for(kind, group):
        return
    schedule = schedule_of(kind, name, group)
    state = played(kind, schedule, group.root)
    for rank in range(p):
        after = ends(kind, schedule, rank, group.root).after
        assert bool(after) == gets(kind, rank, group.root)
        for interval in after:
            for chunk in range(*interval):
                assert sorted(state[rank][chunk]) == wanted(kind, p, group.root, chunk)
    for step in schedule.steps:  # one send and one receive a rank
        assert len({t.source for t in step}) == len({t.target for t in step}) == len(step)


def test_who_gives_and_who_gets() -> None:
    assert [gives("Broadcast", rank, 1) for rank in range(3)] == [False, True, False]
    assert [gets("Gather", rank, 1) for rank in range(3)] == [False, True, False]
    assert gives("AllReduce", 2, 0)
    assert gets("AllReduce", 2, 0)


@given(st.integers(0, 100), st.integers(1, 20))
def test_chunks_are_as_numpys(size: int, chunks: int) -> None:
    sizes = [offset(c + 1, size, chunks) - offset(c, size, chunks) for c in range(chunks)]
    assert sizes == [size // chunks + (c < size % chunks) for c in range(chunks)]


# --- what it takes


@pytest.mark.parametrize("p", POWERS)
def test_the_formulas(p: int) -> None:
    log, nbytes = math.log2(p), 4096.0 * p  # of the payload, or of all ranks' parts together

    def took(kind: str, name: str) -> float:
        return seconds(schedule_of(kind, name, apart(p)), tuple(range(p)), nbytes, LINKS)

    tree = (A + B * nbytes) * log
    assert took("Broadcast", "tree") == pytest.approx(tree)
    assert took("Reduce", "tree") == pytest.approx(tree)
    assert took("AllReduce", "tree") == pytest.approx(2 * tree)
    rooted = A * log + (p - 1) * B * nbytes / p  # nbytes / p a rank
    assert took("Gather", "tree") == pytest.approx(rooted)
    assert took("Scatter", "tree") == pytest.approx(rooted)
    ring = (p - 1) * (A + B * nbytes / p)
    assert took("AllGather", "ring") == pytest.approx(ring)
    assert took("ReduceScatter", "ring") == pytest.approx(ring)
    assert took("AllReduce", "ring") == pytest.approx(2 * ring)
    assert took("AllGather", "hypercube") == pytest.approx(rooted)
    assert took("ReduceScatter", "halving_doubling") == pytest.approx(rooted)
    assert took("AllReduce", "halving_doubling") == pytest.approx(2 * rooted)


def test_the_published_numbers() -> None:
    """Gloo's: p = 8, 50 us, 1 GB/s."""

    def took(name: str, nbytes: float) -> float:
        return 1000 * seconds(schedule_of("AllReduce", name, apart(8)), tuple(range(8)), nbytes, LINKS)

    assert took("halving_doubling", 4e3) == pytest.approx(0.31, abs=0.005)
    assert took("ring", 4e3) == pytest.approx(0.71, abs=0.005)
    assert took("halving_doubling", 64e6) == pytest.approx(112.3, abs=0.05)
    assert took("ring", 64e6) == pytest.approx(112.7, abs=0.05)


@pytest.mark.parametrize("p", (1, 2, 3, 4, 5, 8, 13))
def test_a_ring_sends_the_least_there_can_be(p: int) -> None:
    nbytes = 4.0 * p * 100
    schedule = schedule_of("AllReduce", "ring", apart(p))
    assert len(schedule.steps) == 2 * (p - 1)
    for rank in range(p):
        sent = traffic(schedule, nbytes, rank)
        assert sent.messages == 2 * (p - 1)
        assert sent.nbytes == pytest.approx(2 * (p - 1) / p * nbytes)


def test_between_tasks_goes_once_a_task() -> None:
    tasks = (0, 0, 0, 0, 1, 1, 1, 1)
    schedule = schedule_of("AllReduce", "hierarchical", Group(tasks))
    crossing = [t for t in schedule.messages() if tasks[t.source] != tasks[t.target]]
    assert sum((t.end - t.first) / schedule.chunks for t in crossing) == 2  # each task sends half, twice


# --- the choice


def test_the_cheapest_by_size() -> None:
    group = apart(8)
    assert cheapest("AllReduce", group, 4, LINKS) == "halving_doubling"
    assert cheapest("AllReduce", apart(5), 1 << 30, LINKS) == "ring"  # no power of two: two steps of all more
    assert cheapest("AllGather", group, 8, LINKS) == "hypercube"
    assert cheapest("ReduceScatter", apart(6), 8, LINKS) == "ring"


def test_the_devices_of_a_process_share_its_memory() -> None:
    for nbytes in (4, 1 << 20, 1 << 28):
        assert cheapest("AllReduce", Group((0,) * 4), nbytes) == "tree"  # the fewest bytes in all


def test_hosts_that_are_far_apart() -> None:
    links = Links(inside=Link(1e-6, 1e-11), between=Link(A, B))
    assert cheapest("AllReduce", Group((0, 0, 0, 0, 1, 1, 1, 1)), 1 << 26, links) == "hierarchical"
    assert cheapest("AllReduce", Group((0, 1) * 4), 1 << 26, links) == "hierarchical"


NEAR, FAR = "between=1e-4,1e-12", "between=1e-9,1e-9"
"""Where messages cost, and where bytes do."""


def test_links_that_were_measured_choose() -> None:
    assert cheapest("AllReduce", apart(5), 1 << 16, parse_links(NEAR)) == "halving_doubling"
    assert cheapest("AllReduce", apart(5), 1 << 16, parse_links(FAR)) == "ring"


@given(st.lists(st.floats(0, 10), min_size=4, max_size=4))
def test_links_are_read_as_they_are_written(numbers: list[float]) -> None:
    links = {"inside": Link(*numbers[:2]), "between": Link(*numbers[2:])}
    found = [number for link in parse_links(format_links(links)) for number in link]
    assert found == pytest.approx(numbers, rel=0.005)


def test_what_is_not_said_of_links_is_as_it_was() -> None:
    assert links_of({}) == links_of({LINKS_VARIABLE: ""}) == DEFAULT_LINKS
    found = links_of({LINKS_VARIABLE: "between=1e-3,2e-9"})
    assert found == DEFAULT_LINKS._replace(between=Link(1e-3, 2e-9))


@pytest.mark.parametrize(
    "text",
    ["1e-3,2e-9", "between=1e-3", "inside=1,2,3", "beside=1,2", "inside=-1,0", "inside=nan,0", "inside=a,b"],
)
def test_links_that_are_none(text: str) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"FLOWRT_LINKS: expected 'inside=.*--probe prints the value"
    ):
        links_of({LINKS_VARIABLE: text})


def test_without_a_size_payloads_stay_whole() -> None:
    assert cheapest("AllReduce", apart(8), None) == "tree"


def test_names_that_are_none() -> None:
    with pytest.raises(InvalidArgumentError, match=r"AllReduce: expected .* ring, tree, .*; got 'rign'"):
        schedule_of("AllReduce", "rign", apart(2))
    with pytest.raises(InvalidArgumentError, match=r"one of ring for 6 ranks; got 'halving_doubling'"):
        schedule_of("ReduceScatter", "halving_doubling", apart(6))


def test_a_schedule_checks_its_transfers() -> None:
    for bad in (Transfer(0, 0, 0, 1, False), Transfer(0, 2, 0, 1, False), Transfer(0, 1, 1, 1, False)):
        with pytest.raises(InvalidArgumentError, match="step 0: expected a transfer between two"):
            Schedule(2, 1, ((bad,),))


def test_what_one_rank_does() -> None:
    schedule = schedule_of("Broadcast", "tree", apart(4))
    assert [(number, t.source, t.target) for number, t in schedule.of(2)] == [(0, 0, 2), (1, 2, 3)]
