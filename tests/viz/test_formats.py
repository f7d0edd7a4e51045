"""Formats: each is well formed by its own rules, shows what the view has, and takes no name for markup."""

import json
import re
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import flowrt as tf
from flowrt import protos
from flowrt.errors import ResourceExhaustedError, UnavailableError
from flowrt.summary.event_file import read_events
from flowrt.viz import EdgeKind, export
from flowrt.viz.compile_request import compile_request
from flowrt.viz.export import picture
from flowrt.viz.formats.dot import encode_dot, encode_svg
from flowrt.viz.formats.graph_def import TOO_LARGE, graph_def_of
from flowrt.viz.formats.mermaid import encode_mermaid
from flowrt.viz.formats.model_explorer import encode_model_explorer
from flowrt.viz.formats.picture import MAX_LABEL, clipped, heading
from flowrt.viz.formats.table import FORMATS
from flowrt.viz.sources import Step
from tests.viz.graphs import CPU0, CPU1, nested, network

NASTY = 'a"]; x -> y; <script>\\n#quot;|{}'
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz (apt: graphviz) is not here")


def pictured(view="partitioned", format="dot", depth=None):
    graph, _, loss, train = network()
    source = Step("a net", compile_request(graph, [loss, train]))
    return picture(source, view, FORMATS[format], depth, None, 0)


def renamed(shown):
    """``shown`` with a first node and a first group of a name that is markup everywhere."""
    view = shown.view
    nodes = {name: node._replace(label=NASTY) for name, node in view.nodes.items()}
    groups = {name: group._replace(label=NASTY) for name, group in view.groups.items()}
    return shown._replace(view=view._replace(nodes=nodes, groups=groups), title=NASTY)


# --- dot and svg


def test_dot_has_a_cluster_a_device_a_box_a_node_and_dashes_where_tensors_cross():
    shown = pictured()
    text = encode_dot(shown).decode()
    assert f'label="{CPU0}"' in text
    assert f'label="{CPU1}"' in text
    assert len(re.findall(r"^ +n\d+ \[label", text, re.MULTILINE)) == len(shown.view.nodes)
    assert len(re.findall(r"^  n\d+ -> n\d+ ", text, re.MULTILINE)) == len(shown.view.edges)
    transfers = [edge for edge in shown.view.edges if edge.kind is EdgeKind.TRANSFER]
    assert text.count("style=dashed, color") == len(transfers) > 0
    assert r'label="512 B", tooltip="layer_0/out:0\nfloat32[8, 16]\nshared memory"' in text
    assert text.count("shared memory") == 1 + len(transfers)  # in the title, and in each tooltip


def test_a_picture_with_two_routes_has_that_of_each_transfer_on_it():
    shown = pictured()
    first, *others = [edge for edge in shown.view.edges if edge.kind is EdgeKind.TRANSFER]
    edges = [first._replace(transport="network"), *others]
    text = encode_dot(shown._replace(view=shown.view._replace(edges=edges))).decode()
    assert r"512 B\nnetwork" in text
    assert r"512 B\nshared memory" in text
    assert "transfers by" not in text


def test_dot_colours_devices_when_they_are_known():
    assert 'device1 [label="' + CPU1 in encode_dot(pictured("placed")).decode()
    assert encode_dot(pictured("placed")).decode().count("fillcolor=") > 10
    assert "fillcolor" not in "".join(
        line for line in encode_dot(pictured("logical")).decode().splitlines() if re.match(r" +n\d+ \[", line)
    )


@needs_dot
@pytest.mark.parametrize("view", ["logical", "placed", "partitioned"])
def test_graphviz_draws_every_box_and_edge(view):
    shown = pictured(view)
    root = ET.fromstring(encode_svg(shown))
    kinds = [element.get("class") for element in root.iter("{http://www.w3.org/2000/svg}g")]
    legend = 2 if view == "placed" else 0
    assert kinds.count("node") == len(shown.view.nodes) + legend
    assert kinds.count("edge") == len(shown.view.edges)
    assert kinds.count("cluster") == len(shown.view.groups) + bool(legend)
    assert kinds[-1] == "titles"
    *_, titles = root.iter("{http://www.w3.org/2000/svg}g")
    assert len(titles) == kinds.count("cluster")


@needs_dot
def test_graphviz_takes_no_name_for_markup():
    root = ET.fromstring(encode_svg(renamed(pictured())))
    texts = "".join("".join(element.itertext()) for element in root)
    assert 'a"]; x -> y; <script>' in texts
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_without_graphviz_an_svg_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnavailableError, match="expected Graphviz's command 'dot' on PATH; got none"):
        encode_svg(pictured())


# --- mermaid


def test_mermaid_has_a_line_a_box_and_subgraphs_that_end():
    shown = pictured(format="mermaid", depth=2)
    lines = encode_mermaid(shown).decode().splitlines()
    assert lines[:4] == ["---", f'title: "{heading(shown)}"', "---", "flowchart TB"]
    assert sum(bool(re.match(r" +n\d+[(\[]", line)) for line in lines) == len(shown.view.nodes)
    starts = sum(line.lstrip().startswith("subgraph") for line in lines)
    assert starts == sum(line.strip() == "end" for line in lines) == len(shown.view.groups)
    assert any("-.->|" in line for line in lines)


@pytest.mark.parametrize("view, names", [("placed", 2), ("partitioned", 0)])
def test_mermaid_names_devices_below_each_other_where_they_are_no_boxes(view, names):
    text = encode_mermaid(pictured(view=view, format="mermaid", depth=2)).decode()
    assert len(re.findall(r"^  device\d\(", text, re.MULTILINE)) == names
    assert ("device0 ~~~ device1" in text) == (names == 2)


def test_mermaid_takes_no_name_for_markup():
    lines = encode_mermaid(renamed(pictured(format="mermaid"))).decode().splitlines()
    assert lines[2] == "---"
    for line in lines:
        for text in re.findall(r'"([^"]*)"', line):
            assert not set(text.replace("<br/>", "")) & set("<>{}|\\")
        assert line.count('"') in (0, 2)


def test_mermaid_refuses_what_its_viewer_would():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.constant(1.0)
        for _ in range(600):
            x = tf.sin(x)
    with pytest.raises(ResourceExhaustedError, match="expected at most 400 boxes"):
        picture(Step("", compile_request(graph)), "logical", FORMATS["mermaid"], 9, None, 0)


# --- json and model-explorer


def test_json_is_the_view():
    shown = pictured(format="json")
    read = json.loads(FORMATS["json"].encode(shown))
    assert (read["format"], read["version"]) == ("flowrt-graph", 1)
    assert [node["name"] for node in read["nodes"]] == list(shown.view.nodes)
    assert len(read["edges"]) == len(shown.view.edges)
    assert {group["name"] for group in read["groups"]} == set(shown.view.groups)
    edge = next(e for e in read["edges"] if e["kind"] == "transfer" and e["tensor"] == "layer_0/out:0")
    assert edge["facts"] == {"dtype": "float32", "shape": [8, 16], "nbytes": 512}


def test_model_explorer_has_a_namespace_a_scope_and_edges_at_their_targets():
    """The fields are those of `graph_builder.Graph` of Model Explorer 0.1.34, whose package is too large to
    be a part of the tests.
    """
    shown = pictured(format="model-explorer")
    collection = json.loads(encode_model_explorer(shown))
    assert collection["label"] == shown.title  # without it the page takes the file for another format
    (graph,) = collection["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert set(nodes) == set(shown.view.nodes)
    fields = {"id", "label", "namespace", "attrs", "incomingEdges", "outputsMetadata", "style"}
    assert all(node.keys() <= fields for node in nodes.values())
    device = CPU1.strip("/").replace("/", ".")
    assert nodes["layer_1/MatMul"]["namespace"] == f"{device}/layer_1"
    for node in nodes.values():
        assert all(edge["sourceNodeId"] in nodes for edge in node["incomingEdges"])
        assert all(isinstance(value, str) for attr in node["attrs"] for value in attr.values())
    assert sum(len(node["incomingEdges"]) for node in nodes.values()) == len(shown.view.edges)


# --- GraphDef and event file


def test_a_graph_def_has_devices_shapes_lines_and_no_large_constant():
    message = graph_def_of(pictured("placed", "graphdef").parts)
    nodes = {node.name: node for node in message.node}
    assert nodes["layer_1/MatMul"].device == CPU1
    assert [dim.size for dim in nodes["layer_1/MatMul"].attr["_output_shapes"].list.shape[0].dim] == [8, 16]
    assert b"graphs.py:" in nodes["layer_1/MatMul"].attr["_source"].s
    large = nodes["large"]
    assert large.op == "Placeholder"
    assert [dim.size for dim in large.attr["shape"].shape.dim] == [16, 32]
    assert list(large.attr[TOO_LARGE].list.s) == [b"value"]
    assert all(node.ByteSize() < 2048 for node in message.node)


def test_a_partitioned_graph_def_has_a_scope_a_device_and_no_dangling_input():
    message = graph_def_of(pictured("partitioned", "graphdef").parts)
    names = {node.name for node in message.node}
    assert {name.split("/")[0] for name in names} == {"localhost_0_0_CPU_0", "localhost_0_0_CPU_1"}
    for node in message.node:
        assert all(text.removeprefix("^").partition(":")[0] in names for text in node.input)
        if node.op == "_Recv":
            assert any(text.startswith("^") and "_send_" in text for text in node.input)


def test_large_constants_in_functions_are_left_out_too():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder("float32", [512], name="x")
        y = tf.cond(x[0] > 0, lambda: x * np.arange(512, dtype=np.float32), lambda: x)
    shown = picture(Step("", compile_request(graph, y)), "placed", FORMATS["graphdef"], None, None, 0)
    assert graph_def_of(shown.parts).ByteSize() < 8192


def test_text_and_binary_are_one_graph(tmp_path):
    graph, _ = nested()
    binary, text = tmp_path / "g.pb", tmp_path / "g.pbtxt"
    for path in (binary, text):
        export(graph, path)
    again = tmp_path / "again.pb"
    export(text, again)
    assert protos.graph_pb2.GraphDef.FromString(again.read_bytes()).node[0].name == "x"
    names = [node.name for node in protos.graph_pb2.GraphDef.FromString(binary.read_bytes()).node]
    assert names == [op.name for op in graph.get_operations()]


def test_an_event_file_is_whole(tmp_path):
    graph, *_ = network()
    events = list(read_events(export(graph, tmp_path / "graph.tfevents")))
    assert [event.WhichOneof("what") for event in events] == ["file_version", "graph_def"]
    assert protos.graph_pb2.GraphDef.FromString(events[1].graph_def).node


# --- words


def test_a_long_name_keeps_its_end():
    assert clipped("a" * 60 + "end").endswith("aend")
    assert len(clipped("a" * 60)) == MAX_LABEL
