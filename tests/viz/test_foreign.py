"""GraphDefs with ops that flowrt has not are drawn, in all formats; `explain` says what has no kernel."""

import json
import re
from pathlib import Path

import pytest
from google.protobuf import text_format

from flowrt import protos
from flowrt.cli.main import main
from flowrt.errors import InvalidArgumentError, NotFoundError
from flowrt.viz import FORMATS, explain, export, stages, view_of
from flowrt.viz.foreign import needed, read_foreign
from flowrt.viz.foreign_specs import UNKNOWN
from flowrt.viz.sources import VIEWS, source_of
from tests.viz.graphs import network

DETECTOR = """
node { name: "image" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } }
       attr { key: "shape" value { shape { dim { size: 1 } dim { size: 8 } dim { size: 4 } } } } }
node { name: "shape" op: "Const" attr { key: "dtype" value { type: DT_INT32 } } attr { key: "value" value {
       tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } } int_val: -1 int_val: 4 } } } }
node { name: "boxes" op: "Reshape" input: "image" input: "shape" attr { key: "T" value { type: DT_FLOAT } } }
node { name: "find/best" op: "FindBest" input: "boxes" device: "/device:GPU:0"
       attr { key: "limit" value { i: 10 } } attr { key: "refine" value { func { name: "refine" } } } }
node { name: "find/first" op: "Identity" input: "find/best:1" input: "^image"
       attr { key: "T" value { type: DT_FLOAT } } attr { key: "_output_shapes" value { list {
       shape { dim { size: 10 } } } } } }
library { function {
  signature { name: "refine" input_arg { name: "x" type: DT_FLOAT } output_arg { name: "y" type: DT_FLOAT } }
  node_def { name: "split" op: "SplitEvenly" input: "x" }
  node_def { name: "join" op: "Join" input: "split:left:0" input: "split:parts:0" input: "split:parts:1" }
  ret { key: "y" value: "join:out:0" } } }
"""


def parsed(text):
    return text_format.Parse(text, protos.graph_pb2.GraphDef())


@pytest.fixture
def detector(tmp_path):
    (tmp_path / "detector.pbtxt").write_text(DETECTOR)
    return tmp_path / "detector.pbtxt"


def test_nodes_edges_attributes_and_functions_are_shown():
    view = view_of({"": read_foreign(parsed(DETECTOR))})
    best = view.nodes["find/best"]
    assert (best.op, best.device, best.attrs["limit"]) == ("FindBest", "/device:GPU:0", "10")
    assert best.group == "find"
    assert view.nodes["find/best:refine/join"].op == "Join"
    edges = {(edge.source, edge.target, edge.kind) for edge in view.edges}
    assert ("boxes", "find/best", "data") in edges
    assert ("image", "find/first", "control") in edges


def test_shapes_are_those_that_follow_and_those_that_are_told():
    nodes = read_foreign(parsed(DETECTOR)).nodes
    assert str(nodes["boxes"].outputs[0]) == "float32[8, 4]"
    assert [spec.dtype for spec in nodes["find/best"].outputs] == [UNKNOWN, UNKNOWN]
    assert str(nodes["find/first"].outputs[0]) == "float32[10]"
    refine = nodes["find/best"].attrs["refine"]
    assert str(refine.nodes["x"].outputs[0]) == "float32[8, 4]"
    assert len(refine.nodes["split"].outputs) == 3


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"svg", "html"}))
def test_every_format_shows_it_in_every_view(detector, tmp_path, format, view):
    path = export(detector, tmp_path / f"tfevents{FORMATS[format].suffix}", format, view)
    assert b"FindBest" in Path(path).read_bytes()


@pytest.mark.parametrize(
    "attrs",
    [
        "attr { key: 'dtype' value { s: 'int32' } }",
        "attr { key: 'dtype' value { i: 3 } }",
        "attr { key: 'dtype' value { type: DT_INT32 } } attr { key: 'shape' value { s: '[3]' } }",
        "attr { key: 'dtype' value { type: DT_INT32 } } attr { key: 'shape' value { type: DT_INT32 } }",
    ],
)
def test_an_attribute_of_another_kind_leaves_the_output_unknown(attrs):
    text = f"node {{ name: 'a' op: 'Unknown' }} node {{ name: 'x' op: 'Placeholder' {attrs} }}"
    (output,) = view_of({"": read_foreign(parsed(text))}).nodes["x"].outputs
    assert output.shape is None


def test_the_page_has_the_stages_that_there_are(detector, tmp_path):
    written = export(detector, tmp_path / "x.html")
    assert Path(written).stat().st_size > 50_000
    assert [stage.name for stage in source_of(detector).stages()] == ["built", "placed", "partitioned"]


def test_devices_are_those_that_it_asks_for(detector, tmp_path):
    read = json.loads(Path(export(detector, tmp_path / "x.json", view="partitioned")).read_text())
    devices = {node["name"]: node["device"].rpartition("device:")[2] for node in read["nodes"]}
    assert (devices["boxes"], devices["find/best"]) == ("CPU:0", "GPU:0")
    crossing = {(edge["tensor"], edge["kind"]) for edge in read["edges"]}
    assert ("boxes:0", "transfer") in crossing


def test_what_is_exported_again_is_the_same_graph(detector, tmp_path):
    again = export(detector, tmp_path / "again.pbtxt")
    once, twice = (read_foreign(parsed(Path(path).read_text())) for path in (detector, again))
    assert list(once.nodes) == list(twice.nodes)
    for node in once:
        other = twice.nodes[node.name]
        assert (node.op.name, node.inputs, node.controls, node.outputs) == (
            other.op.name, other.inputs, other.controls, other.outputs,
        )  # fmt: skip
    message = parsed(Path(again).read_text())
    (function,) = message.library.function
    assert list(function.node_def[1].input) == ["split:left:0", "split:parts:0", "split:parts:1"]
    assert list(function.ret.values()) == ["join:out:0"]


def test_fetches_leave_what_they_need(detector, tmp_path):
    assert set(needed(read_foreign(parsed(DETECTOR)), ["boxes:0"]).nodes) == {"image", "shape", "boxes"}
    with pytest.raises(NotFoundError, match=r"got 'boxs'\. Nearest: boxes"):
        export(detector, tmp_path / "x.dot", fetches="boxs:0")


def test_explain_says_what_has_no_kernel(detector):
    explained = explain(detector)
    why = {op.name: op.why for op in explained.operations}
    assert why["boxes"] == "default device"
    assert why["find/best"] == "no kernel"
    assert why["find/best:refine/x"] == "a parameter"
    assert "'FindBest' (node 'find/best')" in explained.unplanned


def test_control_flow_of_tensorflow_1_may_go_in_circles(tmp_path):
    text = """
    node { name: "start" op: "Foreign" }
    node { name: "merge" op: "Merge" input: "start" input: "next" attr { key: "N" value { i: 2 } } }
    node { name: "next" op: "NextIteration" input: "merge" }
    """
    (tmp_path / "loop.pbtxt").write_text(text)
    for suffix in ("dot", "html", "json", "pb"):
        assert export(tmp_path / "loop.pbtxt", tmp_path / f"loop.{suffix}", view="partitioned")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('node { name: "a" op: "Foreign" input: "b" }', "expected ops that flowrt has; got 'Foreign'"),
        ('node { name: "a" op: "Foreign" } node { name: "a" op: "Foreign" }', "got 'Foreign'"),
        ('node { name: "a" op: "F" } node { name: "b" op: "F" input: "a:70000" }', "got 'F'"),
        ('node { name: "a" op: "F" device: "/what" }', "'/what'"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(tmp_path, capsys, text, said):
    (tmp_path / "bad.pbtxt").write_text(text)
    words = ["export", str(tmp_path / "bad.pbtxt"), "--out", str(tmp_path / "x.dot"), "--view", "placed"]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x.dot").exists()


def test_a_name_that_is_no_name_is_refused():
    with pytest.raises(InvalidArgumentError, match="a unique printable name"):
        read_foreign(parsed('node { name: "a\\nb" op: "F" }'))


def test_a_function_that_calls_itself_is_drawn_once():
    text = """
    node { name: "a" op: "F" attr { key: "f" value { func { name: "f" } } } }
    library { function { signature { name: "f" }
      node_def { name: "b" op: "F" attr { key: "f" value { func { name: "f" } } } } } }
    """
    view = view_of({"": read_foreign(parsed(text))})
    assert set(view.nodes) == {"a", "a:f/b"}
    assert view.nodes["a:f/b"].attrs["f"] == "f"


def test_functions_that_double_each_other_end_in_a_limit(tmp_path, capsys):
    calls = "".join(
        f"""function {{ signature {{ name: "f{i}" }}
        node_def {{ name: "a" op: "F" attr {{ key: "f" value {{ func {{ name: "f{i + 1}" }} }} }} }}
        node_def {{ name: "b" op: "F" attr {{ key: "f" value {{ func {{ name: "f{i + 1}" }} }} }} }} }}"""
        for i in range(35)
    )
    node = 'node { name: "a" op: "F" attr { key: "f" value { func { name: "f0" } } } }'
    (tmp_path / "bomb.pbtxt").write_text(f"{node} library {{ {calls} }}")
    assert main(["export", str(tmp_path / "bomb.pbtxt"), "--out", str(tmp_path / "x.dot")]) == 2
    assert re.match(
        r"flowrt export: \S+bomb.pbtxt: GraphDef: expected at most 1000000 nodes", capsys.readouterr().err
    )


def test_a_graph_that_flowrt_has_is_compiled_and_not_only_drawn(tmp_path):
    graph, *_ = network()
    path = export(graph, tmp_path / "net.pb")
    assert explain(path).unplanned == ""
    assert len(stages(graph)) > 3
