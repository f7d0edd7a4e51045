"""`flowrt export` and `export`: all sources, all views; what is wrong is one line, and no file."""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import flowrt as tf
from flowrt import protos
from flowrt.cli.main import main
from flowrt.errors import DTypeError, InvalidArgumentError, NotFoundError
from flowrt.viz import FORMATS, explain, export
from flowrt.viz.from_parts import view_of
from flowrt.viz.sources import VIEWS, Comparison, Task, source_of
from flowrt.viz.stages import stages
from flowrt.viz.view import EdgeKind, Role
from tests.viz.graphs import CPU1, network, two_devices_session

QUICK = sorted(set(FORMATS) - {"html", "svg"})  # those have files of their own


def exported(*words, **options):
    return Path(export(*words, **options)).read_text()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A GraphDef file, and an event file beside it."""
    directory = tmp_path_factory.mktemp("stored")
    graph, *_ = network()
    tf.train.write_graph(graph, str(directory), "net.pb", as_text=False)
    tf.train.write_graph(graph, str(directory), "net.pbtxt")
    export(directory / "net.pb", directory / "events.out.tfevents.1")
    return directory


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("format", QUICK)
def test_every_format_shows_every_view(stored, tmp_path, format, view):
    path = tmp_path / f"tfevents{FORMATS[format].suffix}"
    assert (
        main(["export", str(stored / "net.pb"), "--format", format, "--view", view, "--out", str(path)]) == 0
    )
    assert path.stat().st_size > 500
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["net.pb", "net.pbtxt", "net.dot", "x.model-explorer.json", "x.netron.pb"])
def test_the_name_of_the_file_chooses_the_format(stored, tmp_path, name):
    export(stored / "net.pbtxt", tmp_path / name)
    beginning = (tmp_path / name).read_bytes()[:10]
    expected = {"net.pbtxt": b"node {", "net.dot": b"digraph", "x.model-explorer.json": b'{"label"'}
    assert beginning.startswith(expected.get(name, b"\n"))


def test_sources_show_one_graph(stored, tmp_path):
    graph, _, loss, _ = network()  # only the live graph knows which operations are gradients
    export(graph, tmp_path / "live.json", fetches=loss, view="placed")
    export(stored / "net.pb", tmp_path / "stored.json", fetches="loss:0", view="placed")
    with two_devices_session(graph) as session:
        export(session, tmp_path / "session.json", fetches=loss, view="placed")
    live, file, session = (
        without_lines(json.loads((tmp_path / f"{name}.json").read_text()))
        for name in ("live", "stored", "session")
    )
    assert live == file == session


def without_lines(read):
    """A file has none of the script's."""
    return [{**node, "source": ""} for node in read["nodes"]], read["edges"], read["groups"]


def test_a_logical_view_with_fetches_has_what_they_need_only(stored, tmp_path):
    export(stored / "net.pb", tmp_path / "some.json", fetches="layer_0/out:0")
    text = (tmp_path / "some.json").read_text()
    assert "layer_0/MatMul" in text
    assert "layer_1/MatMul" not in text


def test_what_comes_from_a_file_has_no_line_of_the_reader(stored, tmp_path):
    text = exported(stored / "net.pb", tmp_path / "x.json")
    assert "test_export.py" not in text
    assert '"source": ""' in text


def test_a_session_shows_where_its_variables_are(tmp_path):
    with tf.Graph().as_default() as graph:
        v = tf.get_variable("v", [4])
    with two_devices_session(graph) as session:
        session.run(tf.variables_initializer([v]))
        with graph.as_default(), tf.device("/cpu:1"):
            y = tf.exp(v, name="y")
        text = exported(session, tmp_path / "x.dot", view="partitioned", fetches=y)
    assert "v/ReadVariableOp:0" in text
    assert "_Send" in text


def test_large_drawings_are_folded_until_they_are_legible(tmp_path):
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder("float32", [2], name="x")
        for i in range(60):
            with tf.name_scope(f"outer_{i % 7}"), tf.name_scope("inner"):
                x = tf.sin(tf.cos(x))
    text = exported(graph, tmp_path / "x.dot")
    assert 10 < text.count("[label=") < 100
    assert "operations" in text


def test_a_depth_and_a_focus(stored, tmp_path):
    path = tmp_path / "x.dot"
    words = ["export", str(stored / "net.pb"), "--out", str(path)]
    assert main([*words, "--depth", "1"]) == 0
    assert "layer × 4" in path.read_text()
    assert main([*words, "--focus", "layer_1/MatMul", "--radius", "0"]) == 0
    assert path.read_text().count(" [label=") == 3  # the drawing, the scope and the operation


# --- bad input: one line, status 2, nothing half-written


def complaint(capsys, words, directory):
    before = sorted(directory.iterdir())
    try:
        status = main(["export", *map(str, words)])
    except SystemExit as ended:  # of the parser
        status = ended.code
    err = capsys.readouterr().err
    assert status == 2
    assert sorted(directory.iterdir()) == before
    assert err.count("\n") == 1
    return err


BAD = {
    "format": (
        ["--format", "dott", "--out", "x.dot"],
        r"expected one of html, dot, .*got 'dott'\. Nearest: dot",
    ),
    "view": (
        ["--view", "placd", "--out", "x.dot"],
        "--view: expected one of logical, placed, partitioned, layouts; got",
    ),
    "suffix": (["--out", "x.docx"], "expected a name that ends in one of .html, .dot"),
    "depth": (["--out", "x.pb", "--depth", "1"], "expected no depth or focus: it contains every operation"),
    "focus": (["--out", "x.dot", "--focus", "layr_1"], r"got 'layr_1'\. Nearest: layer_1"),
    "fetch": (["--out", "x.dot", "--fetch", "nobody:0"], "nobody"),
    "events": (["--out", "x.pb", "--format", "tensorboard"], "expected a name with 'tfevents' in it"),
}


@pytest.mark.parametrize("wrong", BAD)
def test_a_wrong_option_is_one_line(stored, tmp_path, capsys, wrong):
    words, pattern = BAD[wrong]
    words = [str(tmp_path / word) if word.startswith("x.") else word for word in words]
    err = complaint(capsys, [stored / "net.pb", *words], tmp_path)
    assert err.startswith("flowrt export: ")
    assert re.search(pattern, err)


def truncated(path, target, share=0.5):
    data = path.read_bytes()
    target.write_bytes(data[: int(len(data) * share)])
    return target


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("net.pb", "expected a GraphDef; got"),
        ("net.pbtxt", "expected a GraphDef as text; got"),
        ("events.out.tfevents.1", "incomplete record at byte 40"),
    ],
)
def test_a_truncated_file_is_one_line(stored, tmp_path, capsys, name, what):
    source = truncated(stored / name, tmp_path / name)
    assert what in complaint(capsys, [source, "--out", tmp_path / "x.dot"], tmp_path)


def test_a_cut_between_two_nodes_is_noticed_by_what_they_read(stored, tmp_path, capsys):
    message = protos.graph_pb2.GraphDef.FromString((stored / "net.pb").read_bytes())
    del message.node[3]
    (tmp_path / "holey.pb").write_bytes(message.SerializeToString())
    err = complaint(capsys, [tmp_path / "holey.pb", "--out", tmp_path / "x.dot"], tmp_path)
    assert "holey.pb: " in err


@pytest.mark.parametrize(
    ("content", "name", "what"),
    [
        (b"", "empty.pb", "got one without nodes"),
        (b"\x00" * 100, "zeros.pb", "expected a GraphDef; got 100 bytes of something else"),
        (b"\xff\xfe", "bytes.pbtxt", "expected a GraphDef as text"),
        (b"", "x.tfevents", "expected an event file with a graph; got none in it"),
    ],
)
def test_a_file_that_is_no_graph_is_one_line(tmp_path, capsys, content, name, what):
    (tmp_path / name).write_bytes(content)
    assert what in complaint(capsys, [tmp_path / name, "--out", tmp_path / "x.dot"], tmp_path)


def test_a_missing_file_and_a_missing_directory_are_one_line(stored, tmp_path, capsys):
    assert "No such file" in complaint(capsys, ["nowhere.pb", "--out", tmp_path / "x.dot"], tmp_path)
    assert "no'; got none" in complaint(
        capsys, [stored / "net.pb", "--out", tmp_path / "no" / "x.dot"], tmp_path
    )
    (tmp_path / "dir.dot").mkdir()
    error = complaint(capsys, [stored / "net.pb", "--out", tmp_path / "dir.dot"], tmp_path)
    assert "dir.dot: cannot write it" in error
    assert ".tmp" not in error
    assert "expected a Python file" in complaint(capsys, ["no.py", "--out", tmp_path / "x.dot"], tmp_path)


def test_a_place_that_cannot_be_written_is_named_once(stored, capsys):
    err = complaint(capsys, [stored / "net.pb", "--out", "/proc/x.dot"], stored)
    assert err == "flowrt export: /proc/x.dot: cannot write it: No such file or directory\n"


def test_what_is_no_file_is_not_replaced(stored, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.dot")  # as a device, /dev/stdout for instance: root could replace them
    err = complaint(capsys, [stored / "net.pb", "--out", tmp_path / "pipe.dot"], tmp_path)
    assert "pipe.dot: cannot write it: expected a file; got a device or a pipe" in err
    assert (tmp_path / "pipe.dot").is_fifo()


def test_a_source_is_not_replaced_by_its_export(stored, tmp_path, capsys):
    whole = (stored / "net.pb").read_bytes()
    (tmp_path / "net.pb").write_bytes(whole)
    (tmp_path / "same.pb").symlink_to("net.pb")
    for name in ("net.pb", "same.pb"):
        err = complaint(capsys, [tmp_path / "net.pb", "--out", tmp_path / name], tmp_path)
        assert f"{name}: cannot write it: expected a file other than the source" in err
    assert (tmp_path / "net.pb").read_bytes() == whole


def test_what_is_no_source_is_said(tmp_path):
    with pytest.raises(DTypeError, match="expected a Session or a Graph; got 3"):
        export(3, tmp_path / "x.dot")


def test_a_link_stays_one(stored, tmp_path):
    (tmp_path / "real.dot").write_text("old")
    (tmp_path / "link.dot").symlink_to("real.dot")
    export(stored / "net.pb", tmp_path / "link.dot")
    assert (tmp_path / "link.dot").is_symlink()
    assert (tmp_path / "real.dot").read_text().startswith("digraph")


def test_of_a_script_only_what_a_fetch_needs_is_drawn(tmp_path):
    (tmp_path / "script.py").write_text(
        "import flowrt as tf\n"
        "x, y = [tf.placeholder('float32', name=name) for name in 'xy']\n"
        "a, b = tf.sin(x, name='a'), tf.cos(y, name='b')\n"
        "tf.Session().run([a, b], {x: 1.0, y: 2.0})\n"
    )
    for view in VIEWS:
        words = ["export", str(tmp_path / "script.py"), "--view", view, "--fetch", "a"]
        with tf.Graph().as_default():
            assert main([*words, "--out", str(tmp_path / "x.json")]) == 0
        assert {node["name"] for node in json.loads((tmp_path / "x.json").read_text())["nodes"]} == {"x", "a"}


@pytest.mark.parametrize(
    "words",
    [
        ["--out", "x.nope"],
        ["--out", "x.dot", "--view", "nope"],
        ["--out", "x.dot", "--format", "nope"],
        ["--out", "no/x.dot"],
        ["--out", ".", "--format", "dot"],
        ["--out", "script.py", "--format", "dot"],
    ],
)
def test_a_mistake_is_said_before_the_script_runs(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("open('ran', 'w')\n")
    assert "expected" in complaint(capsys, ["script.py", *words], tmp_path)


@pytest.mark.slow
def test_a_worker_that_is_gone_is_one_line(tmp_path, capfd, caplog):
    complaint(capfd, ["grpc://127.0.0.1:1", "--out", tmp_path / "x.dot"], tmp_path)
    assert not caplog.records


def test_a_failed_export_leaves_the_old_file(stored, tmp_path, capsys):
    path = tmp_path / "x.dot"
    path.write_text("old")
    complaint(capsys, [stored / "net.pb", "--focus", "nobody", "--out", path], tmp_path)
    assert path.read_text() == "old"


def test_a_graph_over_the_limits_is_one_line(stored, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("flowrt.tf1.graph_import.read_graph_def.MAX_NODES", 10)
    err = complaint(capsys, [stored / "net.pb", "--out", tmp_path / "x.dot"], tmp_path)
    assert "expected at most 10 nodes" in err


def test_a_file_over_the_limits_is_not_read(stored, tmp_path, capsys):
    with open(tmp_path / "huge.pb", "wb") as file:
        file.truncate(1 << 31)  # takes no room on the disk
    assert "expected at most 2147483647 bytes" in complaint(
        capsys, [tmp_path / "huge.pb", "--out", tmp_path / "x.dot"], tmp_path
    )


def test_a_worker_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("flowrt.viz.sources.WORKER_MS", 300)
    status = main(["export", "grpc://127.0.0.1:1", "--out", str(tmp_path / "x.dot")])
    assert status == 2
    assert "did not answer" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# --- a running worker


def test_a_running_worker_shows_its_parts(tmp_path):
    server = tf.train.Server.create_local_server(tf.ConfigProto(device_count={"CPU": 2}))
    try:
        with pytest.raises(NotFoundError, match="has compiled nothing for the open sessions"):
            export(server.target, tmp_path / "x.json")
        with tf.Graph().as_default(), tf.Session(server.target) as session:
            with tf.device("/cpu:0"):
                x = tf.placeholder("float32", [600], name="x")
            with tf.device("/cpu:1"):
                y = tf.multiply(x, tf.constant(np.arange(600, dtype=np.float32), name="large"), name="y")
            session.run(y, {x: np.zeros(600)})
            text = exported(server.target, tmp_path / "x.json", view="partitioned")
            dot = exported(server.target, tmp_path / "x.dot", view="placed")
            explained = str(explain(server.target))
    finally:
        server.stop()
    assert '"name": "y", "label": "y", "op": "Mul"' in text
    assert '"kind": "transfer"' in text
    assert '"name": "large", "label": "large", "op": "_Feed"' in text  # its value stayed there
    assert "CPU:1" in text
    assert 'label="y\\nMul' in dot
    assert explained.startswith("task: /job:localhost/replica:0/task:0\n")
    assert "the master placed it there" in explained
    assert "Mul(" in explained.partition("program ")[2]


def test_the_graphs_of_a_worker_keep_what_they_send():
    graph, _, loss, train = network()
    with two_devices_session(graph) as session:
        cut = next(stage for stage in stages(session, [loss, train]) if stage.phase == "partitioned")
    part = cut.parts[CPU1]
    shown = view_of(Task("worker", [part, part]).parts("placed"))
    sends = [node for node in shown.nodes.values() if node.op == "_Send"]
    assert {node.group.partition("/")[0] for node in sends} == {"graph_0", "graph_1"}
    tensors = [edge.tensor for edge in shown.edges if edge.kind is EdgeKind.TRANSFER]
    assert len(tensors) == len(set(tensors))


# --- mistakes that are told first


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"depth": 0}, tf.errors.InvalidArgumentError, "depth: expected an integer >= 1; got 0"),
        ({"depth": "x"}, tf.errors.DTypeError, "depth: expected an integer; got 'x'"),
        ({"radius": -1}, tf.errors.InvalidArgumentError, "radius: expected an integer >= 0; got -1"),
        ({"radius": True}, tf.errors.DTypeError, "radius: expected an integer; got True"),
    ],
)
def test_a_wrong_number_is_a_typed_error(tmp_path, options, error, text):
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="a")
    with pytest.raises(error, match=re.escape(text)):
        tf.viz.export(graph, tmp_path / "a.dot", focus="a", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_radius_without_a_focus_is_a_mistake(tmp_path, capsys):
    assert main(["export", str(tmp_path / "a.pb"), "--out", str(tmp_path / "a.dot"), "--radius", "2"]) == 2
    assert "radius: expected --focus OP" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "missing"), [("a.svg", "Graphviz's command 'dot'"), ("a.html", "pip install 'flowrt[viz]'")]
)
def test_what_is_not_installed_is_told_before_the_script_runs(tmp_path, capsys, monkeypatch, name, missing):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "igraph", None)
    script = tmp_path / "train.py"
    script.write_text("open(__file__ + '.ran', 'w').close()")
    assert main(["export", str(script), "--out", str(tmp_path / name)]) == 2
    assert missing in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("against", "told"),
    [
        ("other.py", "got the script other.py. Write its graph first: flowrt export other.py"),
        ("no.pb", "no.pb: "),
    ],
    ids=["script", "missing"],
)
def test_what_cannot_be_compared_with_is_told_before_the_script_runs(tmp_path, capsys, against, told):
    script = tmp_path / "train.py"
    script.write_text("open(__file__ + '.ran', 'w').close()")
    assert main(["export", str(script), "--against", against, "--out", str(tmp_path / "x.html")]) == 2
    assert told in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_only_a_page_compares(tmp_path, stored):
    graph, *_ = network()
    with pytest.raises(InvalidArgumentError, match="format dot: expected html, to compare"):
        export(graph, tmp_path / "x.dot", against=stored / "net.pb")
    words = ["export", str(stored / "net.pb"), "--against", str(stored / "net.pbtxt"), "--out"]
    assert main([*words, str(tmp_path / "x.svg")]) == 2


def test_of_an_operation_that_is_fetched_only_what_it_needs_is_drawn():
    x = tf.get_variable("x", [])
    train = tf.assign_add(x, 1.0, name="train").op
    assert "x/Assign" in source_of(tf.get_default_graph()).parts("logical")[""].nodes
    assert "x/Assign" not in source_of(tf.get_default_graph(), fetches=train).parts("logical")[""].nodes


def test_a_comparison_has_the_differences_of_two_graphs_and_no_lines(stored):
    graph, *_ = network()
    with graph.as_default():
        tf.exp(graph.get_tensor_by_name("loss:0"), name="new")
    both = Comparison(source_of(stored / "net.pb"), source_of(graph))
    before, after = (stage.parts[""] for stage in both.stages())
    assert after.nodes.keys() - before.nodes.keys() == {"new"}
    assert all(node.source is None for node in after)
    assert both.roles["gradients/layer_0/out_grad/ReluGrad"] is Role.GRADIENT  # which the file does not say


def test_a_step_does_not_differ_from_its_own_file(tmp_path):
    """Neither by lines, nor by what is fed, nor by the shapes that follow; parameters of functions have other
    names there.
    """
    x = tf.placeholder(tf.float32, [None, 2], name="x")
    y = tf.cond(tf.reduce_sum(x) > 1.0, lambda: tf.exp(x), lambda: tf.nn.relu(x), name="y")
    graph, step = tf.get_default_graph(), {"fetches": y, "feed_dict": {x: np.ones([3, 2])}}
    export(graph, tmp_path / "own.pb", **step)
    both = Comparison(source_of(tmp_path / "own.pb", fetches=y.name), source_of(graph, **step))
    before, after = (view_of(stage.parts) for stage in both.stages())
    assert {name for name in before.nodes.keys() ^ after.nodes.keys() if "captured" not in name} == set()
    assert [
        name for name in before.nodes.keys() & after.nodes if before.nodes[name] != after.nodes[name]
    ] == []
