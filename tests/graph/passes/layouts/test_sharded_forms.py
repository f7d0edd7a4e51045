"""Every sharded form against its op's kernel: cut along a whole dimension, the result is the same.

For each sample of each op with a form, each dimension that its rule holds whole and 2 and 3 parts: the op
runs in a session with its inputs cut along it, and nothing is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation
from flowrt.graph.layouts.layout import REPLICATED, Layout, Shard, layout_of
from flowrt.graph.layouts.mesh import Axis, Mesh
from flowrt.graph.layouts.sharding_rule import dim_of
from flowrt.graph.op_def import OpDef, Sample, registered_ops
from flowrt.viz import explain_layouts
from tests.each import daily
from tests.graph.passes.layouts.random_layouts import CONFIG, give, random_layout, random_mesh
from tests.graph.test_all_ops import build, feeds_of, flat_inputs
from tests.graph.test_all_rules import assert_same, rule_for, run

WITH_FORMS = [op for op in registered_ops().values() if op.sharded is not None]


def cases() -> list[Any]:
    return [
        pytest.param(op, each, id=f"{op.name}-{position}")
        for op in WITH_FORMS
        for position, each in enumerate(op.samples(np.random.default_rng(0)))
    ]


def whole_factors(operation: Operation, values: Sequence[Any]) -> list[tuple[int, list[int | None]]]:
    """The factors that cannot be cut, and the dimension of each input that they are."""
    rule = rule_for(operation, values)
    assert rule is not None
    found = []
    for number, factor in enumerate(rule.factors):
        dims = [dim_of(number, each) for each in rule.inputs]
        if not factor.may_cut and factor.size and any(dim is not None for dim in dims):
            found.append((number, dims))
    return found


@pytest.mark.parametrize(
    ("parts", "is_time"),
    daily(product([2, 3], [False, True]), lambda parts, is_time: is_time == (parts == 3)),
)
@pytest.mark.parametrize(("op", "each"), cases())
def test_a_form_is_its_op(op: OpDef, each: Sample, parts: int, is_time: bool) -> None:
    values = flat_inputs(op, each)
    if np.asarray(values[0]).dtype.kind == "O":  # strings have no sums
        return
    expected = run(op, each)
    mesh = Mesh([Axis("part", parts, is_time)])
    with tf.Graph():
        operation, flat = build(op, each)
        feeds = feeds_of(flat, values)
        for factor, dims in whole_factors(operation, values):
            for tensor, dim in zip(flat, dims, strict=True):
                if tensor in feeds:
                    give(tensor, Layout(mesh, [REPLICATED if dim is None else Shard(dim)]))
            with tf.Session(config=CONFIG) as session:
                outputs = list(operation.outputs)
                explained = explain_layouts(session, outputs, feeds)
                found = session.run(outputs, feeds)
            assert explained is not None
            assert op.name not in {tensor.op for tensor in explained.tensors}, "its form is in its place"
            assert explained.remarks == ()
            for position, (one, many) in enumerate(zip(expected, found, strict=True)):
                assert_same(np.asarray(many), one, f"{op.name}: output {position}, factor {factor}")


@pytest.mark.parametrize(("op", "each"), cases())
def test_an_op_with_a_form_is_right_in_any_layout(op: OpDef, each: Sample) -> None:
    """Of all inputs, over any mesh: several axes, the same axis on dimensions that do not fit."""
    values, rng = flat_inputs(op, each), np.random.default_rng(len(op.name))
    expected = run(op, each)
    for _ in range(3):
        mesh = random_mesh(rng)
        with tf.Graph():
            operation, flat = build(op, each)
            feeds = feeds_of(flat, values)
            for tensor, value in feeds.items():
                give(tensor, random_layout(rng, mesh, np.shape(value), in_time=True))
            with tf.Session(config=CONFIG) as session:
                found = session.run(list(operation.outputs), feeds)
        for position, (one, many) in enumerate(zip(expected, found, strict=True)):
            assert_same(np.asarray(many), one, f"{op.name}: output {position}, mesh {mesh}")


def test_these_ops_have_forms() -> None:
    assert {op.name for op in WITH_FORMS} == {
        "All", "Any", "ArgMax", "ArgMin", "EuclideanNorm", "FusedBatchNormV3", "FusedBatchNormGradV3",
        "GatherV2", "InTopKV2", "LayerNorm", "LayerNormGrad", "LogSoftmax", "OneHot",
        "Softmax",
        "SoftmaxCrossEntropyWithLogits",
        "SparseSoftmaxCrossEntropyWithLogits", "UnsortedSegmentSum",
    }  # fmt: skip


def cut(shape: Sequence[int], dtype: Any = tf.float64, parts: int = 3) -> Any:
    """A placeholder of which the last dimension is cut."""
    x = tf.placeholder(dtype, shape)
    give(x, Layout(Mesh([("part", parts)]), [Shard(len(shape) - 1)]))
    return x


@pytest.mark.parametrize("find", ["argmax", "argmin"])
def test_the_position_of_an_extreme_is_the_first_in_any_part(find: str) -> None:
    x = np.array([[1, 5, 5, 0, 5, 0, 0], [np.nan, 1, 2, 3, np.nan, 9, -9], [1, 2, np.nan, 9, -9, 0, 0]])
    x = np.concatenate([x, np.full((1, 7), -np.inf), np.full((1, 7), np.inf)])
    with tf.Graph(), tf.Session(config=CONFIG) as session:
        given = cut(x.shape)
        found = session.run(getattr(tf, find)(given, 1), {given: x})
    np.testing.assert_array_equal(found, getattr(np, find)(x, 1))


@pytest.mark.parametrize("wrong", [-1, 7])
def test_an_index_that_no_part_has_is_an_error(wrong: int) -> None:
    with tf.Graph(), tf.Session(config=CONFIG) as session:
        x = cut([2, 7])
        label, index = tf.placeholder(tf.int32, [2]), tf.placeholder(tf.int32, [2])
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=x)
        rows = tf.gather(x, index, axis=1)
        feeds = {x: np.zeros((2, 7)), label: [0, wrong], index: [0, wrong]}
        with pytest.raises(InvalidArgumentError, match=rf"labels\[1\]: expected .* \[0, 7\); got {wrong}"):
            session.run(loss, feeds)
        with pytest.raises(InvalidArgumentError, match=rf"indices\[1\]: expected .* \[0, 7\); got {wrong}"):
            session.run(rows, feeds)


@pytest.mark.parametrize("wrong", [-1, 10])
def test_a_row_that_no_part_of_a_variable_has_is_an_error(wrong: int) -> None:
    with tf.Graph(), tf.Session(config=CONFIG) as session:
        with tf.distribute.LayoutStrategy(Mesh([("part", 2)])).scope():
            w = tf.get_variable("w", [10, 3], layout=["part", None])
            index = tf.placeholder(tf.int32, [None])
            read, written = tf.nn.embedding_lookup(w, index), tf.scatter_update(w, index, tf.ones([2, 3]))
        session.run(w.initializer)
        for access in (read, written):
            with pytest.raises(InvalidArgumentError, match=rf"indices\[1\]: .* \[0, 10\); got {wrong}"):
                session.run(access, {index: [1, wrong]})


def test_a_form_waits_and_is_waited_for_as_its_op() -> None:
    with tf.Graph(), tf.Session(config=CONFIG) as session:
        x, w = cut([2, 7]), tf.get_variable("w", [], tf.float64, tf.zeros_initializer())
        with tf.control_dependencies([w.assign_add(1.0).op]):
            y = tf.nn.softmax(x)
        with tf.control_dependencies([y]):
            after = tf.identity(w.read_value())
        session.run(w.initializer)
        assert session.run(after, {x: np.zeros((2, 7))}) == 1
        session.run(y.op, {x: np.zeros((2, 7))})
        assert session.run(w) == 2


@pytest.mark.parametrize("is_time", [False, True])
def test_forms_in_loops_and_branches(is_time: bool) -> None:
    def built(x: Any) -> list[Any]:
        def step(i: Any, a: Any) -> Any:
            return i + 1, tf.nn.softmax(a) + tf.nn.log_softmax(x)

        _, y = tf.while_loop(lambda i, _: i < 3, step, [0, x])
        z = tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.nn.softmax(y), lambda: tf.nn.log_softmax(y))
        return [y, z, *tf.gradients(tf.reduce_sum(tf.square(y)) + tf.reduce_sum(tf.square(z)), [x])]

    value, mesh = np.random.default_rng(0).standard_normal((2, 7)), Mesh([Axis("part", 3, is_time)])
    found = []
    for is_cut in (False, True):
        with tf.Graph(), tf.Session(config=CONFIG) as session:
            x = tf.placeholder(tf.float64, [2, 7])
            if is_cut:
                give(x, Layout(mesh, [Shard(1)]))
                explained = explain_layouts(session, built(x), {x: value})
                assert explained is not None
                assert explained.remarks == ()
            found.append(session.run(built(x), {x: value}))
    for one, many in zip(*found, strict=True):
        np.testing.assert_allclose(many, one, 1e-12, 1e-14)


def test_what_is_not_cut_keeps_its_op() -> None:
    with tf.Graph(), tf.Session(config=CONFIG) as session:
        x = tf.placeholder(tf.float64, [6, 4])
        give(x, Layout(Mesh([("part", 3)]), [Shard(0)]))
        explained = explain_layouts(session, tf.nn.softmax(x), {x: np.zeros((6, 4))})
    assert explained is not None
    assert [tensor.op for tensor in explained.tensors] == ["_Feed", "Softmax"]


@pytest.mark.parametrize("axes", [[("dp", 2), ("tp", 2)], [("tp", 3), ("dp", 2)]])
@pytest.mark.parametrize("wrong", [False, True])
def test_rows_are_summed_in_the_parts_in_which_they_are_used(axes: Any, wrong: bool) -> None:
    """Such as the gradient of an embedding with cut rows; ids are checked as those of the whole are."""
    rng, mesh = np.random.default_rng(0), Mesh(axes)
    ids = [7, 0, -1, 3, 3, 9 if wrong else 6, 2, 7]
    with tf.Graph(), tf.Session(config=CONFIG) as session:
        x, segment = tf.placeholder(tf.float64, [8, 3]), tf.placeholder(tf.int32, [8])
        total = tf.unsorted_segment_sum(x, segment, 8)
        with tf.distribute.LayoutStrategy(mesh).scope():
            cut = tf.distribute.relayout(total * 2.0, ["tp", None])
        for given in (x, segment):
            give(given, layout_of(mesh, ["dp"]))
        feeds = {x: rng.standard_normal((8, 3)), segment: ids}
        if wrong:
            with pytest.raises(InvalidArgumentError, match=r"segment_ids\[\d\]: expected .* \[0, 8\); got 9"):
                session.run(cut, feeds)
            return
        expected = np.zeros((9, 3))
        np.add.at(expected, ids, feeds[x])
        np.testing.assert_allclose(session.run(cut, feeds), 2 * expected[:8], 1e-12)
        explained = explain_layouts(session, [cut], feeds)
    assert explained is not None
    (made,) = [t for t in explained.tensors if t.op == "SegmentSumAt"]
    assert made.layout.startswith("float64[8/tp, 3]")
    assert "UnsortedSegmentSum" not in {t.op for t in explained.tensors}


@pytest.mark.parametrize("axes", [[("tp", 3)], [("dp", 2), ("tp", 2)]])
def test_smoothed_labels_are_made_in_the_parts_of_the_logits(axes: Any) -> None:
    """No coordinate has all classes of a row: neither of the logits nor of the labels."""
    rng, classes = np.random.default_rng(0), 12
    with tf.Graph(), tf.Session(config=CONFIG) as session:
        x, label = tf.placeholder(tf.float64, [8, classes]), tf.placeholder(tf.int32, [8])
        smooth = 0.9 * tf.one_hot(label, classes, dtype=tf.float64) + 0.1 / classes
        loss = tf.nn.softmax_cross_entropy_with_logits(labels=smooth, logits=x)
        fetches = [loss, *tf.gradients(loss, [x])]
        feeds = {x: rng.standard_normal((8, classes)), label: rng.integers(0, classes, 8)}
        expected = session.run(fetches, feeds)
        mesh = Mesh(axes)
        give(x, layout_of(mesh, ["dp" if len(axes) > 1 else None, "tp"]))
        if len(axes) > 1:
            give(label, layout_of(mesh, ["dp"]))
        explained = explain_layouts(session, fetches, feeds)
        for one, many in zip(expected, session.run(fetches, feeds), strict=True):
            np.testing.assert_allclose(many, one, 1e-12, 1e-14)
    assert explained is not None
    assert explained.remarks == ()
    made = [t for t in explained.tensors if "one_hot" in t.name and t.op == "SelectV2"]
    assert [t.layout[-6:] for t in made] == ["12/tp]"]
