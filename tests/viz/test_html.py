"""The HTML file: what it holds, and that it holds together. `test_html_page` opens it in a browser."""

import base64
import gzip
import hashlib
import json
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.cli.main import main
from flowrt.device.llvm import host_jit
from flowrt.errors import DTypeError
from flowrt.executor.observe.recent_steps import recent_steps
from flowrt.protos.step_stats_pb2 import RunMetadata
from flowrt.viz import export
from flowrt.viz.folding.siblings import lifted
from flowrt.viz.from_parts import view_of
from flowrt.viz.html import page
from flowrt.viz.op_facts import OpFacts, measured_seconds
from flowrt.viz.page_data import PageStage, page_data
from flowrt.viz.stages import stages
from flowrt.viz.view import GraphView, NodeView
from tests.profiler.made_stats import DEVICES, add
from tests.viz.graphs import nested, network, two_devices_session

pytest.importorskip("igraph", reason="igraph is not installed: pip install 'flowrt[viz]'")


def decoded(html):
    """The data of a page, as the page reads it."""
    found = re.search(r'<script id="data" type="application/octet-stream">([^<]*)</script>', html)
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(the file's text, the stages in it) of a step on two devices."""
    graph, _, _, train = network()
    path = tmp_path_factory.mktemp("html") / "network.html"
    with two_devices_session(graph) as session:
        found = stages(session, train)
        assert export(session, path, fetches=train) == str(path)
    return path.read_text("utf-8"), found


# --- the data


def rows_of(data, tree, columns):
    values = data["trees"][tree][columns]
    return list(zip(*values.values(), strict=True))


def stage_contents(data):
    """For each stage its operations {name: (op, device)} and edges {(source, target, kind)}, as names."""
    strings, found, rows = data["strings"], [], {}
    for stage in data["stages"]:
        tree = data["trees"][stage["tree"]]
        names = [strings[row] for row in tree["items"]["name"]]
        records, edges = rows.setdefault(stage["tree"], (set(), set()))
        for kept, (dropped, added) in ((records, stage["records"]), (edges, stage["edges"])):
            assert kept.issuperset(dropped)
            assert kept.isdisjoint(added)
            kept.difference_update(dropped)
            kept.update(added)
        ops = {
            names[item]: (strings[op], strings[device])
            for item, op, device, *_ in (rows_of(data, stage["tree"], "records")[row] for row in records)
        }
        links = {
            (names[source], names[target], data["edgeKinds"][kind])
            for source, target, kind, *_ in (rows_of(data, stage["tree"], "edges")[row] for row in edges)
        }
        found.append((ops, links))
    return found


def test_each_stage_can_be_put_together_from_what_it_changed(written):
    html, found = written
    data = decoded(html)
    assert [stage["name"] for stage in data["stages"]][:2] == ["built", "pruned"]
    assert [stage["name"] for stage in data["stages"]][-3:] == ["placed", "partitioned", "scheduled"]
    for stage, (ops, links) in zip(found, stage_contents(data), strict=True):
        view = view_of(stage.parts)
        assert ops == {name: (node.op, node.device) for name, node in view.nodes.items()}
        assert links == {(edge.source, edge.target, edge.kind.value) for edge in view.edges}


def test_items_stand_in_their_groups_and_children_in_different_places(written):
    html, _ = written
    for tree in decoded(html)["trees"]:
        items = tree["items"]
        places = list(zip(items["parent"], items["layer"], items["column"], strict=True))[1:]
        assert len(set(places)) == len(places)
        assert len({len(column) for column in items.values()}) == 1


def test_a_loop_has_its_functions_in_it(tmp_path):
    graph, result = nested()
    export(graph, tmp_path / "nested.html", fetches=result)
    data = decoded((tmp_path / "nested.html").read_text())
    kinds = [data["kinds"][kind] for kind in data["trees"][0]["items"]["kind"]]
    assert kinds.count("function") >= 4


@pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))
def test_what_runs_an_operation_and_how_long(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "background")
    graph, x, loss, train = network()
    metadata = tf.RunMetadata()
    with two_devices_session(graph) as session:
        with graph.as_default():
            session.run(tf.global_variables_initializer())
        feed = {x: np.ones([8, 16], np.float32)}
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        session.run([train, loss], feed, options=options, run_metadata=metadata)
        stats = metadata.step_stats
        export(session, tmp_path / "traced.html", fetches=[train, loss], feed_dict=feed, step_stats=stats)
    facts = decoded((tmp_path / "traced.html").read_text())
    strings, facts = facts["strings"], facts["facts"]
    assert facts["secondsAre"] == "measured"
    names, seconds = facts["seconds"]
    assert "layer_0/MatMul" in [strings[name] for name in names]
    assert all(second > 0 for second in seconds)
    code = {
        strings[name]: "\n".join(strings[row] for row in rows)
        for name, rows in zip(*facts["code"], strict=True)
    }
    assert re.search(r"= MatMul\(.*# layer_0/MatMul", code["layer_0/MatMul"])
    assert any("operands float32" in text for text in code.values())  # a fused group's loop
    members = {strings[name] for name in facts["fused"][0]}
    assert len(members) > 3


def test_what_a_receive_waits_is_no_time_of_its_own():
    metadata = RunMetadata()
    here, there, *_ = DEVICES
    add(metadata.step_stats, there, "x = RandomUniform()", 1_000, 9_000)
    add(metadata.step_stats, here, f"x/_recv = _Recv(x:0 @{there})", 1_000, 9_500)
    add(metadata.step_stats, here, "y = Sum(x/_recv)", 9_500, 10_000)
    add(metadata.step_stats, here, "y = Sum(x/_recv)", 10_000, 10_500)
    assert measured_seconds(metadata.step_stats) == pytest.approx({"x": 8e-6, "y": 1e-6})


@given(st.data())
def test_lifted_edges_are_those_between_the_siblings_that_hold_the_ends(data):
    numbers = [0, *data.draw(st.permutations(range(1, 12)))]  # a parent may have a larger one than its child
    parents = [0] * 12
    for item in range(1, 12):
        parents[numbers[item]] = numbers[data.draw(st.integers(0, item - 1))]
    edges = data.draw(st.lists(st.tuples(st.integers(1, 11), st.integers(1, 11)), max_size=12))

    def path(item):
        return [item] if item == 0 else [*path(parents[item]), item]

    expected = {}
    for a, b in edges:
        for first, second in zip(path(a), path(b), strict=False):
            if first != second:
                expected.setdefault(parents[first], set()).add((first, second))
                break
    assert lifted(edges, parents) == expected


# --- the file


def test_the_file_asks_for_nothing_else(written):
    html, _ = written
    outside = re.sub(r'(?s)<script id="data".*?</script>', "", html)
    assert not re.findall(
        r"""(?i)\b(?:src|href)\s*=|@import|(?<!Object)url\((?!#)|https?://(?!www\.w3\.org/)""", outside
    )


def test_the_policy_allows_the_script_and_the_style_and_nothing_else(written):
    html, _ = written
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert "default-src 'none'" in policy
    for kind, tag in (("script-src", '<script type="module">'), ("style-src", "<style>")):
        text = html.partition(tag)[2].partition("</s")[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy


def test_the_modules_are_one_script_without_imports(written):
    html, _ = written
    script = html.partition('<script type="module">')[2].partition("</script>")[0]
    assert not re.search(r"(?m)^(import|export)\b", script)
    assert "class Page" in script
    names = re.findall(r"(?m)^(?:async )?(?:function\*?|class|const) (\w+)", script)
    assert len(names) == len(set(names))  # one scope: a second one would hide the first


EVIL = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!--", "]]>", "\u2028'\"`${1}"]


def evil_view():
    nodes = {name: NodeView(name, name, "Neg", "", name, {name: name}, (), name) for name in EVIL}
    return GraphView(nodes, [], {})


def test_no_name_can_leave_the_data():
    html = page(page_data(EVIL[0], [PageStage("built", EVIL[1], False, evil_view())], OpFacts())).decode()
    assert not any(name in html for name in EVIL[:2])
    data = decoded(html)
    assert data["title"] == EVIL[0]
    assert set(EVIL) <= set(data["strings"])


def test_the_same_graph_gives_the_same_file(tmp_path):
    for name in ("a.html", "b.html"):
        graph, result = nested()
        export(graph, tmp_path / name, fetches=result)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.fixture
def stored(tmp_path):
    """A GraphDef file."""
    graph, *_ = network()
    tf.train.write_graph(graph, str(tmp_path), "net.pb", as_text=False)
    return tmp_path / "net.pb"


def test_the_command_writes_the_page_of_a_stored_graph(stored, capsys):
    path = stored.with_suffix(".html")
    assert main(["export", str(stored), "--fetch", "loss:0", "--out", str(path)]) == 0
    data = decoded(path.read_text())
    assert data["title"] == "net.pb"
    assert [stage["name"] for stage in data["stages"]][-1] == "scheduled"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("view", "stage"), [("logical", "built"), ("placed", "placed"), ("partitioned",) * 2]
)
def test_the_page_opens_at_the_stage_that_the_view_names(stored, view, stage):
    path = stored.with_suffix(".html")
    assert main(["export", str(stored), "--view", view, "--out", str(path)]) == 0
    data = decoded(path.read_text())
    assert data["stages"][data["opensAt"]]["name"] == stage


def test_without_igraph_the_command_says_so_in_one_line_and_writes_nothing(stored, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "igraph", None)
    assert main(["export", str(stored), "--out", str(stored.with_suffix(".html"))]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "pip install 'flowrt[viz]'" in said.err
    assert [path.name for path in stored.parent.iterdir()] == [stored.name]


def test_an_unwritable_place_is_an_error_with_its_name(tmp_path):
    graph, result = nested()
    with pytest.raises(tf.errors.NotFoundError, match="no_such_folder"):
        export(graph, tmp_path / "no_such_folder" / "x.html", fetches=result)


# --- of a script

SCRIPT = """
import numpy as np
import flowrt as tf

x = tf.placeholder(tf.float32, [8, 16], name="x")
hidden = tf.nn.relu(tf.layers.dense(x, 16, name="hidden") * 2.0 + 1.0)
loss = tf.reduce_mean(tf.square(hidden), name="loss")
train = tf.train.AdamOptimizer(0.01).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(3):
        session.run([train, loss], {x: np.ones([8, 16], np.float32)})
    session.run(hidden, {x: np.ones([8, 16], np.float32)})
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    with tf.Graph().as_default():
        yield path


def facts_in(path):
    """({operation: its code}, the facts) of the page at ``path``."""
    data = decoded(path.read_text())
    strings, facts = data["strings"], data["facts"]
    code = zip(*facts["code"], strict=True)
    named = {strings[name]: "\n".join(strings[row] for row in rows) for name, rows in code}
    return named, {strings[name] for name in facts["seconds"][0]}, facts


@pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))
def test_the_page_of_a_script_has_the_code_of_all_that_runs(script, capsys, monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "background")
    path = script.with_suffix(".html")
    assert main(["export", str(script), "--out", str(path)]) == 0
    code, timed, facts = facts_in(path)
    assert facts["unplanned"] == ""
    assert timed - set(code) == set()
    assert re.search(r"= MatMul\(.*# hidden/MatMul .*train.py:6", code["hidden/MatMul"])
    assert facts["fused"][0]
    assert any("operands float32" in text for text in code.values())
    capsys.readouterr()
    with tf.Graph().as_default():
        assert main(["explain", str(script)]) == 0
    explained = capsys.readouterr().out
    assert code["hidden/MatMul"].splitlines()[0] in explained


def test_a_script_that_ran_is_shown_with_the_times_of_its_step(script):
    path = script.with_suffix(".html")
    assert main(["export", str(script), "--out", str(path)]) == 0
    _, timed, facts = facts_in(path)
    assert facts["secondsAre"] == "measured"
    assert any(name.startswith("gradients/") for name in timed)  # of the training step, not of the last one
    assert recent_steps() is None  # no more steps are kept than before


def test_times_of_another_step_are_not_shown(tmp_path):
    graph, *_, train = network()
    other = RunMetadata()
    add(other.step_stats, DEVICES[0], "something = Else()", 1_000, 9_000)
    tf.viz.export(graph, tmp_path / "a.html", fetches=train, step_stats=[other.step_stats])
    assert facts_in(tmp_path / "a.html")[2]["secondsAre"] == "estimated"


def test_step_stats_may_be_of_one_step(tmp_path):
    with tf.Graph().as_default() as graph:
        y = tf.reduce_sum(tf.random_uniform([30, 30]))
    metadata = RunMetadata()
    with tf.Session(graph=graph) as session:
        session.run(y, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
        tf.viz.export(session, tmp_path / "a.html", fetches=y, step_stats=metadata.step_stats)
        assert facts_in(tmp_path / "a.html")[2]["secondsAre"] == "measured"
        with pytest.raises(DTypeError, match="export: expected the step_stats of a RunMetadata; got "):
            tf.viz.export(session, tmp_path / "b.html", fetches=y, step_stats=metadata)
    assert not (tmp_path / "b.html").exists()


def test_of_a_cluster_the_page_says_where_the_programs_are(tmp_path):
    with tf.Graph().as_default() as graph, tf.device("/job:worker/task:1"):
        y = tf.constant(1.0) + tf.placeholder(tf.float32, [])
    tf.viz.export(graph, tmp_path / "a.html", fetches=y)
    assert "flowrt explain grpc://" in facts_in(tmp_path / "a.html")[2]["unplanned"]
