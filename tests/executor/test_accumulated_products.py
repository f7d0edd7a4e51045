"""Sums of matrix products, to which oneDNN adds each product: what is joined, that results are those of the
operations one by one, and that a sum has one place in memory.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import flowrt as tf
from flowrt.device.onednn import onednn
from flowrt.executor.buffers.buffer_assignment import Storage
from flowrt.executor.kernels.onednn_kernels import ONEDNN_KERNELS
from flowrt.graph.passes.fusion.accumulated_products import matmul_add_op
from tests.executor.fused_sessions import plans_of

pytestmark = pytest.mark.skipif(not onednn.is_available(), reason=str(onednn.why_unavailable()))

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def eager_and_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    monkeypatch.setenv("FLOWRT_CHECK", "1")


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(fetches: Any, feeds: Any = None) -> tuple[Any, list[str]]:
    """The results, and the names of the operations that add a product."""
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = session.run(fetches, feeds)
        parts = [part for plan in plans_of(session) for part in plan.partitions.values()]
        nodes = [node for part in parts for node in part.subgraph]
        return found, [node.name for node in nodes if node.op is matmul_add_op]


def product(seed: int, rows: int = 128, columns: int = 160, depth: int = 64) -> tuple[Any, Array]:
    a, b = floats(depth, rows, seed=seed), floats(depth, columns, seed=seed + 100)
    return tf.matmul(tf.constant(a) * tf.Variable(1.0), tf.constant(b), transpose_a=True), a.T @ b


def sum_of(terms: list[tuple[Any, Array]]) -> tuple[Any, Array]:
    (total, expected), *others = terms
    for i, (term, value) in enumerate(others):
        total, expected = tf.add(total, term, name=f"sum{i}"), expected + value
    return total, expected


def test_products_are_added_where_they_are_computed() -> None:
    total, expected = sum_of([product(i) for i in range(4)])
    found, joined = run(tf.reduce_max(total, 0))
    assert joined == ["sum0", "sum1", "sum2"]
    np.testing.assert_allclose(found, expected.max(0), rtol=1e-5, atol=1e-4)


def test_a_product_is_added_to_the_gradient_of_gathered_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table that is read at the input and computes the logits."""
    table = tf.Variable(floats(300, 64))
    logits = tf.matmul(tf.gather(table, np.arange(0, 80) % 7), table, transpose_b=True)
    (gradient,) = tf.gradients(tf.nn.softmax(logits)[:, :9], table)
    largest = tf.reduce_max(gradient, 0)
    found, joined = run(largest)
    assert len(joined) == 1
    monkeypatch.setenv("FLOWRT_JIT", "off")
    expected, joined = run(largest)
    assert joined == []
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)], ids=str)
def test_a_sum_of_several_products_is_added_up_in_the_order_in_which_they_are_computed(
    order: tuple[int, ...],
) -> None:
    terms = [product(i) for i in range(4)]
    total = tf.add_n([terms[i][0] for i in order], name="sum")
    found, joined = run(tf.reduce_max(total, 0))
    assert len(joined) == 3
    assert joined[-1] == "sum"
    np.testing.assert_allclose(found, sum(value for _, value in terms).max(0), rtol=1e-5, atol=1e-4)


def test_a_sum_of_several_products_goes_on_from_another_sum() -> None:
    terms = [product(i) for i in range(5)]
    early = tf.add(terms[0][0], terms[4][0], name="early")
    total = tf.add_n([*[term for term, _ in terms[1:4]], early], name="sum")
    found, joined = run(tf.reduce_max(total, 0))
    assert len(joined) == 4
    assert joined[0] == "early"
    assert joined[-1] == "sum"
    np.testing.assert_allclose(found, sum(value for _, value in terms).max(0), rtol=1e-5, atol=1e-4)


def test_a_sum_with_another_term_or_one_twice_is_left() -> None:
    terms = [product(i)[0] for i in range(2)]
    other = tf.Variable(floats(128, 160))
    assert run(tf.reduce_max(tf.add_n([*terms, other])))[1] == []
    assert run(tf.reduce_max(tf.add_n([*terms, terms[0]])))[1] == []


def test_a_sum_has_one_place() -> None:
    total, _ = sum_of([product(i) for i in range(4)])
    largest = tf.reduce_max(total, 0)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(largest)
        (plan,) = [plan for plan in plans_of(session) if "sum2" in str(plan.partitions)]
        (part,) = plan.partitions.values()
        sums = [node for node in part.subgraph if node.op is matmul_add_op]
        memory = part.buffers.memory
        places = {memory.offsets[node.name, 0] for node in sums}
        places.add(memory.offsets[sums[0].inputs[0]])
        assert len(places) == 1
        assert all(part.buffers.storage[node.name] is Storage.BUFFER for node in sums)


def test_a_factor_is_not_overwritten() -> None:
    """It has the shape of the sum, and no later reader."""
    total, expected = sum_of([product(i, 128, 128, 128) for i in range(3)])
    found, joined = run(tf.reduce_max(total, 0))
    assert joined == ["sum0", "sum1"]
    np.testing.assert_allclose(found, expected.max(0), rtol=1e-5, atol=1e-3)


def test_what_others_read_is_not_overwritten() -> None:
    first, value = product(1)
    second, other = product(2)
    total = tf.add(first, second, name="sum")
    for fetches in ([total, first], [tf.reduce_sum(total), tf.sqrt(tf.abs(first))]):
        found, joined = run(fetches)
        assert joined == []
        expected = (
            [value + other, value] if fetches[1] is first else [(value + other).sum(), abs(value) ** 0.5]
        )
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=0.1)


def test_a_product_that_is_added_twice_is_computed_once() -> None:
    term, value = product(3)
    doubled, joined = run(tf.reduce_max(tf.add(term, term), 0))
    assert joined == []
    np.testing.assert_allclose(doubled, (2 * value).max(0), rtol=1e-5, atol=1e-4)


def test_small_sums_and_other_dtypes_are_left() -> None:
    total, _ = sum_of([product(i, 4, 5) for i in range(2)])
    assert run(tf.reduce_max(total))[1] == []
    wide = [tf.matmul(tf.Variable(floats(128, 64).astype(np.float64)), floats(64, 160)) for _ in range(2)]
    assert run(tf.reduce_max(tf.add(*wide)))[1] == []


def test_fetched_and_updated_sums() -> None:
    """A fetch is the caller's, and a variable's gradient in turns is such a sum."""
    total, expected = sum_of([product(i) for i in range(3)])
    (one, two), joined = run([total, tf.identity(total)])
    assert joined == ["sum0", "sum1"]
    for found in (one, two):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@given(
    st.tuples(*[st.integers(1, 90)] * 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["new", "given", "in place"]),
)
def test_the_kernel(sizes: tuple[int, int, int], turns_a: bool, turns_b: bool, where: str) -> None:
    m, k, n = sizes
    total, a, b = floats(m, n, seed=1), floats(m, k, seed=2), floats(k, n, seed=3)
    expected = total + a @ b
    out = {"new": None, "given": np.full((m, n), np.nan, np.float32), "in place": total}[where]
    factors = a.T.copy() if turns_a else a, b.T.copy() if turns_b else b
    kernel = ONEDNN_KERNELS[matmul_add_op]
    found = kernel(matmul_add_op, np, total, *factors, transpose_a=turns_a, transpose_b=turns_b, out=out)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert out is None or found is out
