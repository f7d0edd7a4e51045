"""What is exported as a GraphDef is public: flowrt opens and runs it again, at every stage of its compile."""

from pathlib import Path

import numpy as np
import pytest

import flowrt as tf
from flowrt import protos
from flowrt.errors import InvalidArgumentError
from flowrt.graph.op_def import registered_ops
from flowrt.viz import explain, export
from flowrt.viz.sources import VIEWS
from tests.viz.graphs import two_devices_session

FEEDS = [np.full([3, 8], value, np.float32) for value in (-2.0, -0.1, 0.1, 2.0)]


def branching():
    """Loops, branches of both kinds, a large constant in a branch; on two devices. Returns graph, input,
    output.
    """
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder("float32", [None, 8], name="x")
        weights = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)

        def body(i, y, scale):
            halved = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.tanh(tf.matmul(y, small)), lambda: y * 0.5)
            return i + 1, halved * scale, scale

        small = tf.constant(weights, name="small")
        y = tf.while_loop(lambda i, *_: i < 4, body, [0, x, x[0, 0]], name="loop")[1]
        with tf.device("/cpu:1"):
            total = tf.cast(tf.reduce_sum(y), tf.int32) % 3
            y = tf.switch_case(total, [lambda: y + 1.0, lambda: y - 1.0, lambda: y * 3.0])
        with tf.device("/cpu:0"):
            out = tf.add(y, x, name="out")
    return graph, x, out


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("suffix", [".pb", ".pbtxt", ".tfevents", ".netron.pb"])
def test_every_graph_def_is_opened_again(tmp_path, view, suffix):
    graph, _, out = branching()
    path = export(graph, tmp_path / f"graph{suffix}", view=view, fetches=out)
    again = export(path, tmp_path / f"again{suffix}", view=view)
    assert "out" in str(explain(path))
    assert explain(path).unplanned == ""
    assert "out" in str(explain(again))


@pytest.mark.parametrize("view", VIEWS)
def test_what_was_exported_computes_the_same(tmp_path, view):
    graph, x, out = branching()
    with two_devices_session(graph) as session:
        expected = [session.run(out, {x: value}) for value in FEEDS]
    message = read(export(graph, tmp_path / "graph.pb", view=view, fetches=out))
    fed, fetched = (
        next(node.name for node in message.node if node.name.rpartition("/")[2] == name)
        for name in ("x", "out")
    )
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(message, name="")
    with two_devices_session(imported) as session:
        for value, wanted in zip(FEEDS, expected, strict=True):
            np.testing.assert_array_equal(session.run(f"{fetched}:0", {f"{fed}:0": value}), wanted)


def read(path):
    return protos.graph_pb2.GraphDef.FromString(Path(path).read_bytes())


@pytest.mark.parametrize("view", VIEWS)
def test_no_operation_is_the_compilers_own(tmp_path, view):
    graph, _, out = branching()
    message = read(export(graph, tmp_path / "graph.pb", view=view, fetches=out))
    inner = [node for function in message.library.function for node in function.node_def]
    used = {node.op for node in (*message.node, *inner)}
    own = {name for name in registered_ops() if name.startswith("_")} - {"_Send", "_Recv"}
    assert not used & own
    assert {"While", "If", "Case"} <= used
    assert ("_Recv" in used) == (view == "partitioned")


def test_who_runs_a_graph_without_its_large_constants_is_asked_for_them(tmp_path):
    with tf.Graph().as_default() as graph:
        y = tf.add(tf.constant(np.ones(1000, np.float32), name="large"), 1.0, name="y")
    message = read(export(graph, tmp_path / "graph.pb", fetches=y))
    with tf.Graph().as_default():
        tf.import_graph_def(message, name="")
        with tf.Session() as session:
            with pytest.raises(InvalidArgumentError, match="large"):
                session.run("y:0")
            assert session.run("y:0", {"large:0": np.zeros(1000)})[0] == 1.0


def test_a_part_without_the_other_is_refused_by_name(tmp_path):
    graph, _, out = branching()
    message = read(export(graph, tmp_path / "graph.pb", view="partitioned", fetches=out))
    kept = [node for node in message.node if node.op != "_Send"]
    del message.node[:]
    message.node.extend(kept)
    for node in message.node:
        node.input[:] = [text for text in node.input if "_send_" not in text]
    with tf.Graph().as_default() as imported:
        with pytest.raises(InvalidArgumentError, match=r"expected the _Send of '.*' from .*CPU"):
            tf.import_graph_def(message, name="")
        assert not imported.get_operations()
    (tmp_path / "half.pb").write_bytes(message.SerializeToString())
    assert "elsewhere" in Path(export(tmp_path / "half.pb", tmp_path / "half.dot")).read_text()
