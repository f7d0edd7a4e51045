"""Groups whose ranks are in several graphs: each graph with a session and a thread of its own, joined by real
connections.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute import collectives
from flowrt.distribute.collectives import Group, JoinedGroup, join
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
)
from flowrt.graph.collectives.algorithms import ALGORITHMS, algorithms_for
from flowrt.graph.collectives.algorithms import Group as Places
from flowrt.rendezvous.channel.security import Security
from flowrt.rendezvous.transport import new_transport
from tests.contracts.check_collectives import CollectiveCall, arrays
from tests.distribute.collectives.group_parts import (
    SOON_S,
    Body,
    at_once,
    build_call,
    expected_here,
    on,
    parts_of,
    run_graph,
)


def all_reduce_body(value: Any, times: int = 1, **options: Any) -> Body:
    """Every rank of the part gives ``value``."""

    def body(part: JoinedGroup) -> Any:
        def build(devices: list[str]) -> list[Any]:
            values = on(devices, [value] * len(devices))
            return collectives.all_reduce(values, group=part.group, **options)

        return run_graph(part.group, build, times)

    return body


# --- every kind


CALLS = [
    CollectiveCall("AllReduce", arrays(3, np.float32, 7), {"reduction": "mean"}),
    CollectiveCall("AllReduce", arrays(3, np.int64, 0), {"reduction": "max"}),
    CollectiveCall("AllReduce", arrays(3, np.float16, 30_001), {"reduction": "sum"}),
    CollectiveCall("Reduce", arrays(3, np.float64, 4), {"reduction": "prod", "root": 1}),
    CollectiveCall("Reduce", arrays(3, np.int32, 4), {"root": 2}),
    CollectiveCall("Broadcast", arrays(1, np.float32, 2, 3), {"root": 2}),
    CollectiveCall("Broadcast", arrays(1, np.float32, 5), {"root": 0}),
    CollectiveCall("AllGather", arrays(3, np.float32, 2, 2), {"axis": 1}),
    CollectiveCall("Gather", arrays(3, np.int32, 2), {"root": 0}),
    CollectiveCall("Gather", arrays(3, np.int32, 2, 1), {"root": 2, "axis": 1}),
    CollectiveCall("Scatter", arrays(1, np.float32, 6, 2), {"root": 2}),
    CollectiveCall("Scatter", arrays(1, np.float32, 2, 3), {"root": 1, "axis": 1}),
    CollectiveCall("ReduceScatter", arrays(3, np.float32, 9), {"reduction": "min"}),
    CollectiveCall("ReduceScatter", arrays(3, np.float64, 2, 3), {"axis": 1}),
    CollectiveCall("AllToAll", arrays(3, np.int64, 6), {}),
    CollectiveCall("AllToAll", arrays(3, np.float32, 1, 3), {"axis": 1}),
    CollectiveCall("AllToAll", arrays(3, np.float32, 2, 5), {"axis": 1}),
    CollectiveCall("AllToAll", arrays(3, np.int32, 2), {}),
]


def check_calls(joined: Sequence[JoinedGroup], calls: Sequence[CollectiveCall], lowering: str) -> None:
    def body(part: JoinedGroup) -> list[Any]:
        def build(devices: list[str]) -> list[Any]:
            return [t for call in calls for t in build_call(call, part.group, devices, lowering)]

        return run_graph(part.group, build)

    for part, results in zip(joined, at_once(joined, [body] * len(joined)), strict=True):
        if isinstance(results, OpError):
            raise results
        wanted = [want for call in calls for want in expected_here(call, part.group)]
        for result, want in zip(results, wanted, strict=True):
            assert result.dtype == want.dtype
            np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("lowering", ["native", "auto"])
@pytest.mark.parametrize("kind", ["grpc", "shared_memory"])
def test_native_collectives(kind: str, lowering: str) -> None:
    with parts_of([(0,), (1, 2)], kind) as joined:
        check_calls(joined, CALLS, lowering)


@pytest.mark.parametrize("kind", ["grpc", "shared_memory"])
def test_ranks_of_one_graph_exchange_different_sizes(kind: str) -> None:
    """One of them could be cut evenly."""
    values = [np.arange(2.0 * n).reshape(2, n) for n in (3, 5, 1)]
    with parts_of([(0, 1, 2)], kind) as joined:
        check_calls(joined, [CollectiveCall("AllToAll", values, {"axis": 1})], "native")


def test_collectives_of_a_size_that_cannot_be_native() -> None:
    calls = [CollectiveCall(kind, arrays(3, np.float32, 7), {}) for kind in ("ReduceScatter", "AllReduce")]
    calls.append(CollectiveCall("Scatter", arrays(1, np.float32, 7), {"root": 1}))
    with parts_of([(0, 2), (1,)]) as joined:
        check_calls(joined, calls, "auto")


@pytest.mark.parametrize(
    "lowering", ["ring", "tree", "halving_doubling", "hierarchical", "hypercube", "pairwise"]
)
def test_expanded_collectives(lowering: str) -> None:
    calls = [call for call in CALLS if lowering in algorithms_for(call.kind, Places((0, 1, 2)))]
    with parts_of([(0, 2), (1,)]) as joined:
        check_calls(joined, calls, lowering)


@pytest.mark.parametrize("p", [2, 4, 5])
def test_expanded_collectives_of_one_rank_a_graph(p: int) -> None:
    """Ranks in the middle of a tree pass on parts of what they never gave."""
    roots = {"root": p - 1}
    calls = [CollectiveCall(kind, arrays(p, np.float32, 2 * p), {}) for kind in ("AllReduce", "AllGather")]
    calls += [
        CollectiveCall(kind, arrays(p, np.float32, 2 * p), {}) for kind in ("ReduceScatter", "AllToAll")
    ]
    calls += [CollectiveCall(kind, arrays(p, np.float32, 7), roots) for kind in ("Reduce", "Gather")]
    calls += [CollectiveCall(kind, arrays(1, np.float32, 7), roots) for kind in ("Broadcast", "Scatter")]
    calls += [CollectiveCall("Scatter", arrays(1, np.float32, 2, 2 * p), {"axis": 1, "root": 0})]
    lowerings = sorted(
        {name for call in calls for name in algorithms_for(call.kind, Places(tuple(range(p))))}
    )
    with parts_of([(rank,) for rank in range(p)]) as joined:
        for lowering in lowerings:
            here = [c for c in calls if lowering in algorithms_for(c.kind, Places(tuple(range(p))))]
            check_calls(joined, here, lowering)


@pytest.mark.parametrize("kind, error", [("hccl", UnavailableError), ("bogus", InvalidArgumentError)])
def test_a_communicator_that_is_not_there_is_refused_by_its_name(kind: str, error: type[OpError]) -> None:
    with pytest.raises(error, match=kind):
        collectives.join(Group("g", 1, (0,)), kind=kind)


def test_the_calls_have_every_kind() -> None:
    assert {call.kind for call in CALLS} == ALGORITHMS.keys() - {"Barrier"}


def test_steps_one_after_the_other() -> None:
    with parts_of([(0,), (1,)]) as joined:
        for lowering in ("ring", "native"):
            results = at_once(joined, [all_reduce_body(np.ones(4), 5, lowering=lowering)] * 2)
            np.testing.assert_array_equal(results, [[[2.0] * 4]] * 2)


@pytest.mark.parametrize("lowering", ["native", "tree"])
def test_a_barrier(lowering: str) -> None:
    """Nobody is through before the last has come."""
    come = threading.Event()

    def body(part: JoinedGroup) -> list[Any]:
        def see() -> Any:
            if part.group.ranks == (1,):
                come.set()
            return np.bool_(come.is_set())

        def build(devices: list[str]) -> list[Any]:
            with tf.control_dependencies([tf.py_func(see, [], tf.bool)]):
                (done,) = collectives.barrier(devices, part.group, lowering)
            with tf.control_dependencies([done]):
                return [tf.py_func(see, [], tf.bool)]

        return run_graph(part.group, build)

    with parts_of([(0,), (1,)]) as joined:
        assert at_once(joined, [body, body]) == [[True], [True]]


def test_a_device_goes_on_while_a_native_collective_waits() -> None:
    """The other rank gives its value only when this one has come to what is behind the collective."""
    passed = threading.Event()

    def go_on() -> Any:
        passed.set()
        return np.float32(1)

    def wait() -> Any:
        assert passed.wait(SOON_S)
        return np.float32(1)

    def shaped(tensor: Any) -> Any:
        tensor.set_shape([])
        return tensor

    def second(part: JoinedGroup) -> list[Any]:
        def build(devices: list[str]) -> list[Any]:
            return collectives.all_reduce([shaped(tf.py_func(wait, [], tf.float32))], group=part.group)

        return run_graph(part.group, build)

    def begins(part: JoinedGroup) -> list[Any]:
        def build(devices: list[str]) -> list[Any]:
            value = shaped(tf.py_func(lambda: np.float32(1), [], tf.float32))
            (total,) = collectives.all_reduce([value], group=part.group)
            return [shaped(tf.py_func(go_on, [], tf.float32)) + total]

        return run_graph(part.group, build)

    with parts_of([(0,), (1,)]) as joined:
        assert at_once(joined, [begins, second]) == [[3.0], [2.0]]


def test_gradients_between_graphs() -> None:
    """Of sum(i * y_i) by the values: each rank's is the sum of all weights."""

    def body(part: JoinedGroup) -> list[Any]:
        def build(devices: list[str]) -> list[Any]:
            values = on(devices, [np.ones(2)])
            (total,) = collectives.all_reduce(values, group=part.group)
            return [tf.gradients(tf.reduce_sum(total * (1.0 + part.group.ranks[0])), values)[0]]

        return run_graph(part.group, build)

    with parts_of([(0,), (1,), (2,)]) as joined:
        np.testing.assert_array_equal(at_once(joined, [body] * 3), [[[6.0, 6.0]]] * 3)


def test_native_collectives_of_ranks_in_one_graph() -> None:
    """A step's programs run on a thread each where they wait for each other by other ways than its own."""
    with parts_of([(0, 1, 2)], "local") as joined:
        (results,) = at_once(joined, [all_reduce_body(np.arange(5.0), 3, lowering="native")])
    np.testing.assert_array_equal(results, [np.arange(5.0) * 3] * 3)


# --- counted


@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_ring_sends_its_share(p: int) -> None:
    nbytes = 8 * 12 * p
    with parts_of([(rank,) for rank in range(p)]) as joined:
        before = [part.members[0].communicator.traffic.bytes_sent for part in joined]
        at_once(joined, [all_reduce_body(np.ones(12 * p), lowering="ring")] * p)
        for part, earlier in zip(joined, before, strict=True):
            assert part.members[0].communicator.traffic.bytes_sent - earlier == 2 * (p - 1) * nbytes // p
            assert part.members[0].communicator.traffic.messages_sent == 2 * (p - 1)


# --- bad input


@pytest.mark.parametrize("lowering", ["native", "ring"])
def test_who_disagrees_is_shown_both_sides(lowering: str) -> None:
    bodies = [
        all_reduce_body(np.ones(4, np.float32), lowering=lowering, name="grads"),
        all_reduce_body(np.ones(6, np.float32), lowering=lowering, name="grads"),
    ]
    with parts_of([(0,), (1,)]) as joined:
        errors = at_once(joined, bodies)
    for error in errors:
        assert isinstance(error, InvalidArgumentError)
        assert "float32[4]" in error.message
        assert "float32[6]" in error.message
        assert "rank 0" in error.message
        assert "rank 1" in error.message


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({"reduction": "sum"}, {"reduction": "max"}),
        ({"name": "weights"}, {"name": "biases"}),
        ({"lowering": "ring"}, {"lowering": "tree"}),
    ],
)
def test_other_disagreements(mine: dict[str, str], theirs: dict[str, str]) -> None:
    bodies = [all_reduce_body(np.ones(4), **{"lowering": "ring", **options}) for options in (mine, theirs)]
    with parts_of([(0,), (1,)]) as joined:
        for error in at_once(joined, bodies):
            assert isinstance(error, InvalidArgumentError)
            for text in (*mine.values(), *theirs.values()):
                assert text in error.message


def test_another_order() -> None:
    def body(names: Sequence[str]) -> Body:
        def run(part: JoinedGroup) -> Any:
            def build(devices: list[str]) -> list[Any]:
                values = on(devices, [np.ones(3)])
                return [
                    t for name in names for t in collectives.all_reduce(values, group=part.group, name=name)
                ]

            return run_graph(part.group, build)

        return run

    with parts_of([(0,), (1,)]) as joined:
        for error in at_once(joined, [body(["a", "b"]), body(["b", "a"])]):
            assert isinstance(error, InvalidArgumentError)
            assert "'a'" in error.message
            assert "'b'" in error.message


@pytest.mark.parametrize("lowering", ["native", "tree"])
def test_a_rank_that_does_not_come_is_named(lowering: str) -> None:
    with parts_of([(0,), (1,)], timeout_s=1.0) as joined:
        (error,) = at_once(joined[:1], [all_reduce_body(np.ones(4), lowering=lowering)])
    assert isinstance(error, DeadlineExceededError)
    assert "rank 1" in error.message
    assert "AllReduce" in str(error)


@pytest.mark.parametrize("lowering", ["native", "tree"])
def test_a_step_ends_with_its_deadline(lowering: str) -> None:
    def body(part: JoinedGroup) -> None:
        with tf.Graph(), tf.Session() as session:
            total = collectives.all_reduce(
                [tf.Variable(1.0).initialized_value()], group=part.group, lowering=lowering
            )
            session.run(total, options=tf.RunOptions(timeout_in_ms=200))

    with parts_of([(0,), (1,)]) as joined:  # the group's own patience is a minute
        (error,) = at_once(joined[:1], [body])
    assert isinstance(error, DeadlineExceededError)
    assert "200 ms" in error.message


@pytest.mark.parametrize("lowering", ["native", "ring"])
def test_a_rank_that_leaves_is_named(lowering: str) -> None:
    def leave(part: JoinedGroup) -> None:
        part.close()

    with parts_of([(0,), (1,)]) as joined:
        error, _ = at_once(joined, [all_reduce_body(np.ones(4), lowering=lowering), leave])
        assert isinstance(error, UnavailableError)
        assert "rank 1" in error.message
        (again,) = at_once(joined[:1], [all_reduce_body(np.ones(4), lowering=lowering)])
        assert isinstance(again, OpError)  # the group has ended


def test_a_step_that_fails_before_its_collective_ends_those_of_the_others() -> None:
    def fail() -> Any:
        raise ValueError("no data")

    def body(part: JoinedGroup) -> Any:
        def build(devices: list[str]) -> list[Any]:
            value = tf.py_func(fail, [], tf.float32)
            value.set_shape([])
            return collectives.all_reduce([value], group=part.group)

        return run_graph(part.group, build)

    with parts_of([(0,), (1,)]) as joined:
        errors = at_once(joined, [body, all_reduce_body(np.float32(1))])
    for error in errors:
        assert "no data" in str(error)


def test_the_step_after_one_that_failed_says_why() -> None:
    """Also where that had begun a collective for which it did not wait."""

    def run_twice(part: JoinedGroup) -> list[str]:
        errors = []
        with tf.Graph(), tf.Session() as session:
            totals = [collectives.all_reduce([tf.constant(1.0)], group=part.group)[0] for _ in range(3)]
            for _ in range(2):
                with pytest.raises(UnavailableError) as raised:
                    session.run(totals)
                errors.append(str(raised.value))
        return errors

    with parts_of([(0,), (1,)]) as joined:
        errors, _ = at_once(joined, [run_twice, JoinedGroup.close])
    for error in errors:
        assert "rank 1" in error


def test_groups_that_listen_at_the_same_addresses_end_one_after_the_other() -> None:
    with ReservedPorts(2) as reserved, ThreadPoolExecutor(2) as pool:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]

        def form(key: str) -> list[JoinedGroup]:
            ranks = [Group(key, 2, (rank,)) for rank in range(2)]
            return list(pool.map(lambda group: join(group, addresses, "grpc", SOON_S), ranks))

        first, second = form("first"), form("second")
        groups = [second]
        for part in first:
            part.close()
        groups.append(form("third"))
        for parts in groups:
            results = at_once(parts, [all_reduce_body(np.ones(4))] * 2)
            for part in parts:
                part.close()
            np.testing.assert_array_equal(results, [[[2.0] * 4]] * 2)


@pytest.mark.parametrize(
    ("security", "kind"), [(Security(token="secret"), "grpc"), (Security(), "tcp")], ids=["security", "kind"]
)
def test_groups_that_listen_at_the_same_addresses_let_in_the_same_ranks(
    security: Security, kind: str
) -> None:
    with ReservedPorts(2) as reserved, ThreadPoolExecutor(2) as pool:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]

        def form(key: str, ranks: Sequence[int], *terms: Any) -> list[JoinedGroup]:
            def come(rank: int) -> JoinedGroup:
                return join(Group(key, 2, (rank,)), addresses, "grpc", SOON_S, new_transport(*terms))

            return list(pool.map(come, ranks))

        parts = form("open", (0, 1), Security(), "grpc")
        with pytest.raises(AlreadyExistsError, match="expected the security and transport"):
            form("strict", (0,), security, kind)
        for part in parts:
            part.close()
        strict = [form(key, (0, 1), security, kind) for key in ("strict", "as strict")]
        for part in [*strict[0], *strict[1]]:
            part.close()


def test_joining_without_the_others() -> None:
    with ReservedPorts(2) as reserved:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        with pytest.raises(DeadlineExceededError, match="rank 1"):
            join(Group("alone", 2, (0,)), addresses, "grpc", timeout_s=0.5)


def test_a_group_that_was_not_joined() -> None:
    with pytest.raises(FailedPreconditionError, match=r"'nobody': .* joined it as rank 0"):
        run_graph(
            Group("nobody", 2, (0,)),
            lambda devices: collectives.all_reduce(on(devices, [np.ones(2)]), group=Group("nobody", 2, (0,))),
        )


def test_joining_twice() -> None:
    with (
        parts_of([(0,)]) as joined,
        pytest.raises(AlreadyExistsError, match="has already joined it as rank 0"),
    ):
        join(joined[0].group, kind="local")


def test_groups_that_are_none() -> None:
    for key, size, ranks, tasks, text in [
        ("a;b", 2, (0,), (), "expected a key"),
        ("g", 2, (2,), (), "expected ranks of 0 to 1"),
        ("g", 2, (0,), (1,), "expected the task of each of 2 ranks"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            Group(key, size, ranks, tasks)


def test_as_many_values_as_ranks() -> None:
    with tf.Graph(), pytest.raises(InvalidArgumentError, match=r"expected 1 values, .* ranks \[0\] .* got 2"):
        collectives.all_reduce([1.0, 2.0], group=Group("g", 2, (0,)))
