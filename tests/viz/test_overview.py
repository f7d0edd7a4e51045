"""Pictures of graphs: all operations are in boxes, all connections are drawn, drawings are well formed."""

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import flowrt.graph.ops.surface.all  # noqa: F401  # defines every op
from flowrt.control_flow import cond, while_loop
from flowrt.errors import DTypeError, NotFoundError
from flowrt.executor.ends.config import ConfigProto
from flowrt.executor.session.session import Session
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.node import Subgraph
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.elementwise.arithmetic import add
from flowrt.graph.ops.elementwise.math import sin
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.nn.activations import relu
from flowrt.graph.ops.text.python_calls import group
from flowrt.variables.variable import Variable, trainable_variables
from flowrt.viz import overview as viz
from flowrt.viz.roles import inherited, marks, roles_of

CPU0, CPU1 = (f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def graph():
    with Graph() as graph:
        yield graph


def network(graph):
    """Two layers on two devices, their loss, and a training step. Returns the latter two."""
    h = placeholder("float32", [None, 4], name="x")
    for i in range(2):
        with graph.device(f"/cpu:{i}"), graph.name_scope(f"layer{i}"):
            h = relu(matmul(h, Variable(np.ones([4, 4], np.float32), name="w")))
    loss = reduce_sum(h, name="loss")
    slopes = gradients(loss, trainable_variables())
    with graph.name_scope("train"):
        updates = [
            v.assign_sub(g, read_value=False) for v, g in zip(trainable_variables(), slopes, strict=True)
        ]
        return loss, group(*updates)


def boxes_overlap(a, b):
    return abs(a[0] - b[0]) < viz.BOX_WIDTH and abs(a[1] - b[1]) < viz.BOX_HEIGHT


def test_scopes_become_boxes_on_their_devices(graph):
    loss, _ = network(graph)
    picture = viz.collapse(viz.partitions(graph, loss), depth=1)
    assert set(picture.boxes) == {(CPU0, "x"), (CPU0, "layer0"), (CPU1, "layer1"), (CPU0, "loss")}
    assert picture.edges[(CPU0, "x"), (CPU0, "layer0")][0] == "data"
    assert picture.edges[(CPU0, "layer0"), (CPU1, "layer1")] == ("send", 1)


def test_every_operation_that_computes_is_in_one_box(graph):
    parts = viz.partitions(graph, network(graph))
    for depth in range(4):
        drawn = [node.name for box in viz.collapse(parts, depth).boxes.values() for node in box.nodes]
        wanted = [
            node.name
            for part in parts.values()
            for node in part
            if node.op.name not in ("Const", "_Send", "_Recv")
        ]
        assert sorted(drawn) == sorted(wanted)


def test_a_variable_stands_with_its_reads(graph):
    loss, _ = network(graph)
    picture = viz.collapse(viz.partitions(graph, loss), depth=2)
    types = {node.op.name for node in picture.boxes[CPU0, "layer0/w"].nodes}
    assert "VarHandleOp" in types
    assert "ReadVariableOp" in types


@pytest.mark.parametrize(("device", "kind"), [("/cpu:0", "control"), ("/cpu:1", "send")])
def test_an_edge_of_control_is_drawn_as_such_and_across_devices_as_sent(graph, device, kind):
    with graph.device("/cpu:0"):
        begin = Variable(1.0, name="v").initializer
    c = placeholder("float32", [], name="c")
    with graph.device(device), graph.control_dependencies([begin]):
        b = sin(c, name="b")
    edges = viz.collapse(viz.partitions(graph, b)).edges
    kinds = {(source[1], target[1]): found for (source, target), (found, _) in edges.items()}
    assert kinds[("v", "b")] == kind
    assert kinds[("c", "b")] == "data"


def test_a_session_gives_its_own_devices_and_runs_nothing(graph):
    x = add(Variable(1.0, name="v"), 1.0)  # not initialized: running would raise
    with Session(config=ConfigProto(device_count={"CPU": 2})) as session:
        assert list(viz.partitions(session, x)) == [CPU0]
    with graph.device("/cpu:1"):
        y = sin(x)
    assert list(viz.partitions(graph, y)) == [CPU0, CPU1]


def test_boxes_stand_apart_inside_their_bands_and_right_of_what_they_read(graph):
    picture = viz.collapse(viz.partitions(graph, network(graph)), depth=2)
    layout = viz.lay_out(picture)
    assert set(layout.corners) == set(picture.boxes)
    for a, b in itertools.combinations(layout.corners.values(), 2):
        assert not boxes_overlap(a, b)
    for (device, _), (x, y) in layout.corners.items():
        top, height = layout.bands[device]
        assert top < y
        assert y + viz.BOX_HEIGHT < top + height <= layout.height
        assert x > 0
        assert x + viz.BOX_WIDTH < layout.width
    backward = [pair for pair in picture.edges if layout.corners[pair[0]][0] >= layout.corners[pair[1]][0]]
    assert len(backward) <= 1  # the two halves of "train" wait for each other


def test_boxes_that_read_each_other_are_laid_out_too(graph):
    with graph.name_scope("a"):
        x = sin(placeholder("float32", [], name="x"))
    with graph.name_scope("b"):
        y = sin(x)
    with graph.name_scope("a/"):
        z = add(x, y)
    picture = viz.collapse(viz.partitions(graph, z), depth=1)
    assert set(viz.lay_out(picture).corners) == {(CPU0, "a"), (CPU0, "b")}


def test_an_svg_shows_all_boxes_and_edges(graph, tmp_path):
    path = viz.write_graph_picture(graph, network(graph), tmp_path / "graph.svg", depth=1)
    parts = viz.partitions(graph, network_fetches(graph))
    picture = viz.collapse(parts, depth=1, roles=roles_in(graph, parts))
    root = ET.parse(path).getroot()
    assert len(root.findall(f"{SVG}g")) == len(picture.boxes)
    width, height = float(root.get("width")), float(root.get("height"))
    for element in root.findall(f"{SVG}path"):
        curve = np.array(element.get("d").replace("M", "").replace("C", " ").split(), float).reshape(4, 2)
        assert (curve > 0).all()
        assert (curve < [width, height]).all()  # a Bézier curve stays among its points
    drawn = [element.get("class") for element in root.findall(f"{SVG}path")]
    assert sorted(drawn) == sorted(
        picture.edges[ends][0] for ends in picture.edges if picture.is_drawn(*ends)
    )
    assert {"layer0", "layer1", "Optimizer"} <= {element.text for element in root.iter(f"{SVG}text")}
    assert CPU1 in {element.text for element in root.iter(f"{SVG}text")}


def roles_in(graph, parts):
    whole = Subgraph({op.name: op.node for op in graph.get_operations()})
    return inherited(parts.values(), roles_of(whole, marks(graph), graph.derivatives.values()))


def test_gradients_and_the_optimizer_are_set_apart_from_the_model(graph, tmp_path):
    root = ET.parse(viz.write_graph_picture(graph, network(graph), tmp_path / "graph.svg")).getroot()
    apart = [
        box.find(f"{SVG}text").text
        for box in root.findall(f"{SVG}g")
        if box.find(f"{SVG}rect").get("class") == "box role"
    ]
    assert sorted(apart) == ["Gradients", "Gradients", "Optimizer", "Optimizer"]
    parts = viz.partitions(graph, network_fetches(graph))
    picture = viz.collapse(parts, depth=1, roles=roles_in(graph, parts))
    between = [ends for ends in picture.edges if len({picture.boxes[key].role is None for key in ends}) == 2]
    assert {picture.edges[ends][0] for ends in between if picture.is_drawn(*ends)} <= {"send"}
    assert not all(picture.is_drawn(*ends) for ends in between)


def network_fetches(graph):
    return [graph.get_tensor_by_name("loss:0"), graph.get_operation_by_name("train/group_deps")]


def test_a_large_graph_is_collapsed_until_it_can_be_read(graph, tmp_path):
    x = placeholder("float32", [], name="x")
    for i in range(3 * viz.MAX_BOXES):
        with graph.name_scope(f"part{i}"):
            x = sin(x)
    root = ET.parse(viz.write_graph_picture(graph, x, tmp_path / "large.svg")).getroot()
    assert len(root.findall(f"{SVG}g")) == 2  # the fed placeholder, and all Sin
    assert f"{3 * viz.MAX_BOXES} ops" in {element.text for element in root.iter(f"{SVG}text")}


def nested(graph):
    """A branch in a loop. Returns the loop's result."""
    x = placeholder("float32", [], name="x")
    return while_loop(
        lambda i, _: i < 3, lambda i, a: (i + 1, cond(a > 1, lambda: sin(a), lambda: a)), [0, x]
    )[1]


def test_functions_are_drawn_in_the_box_of_their_owner(graph):
    picture = viz.collapse(viz.partitions(graph, nested(graph)))
    loop = picture.boxes[CPU0, "while()"]
    branch = loop.inner.boxes["body", "cond()"]
    assert [node.op.name for node in loop.nodes] == ["_Loop"]
    assert ("branches[1]", "Sin") in branch.inner.boxes
    assert picture.size > len(picture.boxes) + len(loop.inner.boxes)
    layout = viz.lay_out(picture)
    inside = layout.inner[CPU0, "while()"]
    width, height = layout.sizes[CPU0, "while()"]
    assert inside.width <= width
    assert inside.height < height
    for key, (x, y) in inside.corners.items():
        assert x + inside.sizes[key][0] < inside.width
        assert y + inside.sizes[key][1] < inside.height


def test_an_svg_shows_functions_in_functions(graph, tmp_path):
    root = ET.parse(viz.write_graph_picture(graph, nested(graph), tmp_path / "graph.svg")).getroot()
    texts = {element.text for element in root.iter(f"{SVG}text")}
    assert {"while()", "body", "cond()", "branches[0]", "branches[1]", "Sin"} <= texts


def test_a_constant_graph_gives_an_empty_picture(graph, tmp_path):
    ET.parse(viz.write_graph_picture(graph, convert_to_tensor(1.0), tmp_path / "none.svg"))


def test_another_name_is_written_by_export(graph, tmp_path):
    loss, _ = network(graph)
    text = Path(viz.write_graph_picture(graph, loss, tmp_path / "graph.dot", depth=1)).read_text()
    assert f'label="{CPU0}"' in text
    assert "style=dashed" in text
    assert Path(viz.write_graph_picture(graph, loss, tmp_path / "graph.pb")).stat().st_size > 1000


def test_wrong_arguments_are_named(graph, tmp_path):
    x = placeholder("float32", [])
    with pytest.raises(NotFoundError, match=r"x\.pdf: expected a name that ends in one of"):
        viz.write_graph_picture(graph, x, "x.pdf")
    with pytest.raises(DTypeError, match="expected a Session or a Graph; got 3"):
        viz.write_graph_picture(3, x, tmp_path / "x.svg")
