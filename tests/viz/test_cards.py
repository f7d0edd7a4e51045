"""What notebooks show of objects: facts as escaped text, pictures that need nothing from outside."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html import unescape
from typing import Any

import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError, NotFoundError


@pytest.fixture
def graph() -> tf.Graph:
    with tf.Graph() as graph, tf.device("/cpu:0"):
        x = tf.placeholder(tf.float32, [None, 3], name="x")
        loss = tf.reduce_sum(tf.layers.dense(x, 4, name="hidden"), name="loss")
        tf.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    return graph


def text_of(shown: Any) -> str:
    """The text of a card, one space between words."""
    html = shown._repr_html_()
    assert "<script" not in html
    assert "http" not in re.sub(r'src="data:[^"]*"', "", html)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def test_a_tensor_says_what_it_is_and_where_it_was_made(graph: tf.Graph) -> None:
    text = text_of(graph.get_tensor_by_name("loss:0"))
    assert text.startswith("Tensor loss:0 shape () dtype float32 operation Sum device /device:CPU:0 made at")
    assert text.endswith(f"{__file__}:22")


def test_an_operation_names_its_inputs_and_outputs(graph: tf.Graph) -> None:
    text = text_of(graph.get_operation_by_name("hidden/MatMul"))
    assert text.startswith("Operation MatMul hidden/MatMul inputs x:0 float32 (?, 3) hidden/")
    assert "outputs float32 (?, 4)" in text


def test_a_variable_tells_its_size(graph: tf.Graph) -> None:
    with graph:
        kernel = tf.trainable_variables()[0]
    assert "Variable hidden/kernel:0 shape (3, 4) dtype float32 size 48 B trained yes" in text_of(kernel)


def test_a_graph_is_counted_and_drawn(graph: tf.Graph) -> None:
    assert "variables 2 of 64 B; 16 parameters are trained" in text_of(graph)
    assert "Const" in text_of(graph)
    assert 'src="data:image/svg+xml;base64,' in graph._repr_html_()
    assert repr(graph) == f"<flowrt.Graph of {len(graph.operations)} operations>"
    assert "<img" not in tf.Graph()._repr_html_()


def test_a_session_tells_what_it_compiled_and_that_it_is_closed(graph: tf.Graph) -> None:
    with graph:
        session = tf.Session()
        session.run(tf.global_variables_initializer())
    assert "compiled 1 step" in text_of(session)
    assert "device:CPU:0" in text_of(session)
    session.close()
    assert text_of(session).endswith("closed yes")
    assert repr(session) == f"<flowrt.Session of {graph!r}, closed>"


def test_the_steps_and_elements_of_a_dataset() -> None:
    rows = tf.data.Dataset.from_tensor_slices(([1.0, 2.0], [1, 2])).shuffle(2).batch(2)
    both = tf.data.Dataset.zip((rows, rows))
    assert text_of(rows) == "Dataset steps TensorSlices → Shuffle → Batch element float32[?] int32[?]"
    assert "TensorSlices → Shuffle → Batch → Zip" in text_of(both)


def test_strategies_and_meshes_list_their_devices() -> None:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    assert "replicas 2 devices /device:CPU:0 /device:CPU:1" in text_of(strategy)
    mesh = tf.distribute.Mesh([("dp", 2), ("tp", 2)], [f"/cpu:{i}" for i in range(4)])
    assert text_of(mesh).startswith("Mesh [dp=2, tp=2] axes dp=2, tp=2 /device:CPU:0 /device:CPU:1")
    assert "those of the session" in text_of(tf.distribute.Mesh([("dp", 2)]))


def test_names_are_text() -> None:
    with tf.Graph() as graph:
        tf.constant(1.0, name="a>b")
    html = graph.get_operation_by_name("a>b")._repr_html_()
    assert "<code>a&gt;b</code>" in html


def test_a_page_is_shown_in_a_frame_of_its_own(graph: tf.Graph) -> None:
    pytest.importorskip("igraph")
    html = tf.viz.show(graph, fetches="loss:0", height=300)._repr_html_()
    frame = re.fullmatch(r'<iframe title="graph[^"]*" sandbox="([^"]*)" srcdoc="([^"]*)" .*</iframe>', html)
    assert frame is not None
    assert frame[1] == "allow-scripts allow-downloads"
    assert unescape(frame[2]).lstrip().lower().startswith("<!doctype html>")
    with graph:
        assert tf.viz.show(height=300).page == tf.viz.show(graph, height=300).page


def test_a_frame_shows_what_changed_from_another_graph(graph: tf.Graph) -> None:
    pytest.importorskip("igraph")
    with tf.Graph() as before:
        tf.constant(1.0, name="gone")
    shown = tf.viz.show(graph, against=before)
    assert shown.title == "graph, compared with graph"
    found = re.search(r'<script id="data"[^>]*>([^<]*)<', shown.page)
    assert found is not None
    data = json.loads(gzip.decompress(base64.b64decode(found[1])))
    assert [stage["name"] for stage in data["stages"]] == ["before", "after"]


def test_fetches_are_looked_up_by_name_in_the_other_graph(graph: tf.Graph) -> None:
    pytest.importorskip("igraph")
    with tf.Graph() as before:
        tf.constant(1.0, name="loss")
    shown = tf.viz.show(graph, fetches=[graph.get_tensor_by_name("loss:0")], against=before)
    assert shown.title.endswith("compared with graph")


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (dict(height=10), InvalidArgumentError, "show: expected a height of 100 pixels or more; got 10"),
        (dict(height="9"), TypeError, "show: expected the height as an integer; got '9'"),
        (dict(view="logcal"), NotFoundError, "view: expected one of logical.*Nearest: logical"),
        (dict(fetches="nothing:0"), NotFoundError, "got 'nothing:0'"),
        (dict(against=5), TypeError, "against: expected a Session, a Graph or the path of a GraphDef; got 5"),
    ],
    ids=["small", "text", "view", "fetch", "against"],
)
def test_mistakes_in_show(graph: tf.Graph, wrong: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        tf.viz.show(graph, **wrong)
