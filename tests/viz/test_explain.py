"""`explain`: each operation's device and a reason that is true, the plan, and the programs' text."""

import re
import sys
from pathlib import Path

import pytest

import flowrt as tf
from flowrt.cli.main import main
from flowrt.device.llvm import host_jit
from flowrt.errors import InvalidArgumentError, NotFoundError
from flowrt.executor.session.session import ON_COMPILE
from flowrt.viz import explain
from flowrt.viz.script import main_request, requests_of_script
from tests.viz.graphs import CPU1, nested, network, two_devices_session

SCRIPT = Path(__file__).parent.parent.parent / "examples" / "digits_mlp.py"


def reasons(what, fetches, feed_dict=None):
    return {
        placed.name: (placed.device[-5:], placed.why)
        for placed in explain(what, fetches, feed_dict).operations
    }


def test_a_request_is_the_reason_and_what_follows_it_says_whom_it_follows():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder("float32", [3, 4], name="x")
        with tf.device("/cpu:1"):
            y = tf.sin(x, name="y")
        z = tf.negative(y, name="z")
    why = reasons(graph, [y, z])
    assert why["y"] == ("CPU:1", "requested /device:CPU:1")
    assert why["x"] == ("CPU:1", "on the device of its consumer y")
    assert why["z"] == ("CPU:0", "default device")


def test_the_graph_of_a_file_with_a_dataset_is_explained_without_a_plan(tmp_path):
    with tf.Graph().as_default() as graph:
        element = tf.data.Dataset.range(3).make_one_shot_iterator().get_next()
        tf.negative(element, name="y")
        tf.train.write_graph(graph.as_graph_def(), str(tmp_path), "graph.pbtxt")
    path = tmp_path / "graph.pbtxt"
    path.write_text(path.read_text().replace("iterator_", "of_another_process_"))
    explained = explain(str(path))
    assert "y" in [placed.name for placed in explained.operations]
    assert "expected the dataset 'of_another_process_" in explained.unplanned


def test_colocated_operations_say_with_whom():
    with tf.Graph().as_default() as graph:
        with tf.device("/cpu:1"):
            v = tf.get_variable("v", [4], use_resource=True)
        with tf.device(None):
            y = tf.exp(v.read_value(), name="y")
        with tf.colocate_with(v.op):
            z = tf.negative(y, name="z")
    why = reasons(graph, z)
    assert why["z"] == ("CPU:1", "requested /device:CPU:1") or "colocated with v" in why["z"][1]
    assert why["v"] == ("CPU:1", "requested /device:CPU:1")


def test_what_is_moved_says_why():
    with tf.Graph().as_default() as graph:
        with tf.device("/gpu:0"):
            text = tf.constant("a", name="text")
            long = tf.string_join([text, text], name="long")
            number = tf.sin(tf.placeholder("float32", [2], name="x"), name="number")
    why = reasons(graph, [long, number])
    assert why["long"] == ("CPU:0", "requested /device:GPU:0, moved: GPU has no kernel for it")
    assert why["number"] == ("GPU:0", "requested /device:GPU:0")
    with tf.Session(graph=graph, config=tf.ConfigProto(allow_soft_placement=True)) as session:
        here = reasons(session, number)
    if not any(device.device_type == "GPU" for device in session.devices):
        assert here["number"] == ("CPU:0", "requested /device:GPU:0, moved: no such device")


def test_what_only_one_device_can_do_says_so():
    with tf.Graph().as_default() as graph:
        with tf.device("/gpu:0"):
            x = tf.sin(tf.placeholder("float32", [2], name="x"), name="s")
        y = tf.as_string(x, name="y")
    assert reasons(graph, y)["y"] == ("CPU:0", "only CPU has a kernel for it")


def test_a_variable_stays_where_an_earlier_step_placed_it():
    with tf.Graph().as_default() as graph, two_devices_session(graph) as session:
        v = tf.get_variable("v", [4])
        session.run(v.initializer)
        assert reasons(session, v.value())["v"] == ("CPU:0", "placed by an earlier step")


def test_the_devices_are_those_of_the_step_that_runs():
    graph, x, loss, train = network()
    with two_devices_session(graph) as session:
        explained = explain(session, [loss, train])
        plan = session.plan_of([loss, train], {x: (8, 16)})
        assert {(o.name, o.device) for o in explained.operations} == {(n.name, n.device) for n in plan.placed}


def test_the_plan_and_the_programs_are_printed():
    graph, _, loss, train = network()
    with two_devices_session(graph) as session:
        explained = explain(session, [loss, train])
    assert [plan.device[-5:] for plan in explained.devices] == ["CPU:0", "CPU:1"]
    first = explained.devices[0]
    assert first.streams == 1
    assert first.arena_bytes >= first.lower_bound_bytes > 0
    text = str(explained)
    assert text.startswith("step: loss:0, train; fed: x:0 float32[8, 16]\n")
    assert "MatMul(" in text
    assert f"program {CPU1}" in text
    assert "graphs.py:" in text


def test_a_fused_group_says_who_is_in_it(monkeypatch):
    pytest.importorskip("llvmlite")
    monkeypatch.setenv("FLOWRT_JIT", "background")
    with tf.Graph().as_default() as graph:
        y = tf.exp(tf.sin(tf.placeholder("float32", [64], name="x"), name="s"), name="e")
    (plan,) = explain(graph, y).devices
    assert [group.members for group in plan.groups] == ["Sin s, Exp e"]


def test_what_is_in_a_loop_is_explained_too():
    graph, result = nested()
    names = [placed.name for placed in explain(graph, result).operations]
    assert any(name.startswith("while:body/") for name in names)
    assert any(":branches[" in name for name in names)


def test_a_request_in_a_loop_is_the_reason_there():
    with tf.Graph().as_default() as graph:

        def body(i, a):
            with tf.device("/cpu:1"):
                return i + 1, tf.sin(a, name="wave")

        x = tf.placeholder("float32", [], name="x")
        result = tf.while_loop(lambda i, a: i < 3, body, [0, x])[1]
    why = reasons(graph, result)
    assert why["while:body/while/wave"] == ("CPU:1", "requested /device:CPU:1")
    assert "a parameter" in {reason for _, reason in why.values()}


def test_of_a_cluster_the_devices_and_why_there_is_no_plan():
    with tf.Graph().as_default() as graph, tf.device("/job:worker/task:1"):
        y = tf.sin(tf.placeholder("float32", [2], name="x"), name="y")
    explained = explain(graph, y)
    assert explained.operations[-1].device == "/job:worker/replica:0/task:1/device:CPU:0"
    assert "no plan: the tasks of the cluster plan their parts" in str(explained)
    assert not explained.devices


def test_a_session_of_a_cluster_compiles_nothing_to_be_explained():
    server = tf.train.Server.create_local_server()
    try:
        with tf.Graph().as_default(), tf.Session(server.target) as session:
            explained = explain(session, tf.sin(tf.constant(0.5), name="y"))
            with pytest.raises(NotFoundError, match="has compiled nothing"):
                explain(server.target)
            with pytest.raises(InvalidArgumentError, match="expected no fetch"):
                explain(server.target, "y")
    finally:
        server.stop()
    assert explained.operations
    assert explained.unplanned.startswith("the tasks of the cluster plan their parts")


# --- scripts


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text("import flowrt as tf\nimport sys\n" + text)
    return path


TRAINING = """
v = tf.get_variable("v", [4], initializer=tf.random_uniform_initializer())
x = tf.placeholder("float32", [None, 4], name="x")
step = tf.train.GradientDescentOptimizer(float(sys.argv[1])).minimize(tf.reduce_sum(x * v), name="step")
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(step, {x: [[1, 2, 3, 4]] * 3})
"""


@pytest.fixture
def own_graph():
    with tf.Graph().as_default():
        yield


def test_of_a_script_the_training_step_is_explained(tmp_path, own_graph, capsys):
    words, path = sys.argv, list(sys.path)
    assert main(["explain", str(script(tmp_path, TRAINING)), "--", "0.5"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("step: step; fed: x:0 float32[3, 4]\n")
    assert "script.py:6" in out
    assert (sys.argv, sys.path) == (words, path)


def test_a_script_may_end_itself(tmp_path, own_graph):
    path = script(tmp_path, TRAINING + "sys.exit(3)\n")
    asked = requests_of_script(str(path), ["0.5"])
    assert len(asked) == 2
    assert [op.name for op in main_request(asked).targets] == ["step"]
    assert main_request(asked, ["init"]) is asked[0]
    with pytest.raises(NotFoundError, match=r"got no\. The script runs step: init; step: step"):
        main_request(asked, ["no"])
    with pytest.raises(NotFoundError, match=r"got stpe\. .*\. Nearest: step"):
        main_request(asked, ["stpe"])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere.py", "expected a Python file; there is none\n"),
        ("nowhere.pb", "cannot read the file: No such file or directory\n"),
        ("quiet.py", "it ran none"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, own_graph, source, words):
    (tmp_path / "quiet.py").write_text("")
    assert main(["explain", str(tmp_path / source)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("flowrt explain: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f():\n    1 / 0\nf()\n", r"script.py:4: ZeroDivisionError: division by zero$"),
        ("raise ValueError('first\\nsecond')\n", r"script.py:3: ValueError: first$"),
        ("tf.ones([2]) + tf.ones([3])\n", r"script.py:3: InvalidArgumentError: Add"),
        ("x = = 1\n", r"script.py:3: SyntaxError: invalid syntax$"),
        ("import no_such_module\n", r"script.py:3: ModuleNotFoundError: No module named 'no_such_module'$"),
    ],
)
def test_an_error_of_the_script_is_one_line(tmp_path, own_graph, capsys, text, said):
    path = str(script(tmp_path, text))
    assert main(["explain", path]) == 2
    assert main(["export", path, "--out", str(tmp_path / "x.dot")]) == 2
    for line in capsys.readouterr().err.splitlines():
        assert re.search(said, line)
    assert ON_COMPILE == []
    assert not (tmp_path / "x.dot").exists()


def test_the_traceback_of_a_script_is_there_for_who_asks(tmp_path, own_graph, caplog):
    caplog.set_level("DEBUG", "flowrt")
    assert main(["explain", str(script(tmp_path, "1 / 0\n"))]) == 2
    assert "ZeroDivisionError" in caplog.text
    assert "script.py" in caplog.text


def test_a_script_that_runs_nothing_is_one_line(tmp_path, own_graph):
    with pytest.raises(InvalidArgumentError, match=r"it ran none$"):
        requests_of_script(str(script(tmp_path, "")))
    with pytest.raises(InvalidArgumentError, match=r"it ran none and ended with no data: fetch it$"):
        requests_of_script(str(script(tmp_path, "sys.exit('no data: fetch it\\nfirst')")))


def test_only_a_script_has_arguments_of_its_own(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["devices", "--", "more"])
    assert "expected nothing after --; got more" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["explain", "net.pb", "--", "more"])
    assert "expected nothing after --; got more" in capsys.readouterr().err


def test_names_choose_operations_and_their_program_lines():
    graph, _, loss, train = network(2)
    whole = explain(graph, [loss, train])
    found = str(whole.only(r"^gradients/MatMul_grad/"))
    assert "layer_0" not in found.partition("program")[0]
    (product,) = [line for line in found.splitlines() if " = MatMul(" in line]
    assert "transpose_b)" in product
    with pytest.raises(NotFoundError, match="none has 'nothing' in it"):
        whole.only("nothing")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--name", "("], "expected a regular expression; got '('"),
        (["--name", "x", "--layouts"], "--name: expected it without --passes and --layouts"),
    ],
    ids=["no expression", "with layouts"],
)
def test_a_wrong_choice_of_names_is_told_before_the_script_runs(capsys, words, message):
    assert main(["explain", str(SCRIPT), *words]) == 2
    assert message in capsys.readouterr().err


def test_what_the_script_prints_is_no_part_of_the_text(capsys, tmp_path, own_graph):
    text = "print('from the script')\nimport flowrt as tf\ntf.Session().run(tf.constant(1.0) + 2.0)\n"
    assert main(["explain", str(script(tmp_path, text))]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("step: ")
    assert "from the script" in err


# --- the stages of the compile


def test_passes_shows_what_each_stage_changed(capsys, monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "background")
    assert main(["explain", str(SCRIPT), "--passes", "all", "--", "--steps", "1"]) == 0
    out = capsys.readouterr().out
    table = out[out.index("passes: extract, ") :].splitlines()
    assert table[0].endswith("fuse_epilogues, fuse)")
    rows = {line.split()[0]: [int(word) for word in line.split()[-4:]] for line in table[2:]}
    assert {"built", "extract", "fold_constants", "place", "scheduled"} <= rows.keys()
    operations, added, removed, _ = rows["extract"]
    assert operations == rows["built"][0] + added - removed
    if host_jit.is_available():
        assert rows["scheduled"][0] < rows["place"][0]  # groups are one node each


def test_passes_runs_only_the_stages_that_are_named(capsys, tmp_path):
    with tf.Graph().as_default() as graph:
        tf.negative(tf.constant(1.0) + 2.0, name="y")
        tf.train.write_graph(graph.as_graph_def(), str(tmp_path), "graph.pbtxt")
    path = str(tmp_path / "graph.pbtxt")
    assert main(["explain", path, "--passes", "extract, place"]) == 0
    out = capsys.readouterr().out
    assert "fold_constants" not in out
    assert "place" in out
    assert main(["explain", path, "--passes", "all"]) == 0
    assert "fold_constants" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "passes", "message"),
    [
        (str(SCRIPT), "extract, plce", "got 'plce'. Nearest: place"),
        ("grpc://127.0.0.1:1", "all", "expected a script or a GraphDef that runs here"),
    ],
)
def test_passes_that_cannot_be_shown_are_refused(capsys, source, passes, message):
    assert main(["explain", source, "--passes", passes]) == 2
    assert message in capsys.readouterr().err
