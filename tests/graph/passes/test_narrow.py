"""Products of which only a block is read compute no more than that block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.graph.evaluate import evaluate
from flowrt.graph.passes.optimise.narrow import narrow_products
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import lines, snapshot, subgraph_of


def narrowed(fetches):
    operations = tf.get_default_graph().get_operations()
    before = subgraph_of(fetches, feeds=[op.outputs[0] for op in operations if op.type == "Placeholder"])
    seen = snapshot(before)
    after = narrow_products(before)
    assert snapshot(before) == seen
    verify_subgraph(after)
    return before, after


def matrix(rows, columns, name):
    return tf.placeholder(tf.float64, [rows, columns], name=name)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as made:
        yield made


def test_columns_take_columns_of_the_right_factor():
    z = tf.matmul(matrix(4, 3, "a"), matrix(3, 5, "b"), name="z")
    _, y = tf.split(z, [2, 3], 1, name="parts")
    _, after = narrowed([tf.negative(y, name="y")])
    assert [line for line in lines(after) if "Const" not in line and "_Feed" not in line] == [
        "z/factor_1 = Slice(b, z/factor_1/begin, z/factor_1/size)",
        "z = MatMul(a, z/factor_1)",
        "y = Neg(z)",
    ]
    assert after.nodes["z/factor_1/begin"].attrs["value"].tolist() == [0, 2]
    assert after.nodes["z/factor_1/size"].attrs["value"].tolist() == [3, 3]
    assert after.nodes["z"].outputs[0].shape == (4, 3)


def test_rows_take_rows_of_the_left_factor():
    z = tf.matmul(matrix(3, 4, "a"), matrix(5, 3, "b"), transpose_a=True, transpose_b=True, name="z")
    _, after = narrowed([tf.negative(z[1:3], name="y")])
    assert after.nodes["z/factor_0/begin"].attrs["value"].tolist() == [0, 1]
    assert after.nodes["z"].inputs == (("z/factor_0", 0), ("b", 0))
    assert after.nodes["z"].outputs[0].shape == (2, 5)


def test_a_product_may_be_larger_than_any_memory():
    """As in the step of a cluster that is only described: 8 TiB here."""
    z = tf.matmul(matrix(1 << 20, 4, "a"), matrix(4, 1 << 20, "b"), name="z")
    _, after = narrowed([tf.negative(z[:, 1:3], name="y")])
    assert after.nodes["z"].outputs[0].shape == (1 << 20, 2)


def test_what_a_device_sends_is_kept():
    """In a part of a step nothing reads it."""
    y = tf.negative(tf.matmul(matrix(4, 3, "a"), matrix(3, 5, "b"), name="z")[:, 1:], name="y")
    before = subgraph_of([y], feeds=[tf.get_default_graph().get_tensor_by_name(f"{f}:0") for f in "ab"])
    after = narrow_products(before.replace(fetches=()))
    assert after.nodes["z"].outputs[0].shape == (4, 4)
    assert after.nodes["y"].inputs == (("z", 0),)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda z: [z, z[:, 1:]], id="fetched"),
        pytest.param(lambda z: [tf.negative(z), z[:, 1:]], id="read as a whole"),
        pytest.param(lambda z: list(tf.split(z, 5, 1)), id="all parts"),
        pytest.param(lambda z: [z[:, ::2]], id="no block"),
        pytest.param(lambda z: [tf.transpose(z)[1:]], id="turned"),
        pytest.param(
            lambda z: [tf.slice(z, [0, tf.placeholder(tf.int32, [])], [4, 2])], id="not known where"
        ),
    ],
)
def test_what_stays_as_it_is(read):
    z = tf.matmul(matrix(4, 3, "a"), matrix(3, 5, "b"))
    before, after = narrowed([tf.exp(y) if y is not z else y for y in read(z)])
    assert after is before


def test_who_waits_for_a_part_still_does():
    z = tf.matmul(matrix(4, 3, "a"), matrix(3, 5, "b"))
    y, other = z[:, 1:3], matrix(1, 1, "other")
    with tf.control_dependencies([y]):
        after_it = tf.negative(other)
    before, after = narrowed([after_it, tf.negative(y)])
    assert after is before


cuts = st.tuples(st.integers(0, 6), st.integers(1, 7)).map(lambda cut: slice(min(cut), max(cut) + 1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(cuts, cuts), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_results_are_those_of_the_whole(blocks, transpose_a, transpose_b):
    """A sum of 5 terms is off by at most 5 roundings of the sum of their sizes."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(7, 5)), rng.normal(size=(5, 7))
    with tf.Graph().as_default():
        values = [a.T if transpose_a else a, b.T if transpose_b else b]
        factors = [tf.placeholder(tf.float64, value.shape) for value in values]
        z = tf.matmul(*factors, transpose_a, transpose_b)
        _, after = narrowed([z[block] * 2.0 for block in blocks])
        found = evaluate(after, {f.op.name: value for f, value in zip(factors, values, strict=True)})
    bound = 6 * np.finfo(float).eps * (abs(a) @ abs(b))
    for block, part in zip(blocks, found, strict=True):
        assert part.shape == (a @ b)[block].shape
        assert (abs(part / 2 - (a @ b)[block]) <= bound[block]).all()
