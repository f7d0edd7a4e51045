"""Stages: they are those of the real compile, in order, and say what each changed."""

from itertools import pairwise

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.text.graph_text import print_subgraph
from flowrt.viz import stages
from flowrt.viz.stages import PHASES
from tests.viz.graphs import CPU0, CPU1, nested, network, two_devices_session


def test_stages_come_in_the_order_of_the_phases_and_end_with_what_the_session_runs():
    graph, x, loss, train = network()
    with two_devices_session(graph) as session:
        found = stages(session, [loss, train], {x: np.zeros([8, 16])})
        plan = session.plan_of([loss, train], {x: (8, 16)})
        phases = list(dict.fromkeys(stage.phase for stage in found))
        assert phases == [phase for phase in PHASES if phase in phases]
        assert set(PHASES) - set(phases) <= {"fused"}
        placed = next(stage for stage in reversed(found) if stage.phase == "placed")
        assert print_subgraph(placed.parts[""]) == print_subgraph(plan.placed)
        assert {name: list(part.nodes) for name, part in found[-1].parts.items()} == {
            name: list(part.subgraph.nodes) for name, part in plan.partitions.items()
        }


def test_each_stage_says_what_it_changed():
    graph, _, loss, train = network()
    found = stages(graph, [loss, train])
    for before, after in pairwise(found):
        old = {node.name: node for part in before.parts.values() for node in part}
        new = {node.name: node for part in after.parts.values() for node in part}
        assert set(after.change.added) == new.keys() - old.keys()
        assert set(after.change.removed) == old.keys() - new.keys()
        assert set(after.change.changed) <= old.keys() & new.keys()
        same = (old.keys() & new.keys()) - set(after.change.changed)
        assert all(old[n].inputs == new[n].inputs and old[n].device == new[n].device for n in same)
        assert all(old[n].attrs is new[n].attrs for n in same)
    by_name = {stage.name: stage for stage in found}
    assert "layer_0/w/Assign" in by_name["extract"].change.removed
    assert set(by_name["place"].change.changed) == set(by_name["place"].parts[""].nodes)
    assert any("_send_" in name for name in by_name["partition"].change.added)


def test_a_pass_that_changes_nothing_is_no_stage():
    with tf.Graph().as_default() as graph:
        y = tf.sin(tf.placeholder("float32", [2], name="x"), name="y")
    names = [stage.name for stage in stages(graph, y)]
    assert names == ["built", "extract", "place", "partition", "scheduled"]


def test_fused_groups_are_told_by_member():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder("float32", [64], name="x")
        y = tf.reduce_sum(tf.exp(tf.sin(x, name="s"), name="e"), name="y")
    *_, fused, last = stages(graph, y)
    assert (fused.phase, fused.name, fused.parts) == ("fused", "fuse", last.parts)
    assert set(fused.change.removed) | set(fused.change.changed) >= {"s", "e"}
    assert last.phase == "scheduled"
    assert last.fused["s"] == last.fused["e"]
    assert last.fused["s"] in last.parts[CPU0].nodes


def test_a_graph_without_a_session_has_the_devices_that_it_asks_for():
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:1/cpu:0"):
            v = tf.get_variable("v", [4])
        with tf.device("/job:worker/task:0/gpu:1"):
            y = tf.exp(v, name="y")
    devices = set(next(s for s in stages(graph, y) if s.phase == "partitioned").parts)
    assert devices == {"/job:ps/replica:0/task:1/device:CPU:0", "/job:worker/replica:0/task:0/device:GPU:1"}


def test_loops_on_two_devices_are_split_into_two():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder("float32", [], name="x")

        def body(i, a):
            with tf.device("/cpu:0"):
                i = i + 1
            with tf.device("/cpu:1"):
                return i, tf.sin(a)

        y = tf.while_loop(lambda i, a: i < 3, body, [0, x])[1]
    parts = stages(graph, y)[-1].parts
    assert set(parts) == {CPU0, CPU1}
    assert all(any(node.op.name == "_Loop" for node in part) for part in parts.values())


def test_without_fetches_all_that_nothing_reads_is_computed():
    graph, _ = nested()
    assert stages(graph)[-1].phase == "scheduled"


def test_errors_are_those_of_a_run():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder("float32", [2], name="x")
        y = tf.sin(x)
    with pytest.raises(InvalidArgumentError, match="expected a value in feed_dict for this placeholder"):
        stages(graph, y, {})
    with pytest.raises(DTypeError, match="expected a Session or a Graph; got 3"):
        stages(3, y)
