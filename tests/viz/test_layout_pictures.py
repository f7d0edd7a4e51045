"""Pictures of layouts: what they say is what `explain_layouts` says, and other pictures say nothing of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import flowrt as tf
from flowrt.cli.main import main
from flowrt.graph.layouts.redistribution import _COLLECTIVES, SEND
from flowrt.graph.text.graph_text import parse_subgraph, print_subgraph
from flowrt.viz import explain, explain_layouts, export
from flowrt.viz.folding.fold import fold
from flowrt.viz.formats.dot import COLLECTIVES
from flowrt.viz.formats.picture import edge_lines
from flowrt.viz.html import _script, _text
from flowrt.viz.laid_out import view_of_layouts
from flowrt.viz.sources import source_of
from flowrt.viz.stages import built
from flowrt.viz.view import totals
from tests.viz.browser import Page, chromium, find_chromium
from tests.viz.graphs import network
from tests.viz.test_html import decoded

NODE = shutil.which("node")
needs_igraph = pytest.mark.skipif(
    find_spec("igraph") is None, reason="igraph is not installed: pip install 'flowrt[viz]'"
)
FEWEST = 4
"""Kinds of collectives in the step of `two_layers`: all but an all-to-all."""


def two_layers() -> tuple[tf.Graph, Any]:
    """A training step in which a weight is gathered, a product is added up, and gradients are, into parts and
    as a whole. Returns the graph and the step.
    """
    with tf.Graph().as_default() as graph:
        with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("dp", 2), ("tp", 2)]), batch="dp").scope():
            x = tf.placeholder(tf.float32, [8, 16], name="x")
            with tf.variable_scope("wide"):
                wide = tf.matmul(x, tf.get_variable("w", [16, 32], layout=[None, "tp"]), name="product")
            with tf.variable_scope("narrow"):
                rows = tf.matmul(wide, tf.get_variable("w", [32, 4], layout=["tp", None]), name="product")
                kept = tf.tanh(rows, name="tanh")
                kept = tf.matmul(kept, tf.get_variable("kept", [4, 4], stored=["dp", None]), name="last")
            loss = tf.reduce_mean(tf.square(kept), name="loss")
            train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    return graph, train


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph, train = two_layers()
    return Path(export(graph, tmp_path_factory.mktemp("layouts") / "step.html", fetches=train))


def moves_in(data: Any) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    """What moves in the page's ``data``, by the producer and the reader."""
    strings = data["strings"]
    tree = data["trees"][0]
    names = [strings[row] for row in tree["items"]["name"]]
    edges = tree["edges"]
    rows = [(strings[t], strings[c], strings[a], size, strings[b]) for t, c, a, size, b in edges["moved"]]
    return {
        (names[edges["source"][int(edge)]], names[edges["target"][int(edge)]]): [rows[i] for i in found]
        for edge, found in edges["moves"].items()
    }


# --- the page


@needs_igraph
def test_the_page_has_the_moves_that_are_explained(page: Path) -> None:
    explained = explain_layouts(*two_layers())
    moves = moves_in(decoded(page.read_text()))
    assert explained is not None
    assert {move for found in moves.values() for move in found} == {*map(tuple, explained.moves)}
    assert len(explained.totals()) == FEWEST
    assert moves["narrow/product", "narrow/tanh"] == [
        ("narrow/product:0", "AllReduce", "tp", 2 * 8 * 4 * 4, "float32[8/dp, 4]")
    ]
    assert [move[1] for move in moves["narrow/kept/ReadVariableOp", "narrow/last"]] == ["AllGather"]


@needs_igraph
def test_the_page_opens_at_the_global_graph_with_its_layouts(page: Path) -> None:
    data = decoded(page.read_text())
    names = [stage["name"] for stage in data["stages"]]
    assert names[data["opensAt"]] == "layouts"
    assert names.index("layouts") + 1 == names.index("lower_layouts")
    texts = {data["strings"][text] for text, _ in data["tensors"]}
    assert {"float32[8/dp, 32/tp]", "float32[8/dp, 4]+{tp}", "resource[4/dp, 4]"} <= texts


@needs_igraph
@pytest.mark.parametrize(("view", "stage"), [("layouts",) * 2, ("placed", "lower_collectives")])
def test_the_lowered_graph_is_the_placed_view(tmp_path: Path, view: str, stage: str) -> None:
    graph, train = two_layers()
    data = decoded(Path(export(graph, tmp_path / "step.html", view=view, fetches=train)).read_text())
    assert data["stages"][data["opensAt"]]["name"] == stage


@needs_igraph
def test_a_page_without_a_mesh_has_nothing_of_layouts(tmp_path: Path) -> None:
    graph, *_, train = network()
    html = Path(export(graph, tmp_path / "step.html", fetches=train)).read_text()
    assert f'<script type="module">{_script("main.js")}</script>' in html
    assert f"<style>{_text('style.css')}</style>" in html
    data = decoded(html)
    assert "layouts" not in [stage["name"] for stage in data["stages"]]
    assert all(
        set(tree["edges"]) == {"source", "target", "kind", "index", "transport"} for tree in data["trees"]
    )


@needs_igraph
def test_the_modules_of_layouts_join_the_script_without_hiding_a_name(page: Path) -> None:
    script = page.read_text().partition('<script type="module">')[2].partition("</script>")[0]
    names = re.findall(r"(?m)^(?:async )?(?:function\*?|class|const) (\w+)", script)
    assert "LayoutView" in names
    assert len(names) == len(set(names))
    assert not re.search(r"(?m)^(import|export)\b", script)


def test_each_collective_has_one_colour_everywhere() -> None:
    style = _text("layouts.css")
    light, _, dark = style.partition("prefers-color-scheme")
    assert dict(re.findall(r"--(\w+): (#\w+)", light)) == COLLECTIVES
    assert set(COLLECTIVES) == {*_COLLECTIVES.values(), SEND.collective}
    for kind in COLLECTIVES:
        assert f"--{kind}: #" in dark
        assert f".{kind} {{ background: var(--{kind}); }}" in style


# --- the page's modules, in Node.js

MARKS = """
import { readFileSync } from "node:fs";
import { arrange } from "./arrange.js";
import { Graph } from "./graph.js";
import { labelsOf, marksOn, Moves, totals } from "./marks.js";
import { bundle } from "./wires.js";

const graph = new Graph(JSON.parse(readFileSync("data.json", "utf8")));
const stage = graph.stages[graph.opensAt];
const { tree } = stage;
const moves = new Moves(graph, tree);
const shown = (open) => {
  const wires = bundle(arrange(stage, new Set(open.map((name) => tree.groups.get(name))), true), true);
  const name = (item) => tree.names[item];
  const marks = marksOn(wires, moves).map(({ wire, moves }) => [name(wire.from), name(wire.to), moves]);
  return { marks, labels: [...labelsOf(stage, wires)].map(([item, text]) => [name(item), text]) };
};
const all = [...tree.groups.keys()];
console.log(JSON.stringify({ open: shown(all), closed: shown([]), totals: totals(moves.all) }));
"""


@needs_igraph
@pytest.mark.skipif(NODE is None, reason="Node.js, which runs the page's modules, is not here")
def test_marks_are_on_the_wires_and_labels_below_the_boxes(page: Path, tmp_path: Path) -> None:
    for module in (Path(tf.viz.__file__).parent / "page").glob("*.js"):
        shutil.copy(module, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    data = decoded(page.read_text())
    (tmp_path / "data.json").write_text(json.dumps(data))
    (tmp_path / "marks_of_page.js").write_text(MARKS)
    ran = subprocess.run(
        [str(NODE), "marks_of_page.js"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = json.loads(ran.stdout)
    opened = {
        (source, target): [tuple(m.values()) for m in moves]
        for source, target, moves in found["open"]["marks"]
    }
    assert opened == moves_in(data)
    labels = dict(found["open"]["labels"])
    assert labels["narrow/product"] == "float32[8/dp, 4]+{tp}"
    assert labels["wide/product"] == "float32[8/dp, 32/tp]"
    assert "narrow/kept/ReadVariableOp" not in labels  # is used as a whole
    assert "narrow" not in dict(found["closed"]["labels"])  # its outputs differ
    closed = {move["tensor"] for *_, moves in found["closed"]["marks"] for move in moves}
    assert "x:0" in closed
    assert "narrow/product:0" not in closed  # moves inside of a closed group
    explained = explain_layouts(*two_layers())
    assert explained is not None
    assert {kind: (n, size) for kind, n, size in found["totals"]} == explained.totals()


# --- the page in a browser


@pytest.fixture
def opened(page: Path, tmp_path: Path) -> Iterator[Page]:
    with chromium(tmp_path) as browser:
        shown = browser.open(page)
        yield shown
        assert shown.errors == []
        assert shown.requests == [page.resolve().as_uri()]


@needs_igraph
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here; on Debian: apt-get install chromium")
def test_a_reader_sees_the_legend_the_tip_and_the_details(opened: Page) -> None:
    opened.click_on("#open-all")
    opened.painted()
    kinds = opened.text_of("#collectives").split("\n")[::2]
    assert set(kinds) == {"Slice", "AllGather", "AllReduce", "ReduceScatter"}
    opened.evaluate("flowrtPage.goTo(flowrtPage.stage.tree.itemOf('narrow/tanh'))")
    opened.painted()
    assert "narrow/product:0: AllReduce over tp, 256 B\nfloat32[8/dp, 4]" in opened.text_of(
        "#redistributions"
    )
    at = opened.evaluate("""(() => {
        const [x, y] = flowrtLayouts.placeOf("narrow/product:0");
        const field = flowrtPage.canvas.getBoundingClientRect();
        return [field.x + x, field.y + y];
    })()""")
    opened.move(*at)
    assert opened.text_of("#tip") == "narrow/product:0: AllReduce over tp, 256 B → float32[8/dp, 4]"
    opened.evaluate("flowrtPage.showStage(0)")
    opened.painted()
    assert opened.evaluate("document.getElementById('collectives').hidden")
    assert opened.evaluate("document.getElementById('redistributions') === null")


# --- the other formats


def test_edges_of_dot_have_the_layout_the_collective_and_its_colour(tmp_path: Path) -> None:
    graph, train = two_layers()
    text = Path(export(graph, tmp_path / "step.dot", view="layouts", fetches=train, depth=9)).read_text()
    red = COLLECTIVES["AllReduce"]
    label = r"float32[8/dp, 4]+{tp}\nAllReduce over tp, 256 B"
    assert f'[color="{red}", fontcolor="{red}", label="{label}"]' in text
    flowchart = Path(export(graph, tmp_path / "step.mmd", view="layouts", fetches=train, depth=9)).read_text()
    assert "<br/>AllReduce over tp, 256 B" in flowchart


def test_json_has_layouts_and_moves_in_their_view_only(tmp_path: Path) -> None:
    graph, train = two_layers()
    views = {}
    for view in ("logical", "layouts"):
        written = json.loads(Path(export(graph, tmp_path / "a.json", view=view, fetches=train)).read_text())
        tensors = [tensor for node in written["nodes"] for tensor in node["outputs"]]
        views[view] = tensors, [move for edge in written["edges"] for move in edge.get("moves", ())]
    explained = explain_layouts(graph, train)
    assert explained is not None
    assert {tuple(move.values()) for move in views["layouts"][1]} == {*map(tuple, explained.moves)}
    assert {"dtype": "float32", "shape": [8, 4], "nbytes": 128, "layout": "float32[8/dp, 4]+{tp}"} in views[
        "layouts"
    ][0]
    assert views["logical"][1] == []
    assert all("layout" not in tensor for tensor in views["logical"][0])


def test_an_edge_has_all_steps_to_the_layout_of_its_reader() -> None:
    with tf.Graph().as_default() as graph:
        with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("a", 2), ("b", 2)])).scope():
            w = tf.get_variable("w", [8, 16], layout=[("a", "b"), None])
            added = tf.matmul(tf.placeholder(tf.float32, [8, 8], name="x"), w, name="added")
            rows = tf.distribute.relayout(added, ["a", None], name="rows")
            blocks = tf.distribute.relayout(added, ["a", "b"], name="blocks")
    found = source_of(graph, [rows, blocks]).laid_out
    assert found is not None
    edges = {edge.target: edge for edge in view_of_layouts(found).edges}
    scattered, reduced = edges["rows"].moves
    assert (scattered.collective, scattered.axes, scattered.becomes) == (
        "ReduceScatter",
        "a",
        "float32[8/a, 16]+{b}",
    )
    assert (reduced.collective, reduced.axes, reduced.becomes) == ("AllReduce", "b", "float32[8/a, 16]")
    assert edges["blocks"].moves[0] == scattered  # one step for both
    assert edges["blocks"].moves[1].becomes == "float32[8/a, 16/b]"


def test_a_loop_has_layouts_and_moves_inside() -> None:
    with tf.Graph().as_default() as graph:
        with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("dp", 2), ("tp", 2)]), batch="dp").scope():
            x = tf.placeholder(tf.float32, [8, 8], name="x")
            w = tf.get_variable("w", [8, 8], layout=["tp", None])

            def body(i: Any, h: Any) -> Any:
                return i + 1, tf.tanh(tf.matmul(h, w, name="product"), name="tanh")

            y = tf.while_loop(lambda i, h: i < 3, body, [0, x], name="steps")[1]
    found = source_of(graph, y).laid_out
    assert found is not None
    view = view_of_layouts(found)
    assert str(view.nodes["steps:body/product"].outputs[0]) == "float32[8/dp, 8]+{tp}"
    moves = {(e.source, e.target): [(m.tensor, m.collective) for m in e.moves] for e in view.edges if e.moves}
    assert moves["steps:body/product", "steps:body/tanh"] == [("steps:body/product:0", "AllReduce")]
    assert {move.tensor for move in found.moves} >= {"steps:body/product:0", "x:0"}


def test_a_bundle_of_edges_counts_a_move_that_its_readers_share_once() -> None:
    with tf.Graph().as_default() as graph:
        with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("tp", 2)])).scope():
            w = tf.get_variable("w", [8, 4], layout=["tp", None])
            product = tf.matmul(tf.placeholder(tf.float32, [2, 8], name="x"), w, name="product")
            with tf.name_scope("readers"):
                read = [tf.tanh(product), tf.exp(product)]
    source = source_of(graph, read)
    assert source.laid_out is not None
    view = fold(view_of_layouts(source.laid_out), 1)
    (bundle,) = [edge for edge in view.edges if edge.target == "readers"]
    assert totals(bundle.moves) == {"AllReduce": (1, 2 * 2 * 4 * 4)}
    assert edge_lines(bundle) == ["2 ×", "1 AllReduce, 64 B"]


@pytest.mark.parametrize("out", ["step.dot", "step.html", "step.pb"])
def test_layouts_of_a_step_without_a_mesh_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    pytest.importorskip("igraph", reason="igraph is not installed: pip install 'flowrt[viz]'")
    graph, *_ = network()
    tf.train.write_graph(graph, str(tmp_path), "net.pb", as_text=False)
    words = ["export", str(tmp_path / "net.pb"), "--view", "layouts", "--out", str(tmp_path / "out" / out)]
    (tmp_path / "out").mkdir()
    assert main(words) == 2
    assert (
        capsys.readouterr().err
        == "flowrt export: view layouts: expected a step with a mesh; got one without\n"
    )
    assert [*(tmp_path / "out").iterdir()] == []


# --- layouts in files


@pytest.mark.parametrize("name", ["step.pb", "step.pbtxt", "step.tfevents", "step.netron.pb"])
@pytest.mark.parametrize("view", ["logical", "layouts"])
def test_an_exported_graph_has_the_layouts_of_the_script(tmp_path: Path, name: str, view: str) -> None:
    graph, train = two_layers()
    path = export(graph, tmp_path / name, view=view, fetches=train)
    written, expected = explain_layouts(path, "train"), explain_layouts(graph, train)
    assert written is not None
    assert expected is not None
    assert written.totals() == expected.totals()
    assert {(t.name, t.layout) for t in written.tensors} == {(t.name, t.layout) for t in expected.tensors}


@pytest.mark.parametrize("view", ["placed", "partitioned"])
def test_a_lowered_graph_can_be_imported(tmp_path: Path, view: str) -> None:
    graph, train = two_layers()
    path = export(graph, tmp_path / "step.pb", view=view, fetches=train)
    explained = explain(path)
    assert explained.unplanned == ""
    assert any(placed.name.endswith("wide/product.dp1tp0") for placed in explained.operations)


def test_forms_are_drawn_in_place_of_operations(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("tp", 2)])).scope():
            x = tf.distribute.relayout(tf.placeholder(tf.float32, [4, 8], name="x"), [None, "tp"])

            def body(i: Any, h: Any) -> Any:
                return i + 1, tf.nn.softmax(h * 2.0, name="inner")

            fetched = [
                tf.nn.softmax(x, name="outer"),
                tf.while_loop(lambda i, h: i < 3, body, [0, x], name="loop")[1],
            ]
    found = source_of(graph, fetched).laid_out
    assert found is not None
    view = view_of_layouts(found)
    assert {str(view.nodes[name].outputs[0]) for name in ("outer/@Sum", "loop:body/inner/@Sum")} == {
        "float32[4, 1]+{tp}"
    }
    assert {move for edge in view.edges for move in edge.moves} == set(found.moves)
    written = explain_layouts(export(graph, tmp_path / "step.pb", fetches=fetched), [t.name for t in fetched])
    assert written is not None
    assert written.totals() == totals(found.moves)


def test_the_text_form_keeps_layouts() -> None:
    graph, _ = two_layers()
    whole = built(graph)
    again = parse_subgraph(print_subgraph(whole))
    kept = {node.name: node.attrs["_layout"] for node in again if "_layout" in node.attrs}
    assert kept == {node.name: node.attrs["_layout"] for node in whole if "_layout" in node.attrs}
    assert again.nodes["narrow/kept"].attrs["_stored"] == "[dp]"
    assert {node.attrs["_mesh"] for node in again if "_mesh" in node.attrs} == {"[dp=2, tp=2]"}
