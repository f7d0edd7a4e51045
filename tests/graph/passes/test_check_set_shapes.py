"""`check_set_shapes`: the text of steps. What becomes of values is in `tests/executor/test_set_shapes.py`."""

from __future__ import annotations

import flowrt as tf
from flowrt.graph.passes.prepare.check_set_shapes import check_set_shapes
from flowrt.graph.passes.prepare.infer import infer_shapes
from flowrt.graph.passes.prepare.prune import extract
from flowrt.graph.passes.prepare.verify import verify_subgraph
from flowrt.graph.text.graph_text import print_subgraph
from tests.graph.passes.cases import snapshot


def checked(*fetches, feeds=()):
    """The text of a step after the pass, without sources."""
    subgraph = extract(tf.get_default_graph(), fetches, [], dict(feeds))
    before = snapshot(subgraph)
    after = check_set_shapes(subgraph)
    assert snapshot(subgraph) == before
    verify_subgraph(after)
    again = check_set_shapes(after)
    assert again is after
    return [line.split("  #")[0] for line in print_subgraph(after).splitlines()], after


def test_readers_and_fetches_read_the_check_and_the_operation_has_the_shape_of_its_rule():
    x = tf.placeholder_with_default([1.0], [None], name="x")
    x.set_shape([3])
    lines, after = checked(x, tf.negative(x, name="y"))
    assert lines == [
        "%x/input = Const() {value=f32[1](1.0)} : f32[1]",
        "%x = PlaceholderWithDefault(%x/input) {shape=[?], _set_shape=(0)} : f32[?]",
        "%x/set_shape = EnsureShape(%x) {shape=[3]} : f32[3]",
        "%y = Neg(%x/set_shape) : f32[3]",
        "fetches: %x/set_shape, %y",
    ]
    assert infer_shapes(after).spec(("x/set_shape", 0)).shape == (3,)


def test_each_output_has_its_own_check_under_a_free_name():
    tf.constant(1.0, name="u/set_shape_1")
    values, where = tf.unique(tf.placeholder_with_default([1.0], [None]), name="u")
    values.set_shape([1])
    where.set_shape([1])
    kept = tf.get_default_graph().get_tensor_by_name("u/set_shape_1:0")
    lines, _ = checked(values, where, kept)
    assert lines[-1] == "fetches: %u/set_shape, %u/set_shape_1_, %u/set_shape_1"


def test_what_a_rule_or_a_feed_tells_is_not_checked():
    x = tf.placeholder(tf.float32, [None], name="x")
    y = tf.identity(x)
    y.set_shape([3])
    z = tf.tile(tf.constant([1.0]), [3])
    z.set_shape([3])
    lines, _ = checked(y, z, feeds=[(y, (3,))])
    assert not any("EnsureShape" in line for line in lines)


def test_functions_are_entered():
    def body(i, v):
        v = tf.concat([v, v], 0)
        v.set_shape([2])
        return i + 1, v[:1]

    last = tf.while_loop(lambda i, v: i < 3, body, [0, tf.placeholder_with_default([1.0], [None])])
    lines, _ = checked(last[1])
    assert sum("EnsureShape" in line for line in lines) == 1
