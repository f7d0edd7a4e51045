"""Gradients of collectives, run on devices, against differences of what NumPy says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute import collectives
from flowrt.distribute.collectives import Group, JoinedGroup
from flowrt.errors import InvalidArgumentError, OpError
from tests.contracts.check_collectives import CollectiveCall, expected
from tests.distribute.collectives.expanded import build, device, placeholders
from tests.distribute.collectives.group_parts import at_once, on, parts_of, run_graph

STEP = 1e-6
P = 3

CASES = [
    *[("AllReduce", (4,), {"reduction": r}) for r in ("sum", "mean", "prod", "min", "max")],
    *[("Reduce", (4,), {"reduction": r, "root": 1}) for r in ("sum", "mean", "prod", "min", "max")],
    *[("ReduceScatter", (4, 2), {"reduction": r}) for r in ("sum", "mean", "prod", "min", "max")],
    ("ReduceScatter", (2, 4), {"axis": 1}),
    ("AllGather", (2, 2), {}),
    ("AllGather", (2, 2), {"axis": -1}),
    ("Gather", (2, 2), {"axis": 1, "root": 2}),
    ("Broadcast", (2, 2), {"root": 2}),
    ("Scatter", (5, 2), {"root": 1}),
    ("Scatter", (2, 4), {"axis": 1}),
    ("AllToAll", (4, 2), {}),
    ("AllToAll", (2, 5), {"axis": 1}),
]


def weighted(p: int, call: CollectiveCall, weights: list[Any]) -> float:
    results = [r for r in expected(p, call) if r is not None]
    return float(sum(np.sum(w * r) for w, r in zip(weights, results, strict=True)))


def differences(f: Callable[[], float], x: Any) -> Any:
    """The derivative of ``f`` by each element of ``x``, which it reads."""
    found = np.empty_like(x)
    for index in np.ndindex(*x.shape):
        old = x[index]
        x[index] = old + STEP
        above = f()
        x[index] = old - STEP
        found[index] = (above - f()) / (2 * STEP)
        x[index] = old
    return found


def session() -> tf.Session:
    return tf.Session(config=tf.ConfigProto(device_count={"CPU": P}))


def run_gradients(
    call: CollectiveCall, weights: list[Any], used: list[int] | None = None, static: bool = True
) -> list[Any]:
    """The gradient of the weighted sum of the results (of those in ``used``) by each value."""
    with tf.Graph():
        feeds = placeholders(call.values, static=static)
        results = build(call, list(feeds), [device(rank) for rank in range(P)], "auto")
        found = [r for r in results if r is not None]
        terms = [tf.reduce_sum(w * r) for w, r in zip(weights, found, strict=True)]
        loss = tf.add_n(terms if used is None else [terms[i] for i in used])
        with session() as s:
            return s.run(tf.gradients(loss, list(feeds)), feeds)


@pytest.mark.parametrize(("kind", "shape", "attrs"), CASES)
def test_gradient(kind: str, shape: tuple[int, ...], attrs: Mapping[str, Any]) -> None:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape) for _ in range(1 if kind in ("Broadcast", "Scatter") else P)]
    call = CollectiveCall(kind, values, attrs)
    weights = [rng.standard_normal(r.shape) for r in expected(P, call) if r is not None]
    for gradient, value in zip(run_gradients(call, weights), values, strict=True):
        want = differences(lambda: weighted(P, call, weights), value)
        np.testing.assert_allclose(gradient, want, atol=1e-7)


def test_the_gradient_of_a_product_with_zeros() -> None:
    values = [np.array(v) for v in ([0.0, 2.0, 0.0], [3.0, 0.0, 0.0], [5.0, 7.0, 1.0])]
    call = CollectiveCall("AllReduce", values, {"reduction": "prod"})
    found = run_gradients(call, [np.ones(3)] * P)
    np.testing.assert_array_equal(found, [[45, 0, 0], [0, 42, 0], [0, 0, 0]])


def test_ties_share_the_gradient_of_a_maximum() -> None:
    values = [np.array([1.0, 4.0]), np.array([1.0, 3.0]), np.array([0.0, 4.0])]
    call = CollectiveCall("AllReduce", values, {"reduction": "max"})
    found = run_gradients(call, [np.ones(2)] * P)
    np.testing.assert_array_equal(found, [[1.5, 1.5], [1.5, 0], [0, 1.5]])


def test_a_result_that_nothing_depends_on_counts_as_zero() -> None:
    values = [np.ones(2)] * P
    weights = [np.array([float(rank), 1.0]) for rank in range(P)]
    found = run_gradients(CollectiveCall("AllReduce", values), weights, used=[1])
    np.testing.assert_array_equal(found, [[1, 1]] * P)


def test_values_of_different_sizes() -> None:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((rows, 2)) for rows in (2, 0, 3)]
    for kind in ("AllGather", "Gather"):
        call = CollectiveCall(kind, values)
        weights = [rng.standard_normal(r.shape) for r in expected(P, call) if r is not None]
        total = np.sum(weights, axis=0)
        wanted = np.split(total, [2, 2])
        for gradient, want in zip(run_gradients(call, weights), wanted, strict=True):
            np.testing.assert_allclose(gradient, want, atol=1e-12)


@pytest.mark.parametrize("rows", [(2, 0, 3), (1, 2, 8), (7, 3, 3)])
@pytest.mark.parametrize("static", [True, False])
def test_an_exchange_of_different_sizes(rows: tuple[int, ...], static: bool) -> None:
    rng = np.random.default_rng(0)
    call = CollectiveCall("AllToAll", [rng.standard_normal((2, n)) for n in rows], {"axis": 1})
    weights = [rng.standard_normal(r.shape) for r in expected(P, call)]
    for gradient, value in zip(run_gradients(call, weights, static=static), call.values, strict=True):
        want = differences(lambda: weighted(P, call, weights), value)
        np.testing.assert_allclose(gradient, want, atol=1e-7)


def test_gradients_of_gradients() -> None:
    with tf.Graph():
        feeds = placeholders([np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5.0, 6.0])])
        values = list(feeds)
        loss = tf.add_n([tf.reduce_sum(y**3) for y in collectives.all_reduce(values)])
        first = tf.gradients(loss, values)
        second = tf.gradients(tf.reduce_sum(first[0]), values)
        with session() as s:
            found = s.run(second, feeds)
    np.testing.assert_allclose(found, [[18 * 9, 18 * 12]] * P)  # of 3 (x + y + z) ** 3


@pytest.mark.parametrize("colocate", [False, True])
def test_the_gradient_of_a_rank_is_made_on_its_device(colocate: bool) -> None:
    with tf.Graph():
        feeds = placeholders([np.ones(2)] * P)
        values = [2.0 * v for v in feeds]
        loss = tf.add_n([tf.reduce_sum(y * y) for y in collectives.all_reduce(values)])
        ops = {op.name: op for op in tf.get_default_graph().get_operations()}
        with tf.device(device(1)):
            tf.gradients(loss, values, colocate_gradients_with_ops=colocate)
        made = [o for name, o in tf.get_default_graph().operations.items() if name not in ops]
        (reverse,) = [op for op in made if op.type == "AllReduce"]
        assert reverse.device == ""
        assert [t.op.colocation_groups() for t in reverse.inputs] == [[f"loc:@{v.op.name}"] for v in values]


# --- between graphs: each has some of the ranks, and differentiates the losses of its own

FROM_ROOT, TO_ROOT = ("Broadcast", "Scatter"), ("Reduce", "Gather")
SPLITS = [[(0, 2), (1,)], [(0,), (1,), (2,)]]


def values_here(call: CollectiveCall, group: Group, devices: list[str]) -> list[Any]:
    """What this graph gives: where the root's value is asked for, in another graph zeros like it."""
    if call.kind not in FROM_ROOT:
        return on(devices, [call.values[rank] for rank in group.ranks])
    root, (value,) = call.attrs.get("root", 0), call.values
    if root in group.ranks:
        return on([devices[group.ranks.index(root)]], [value])
    return on(devices[:1], [np.zeros_like(value)])


def results_here(call: CollectiveCall, group: Group, devices: list[str], values: list[Any]) -> list[Any]:
    options = {"group": group, **call.attrs}
    match call.kind:
        case "Broadcast":
            return collectives.broadcast(values[0], devices, **options)
        case "Scatter":
            return collectives.scatter(values[0], devices, **options)
        case "Reduce":
            return [collectives.reduce(values, **options)]
        case "Gather":
            return [collectives.gather(values, **options)]
    functions = {
        "AllReduce": collectives.all_reduce,
        "AllGather": collectives.all_gather,
        "ReduceScatter": collectives.reduce_scatter,
        "AllToAll": collectives.all_to_all,
    }
    return functions[call.kind](values, **options)


def losses_here(call: CollectiveCall, group: Group, weights: list[Any], results: list[Any]) -> Any:
    """The weighted sum of this graph's results; nothing, of a result that only another graph gets."""
    if call.kind not in TO_ROOT:
        return tf.add_n([tf.reduce_sum(weights[r] * y) for r, y in zip(group.ranks, results, strict=True)])
    is_here = call.attrs.get("root", 0) in group.ranks
    return tf.reduce_sum(weights[0] * results[0] if is_here else results[0])


def weighted_cases() -> list[tuple[CollectiveCall, list[Any]]]:
    rng, found = np.random.default_rng(1), []
    for kind, shape, attrs in CASES:
        values = [rng.standard_normal(shape) for _ in range(1 if kind in FROM_ROOT else P)]
        call = CollectiveCall(kind, values, attrs)
        found.append((call, [rng.standard_normal(r.shape) for r in expected(P, call) if r is not None]))
    return found


def wanted_here(call: CollectiveCall, weights: list[Any], group: Group) -> list[Any]:
    def slope(value: Any) -> Any:
        return differences(lambda: weighted(P, call, weights), value)

    if call.kind not in FROM_ROOT:
        return [slope(call.values[rank]) for rank in group.ranks]
    is_here = call.attrs.get("root", 0) in group.ranks
    return [slope(call.values[0]) if is_here else np.zeros_like(call.values[0])]


@pytest.mark.parametrize("split", SPLITS)
def test_gradients_between_graphs(split: list[tuple[int, ...]]) -> None:
    """Every kind: each graph has the gradients of all graphs' losses by what it gives."""
    cases = weighted_cases()

    def body(part: JoinedGroup) -> list[Any]:
        def build(devices: list[str]) -> list[Any]:
            found = []
            for call, weights in cases:
                values = values_here(call, part.group, devices)
                results = results_here(call, part.group, devices, values)
                found += tf.gradients(losses_here(call, part.group, weights, results), values)
            return found

        return run_graph(part.group, build)

    with parts_of(split) as joined:
        for part, found in zip(joined, at_once(joined, [body] * len(joined)), strict=True):
            assert not isinstance(found, OpError), found
            wanted = [w for call, weights in cases for w in wanted_here(call, weights, part.group)]
            for gradient, want in zip(found, wanted, strict=True):
                np.testing.assert_allclose(gradient, want, atol=1e-7)


def test_gradients_of_gradients_between_graphs() -> None:
    """Of (x + y) ** 3 at the root: by both, of the first derivative by x. All graphs say the same loss."""

    def body(part: JoinedGroup) -> list[Any]:
        def build(devices: list[str]) -> list[Any]:
            values = on(devices, [np.array([1.0, 2.0]) * (1 + part.group.ranks[0])])
            total = collectives.reduce(values, root=1, group=part.group)
            (first,) = tf.gradients(tf.reduce_sum(total**3), values)
            weight = float(part.group.ranks == (0,))
            return tf.gradients(tf.reduce_sum(weight * first), values)

        return run_graph(part.group, build)

    with parts_of([(0,), (1,)]) as joined:
        found = at_once(joined, [body] * 2)
    np.testing.assert_allclose(found, [[[18.0, 36.0]]] * 2)


def test_a_stand_in_for_the_roots_value_has_a_static_shape() -> None:
    with tf.Graph().as_default(), pytest.raises(InvalidArgumentError, match="a tensor of static shape"):
        collectives.broadcast(tf.placeholder("float32", [None]), ["/cpu:0"], 1, Group("g", 2, (0,)))
