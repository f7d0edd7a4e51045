"""`PartialStep` by itself: random graphs in random calls."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.errors import InvalidArgumentError
from flowrt.executor.partial.partial_step import PartialStep, begin_partial_step
from flowrt.graph.node import Ref
from flowrt.graph.passes.prepare.prune import extract_nodes, feed_of


@st.composite
def steps(draw: st.DrawFn) -> tuple[tf.Graph, list[Ref], list[Ref]]:
    """A graph of sums with control edges, its fetches and its feeds."""
    with tf.Graph() as graph:
        tensors = [tf.placeholder(tf.float32, [], name=f"x{i}") for i in range(draw(st.integers(1, 3)))]
        num_feeds = len(tensors)
        for i in range(draw(st.integers(1, 8))):
            chosen = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=2))
            before = draw(st.lists(st.sampled_from(tensors[num_feeds:]), max_size=1)) if i else []
            with tf.control_dependencies([tensor.op for tensor in before]):
                tensors.append(tf.add_n(chosen, name=f"n{i}"))
    fetches = draw(st.lists(st.sampled_from(tensors[num_feeds:]), min_size=1, unique=True))
    fed = tensors[:num_feeds] + draw(st.lists(st.sampled_from(tensors[num_feeds:]), max_size=1))
    return graph, [t.ref for t in fetches if t not in fed], [t.ref for t in fed]


@given(steps(), st.data())
def test_each_operation_runs_once_with_all_it_reads(
    drawn: tuple[tf.Graph, list[Ref], list[Ref]], data: st.DataObject
) -> None:
    graph, fetches, feeds = drawn
    nodes = {op.name: op.node for op in graph.get_operations()}
    step = begin_partial_step(nodes.__getitem__, fetches, [], feeds)
    ran: Counter[str] = Counter()
    there: set[Ref] = set()
    left = list(fetches)
    while left:
        fed = data.draw(st.lists(st.sampled_from(sorted(step.missing)), unique=True)) if step.missing else []
        asked = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
        try:
            call = step.call(fed, asked, [])
        except InvalidArgumentError:
            fed, asked = sorted(step.missing), left  # then it can be had
            call = step.call(fed, asked, [])
        there |= {*fed}
        assert step.known <= there
        assert {*call.used} <= there
        given_now = {ref: feed_of(nodes[ref[0]], ref[1], ()) for ref in call.used}
        part = extract_nodes(nodes, [*call.computed, *call.kept], call.targets, given_now, call.done)
        ran.update(name for name in part.nodes if name not in part.feeds)
        there = {*call.after.known}
        left = [ref for ref in left if ref not in asked]
        assert {ref for ref in left if ref[0] in ran and ref not in step.missing} <= there
        step = call.after
    assert step.is_over
    assert set(ran.values()) <= {1}


def test_what_is_done_again_is_what_names_a_resource() -> None:
    with tf.Graph() as graph:
        v = tf.get_variable("v", initializer=1.0)
        first, second = tf.identity(v, name="first"), tf.identity(v, name="second")
    nodes = {op.name: op.node for op in graph.get_operations()}
    step = begin_partial_step(nodes.__getitem__, [first.ref, second.ref], [], [])
    call = step.call([], [first.ref], [])
    assert all(nodes[name].outputs[index].dtype is tf.float32 for name, index in call.kept)
    assert call.after.call([], [second.ref], []).after.is_over


def test_a_feed_that_is_fetched_must_have_come() -> None:
    with tf.Graph():
        x = tf.placeholder(tf.float32, [])
    step: PartialStep = begin_partial_step({x.op.name: x.op.node}.__getitem__, [x.ref], [], [x.ref])
    with pytest.raises(InvalidArgumentError, match="has not been fed"):
        step.call([], [x.ref], [])
    call = step.call([x.ref], [x.ref], [])
    assert (call.computed, call.after.is_over) == ((), True)
