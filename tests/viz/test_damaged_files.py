"""Files that are damaged anywhere, or none of ours at all: a picture, or one line, status 2 and no file."""

import importlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.cli.main import main
from flowrt.viz import export
from tests.each import nightly
from tests.viz.graphs import nested

NAMES = ("graph.pb", "graph.pbtxt", "events.out.tfevents.1")
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Nobody is writing: no reader waits for the rest."""
    for name in ("flowrt.report.read_run", "flowrt.viz.sources"):
        monkeypatch.setattr(importlib.import_module(name), "WRITE_S", 0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of each kind of file, of a graph with functions."""
    directory = tmp_path_factory.mktemp("whole")
    graph, result = nested()
    for name in NAMES:
        export(graph, directory / name, fetches=result)
    return {name: (directory / name).read_bytes() for name in NAMES}


damages = st.lists(
    st.tuples(st.sampled_from(("cut", "flip", "zero", "repeat")), st.floats(0, 1), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)


def damaged(data, changes):
    """``data`` with some bytes changed, at their shares of the way through."""
    for kind, share, value in changes:
        at = int(share * len(data))
        if kind == "cut":
            data = data[:at]
        elif kind == "flip":
            data = data[:at] + bytes([byte ^ (value or 1) for byte in data[at : at + 1]]) + data[at + 1 :]
        elif kind == "zero":
            data = data[:at] + bytes(value) + data[at + value :]
        else:
            data = data[:at] + data[at : at + value] + data[at:]
    return data


def answered(command, directory, target, capsys):
    """Run ``command``: it writes ``target`` whole, or says one line and leaves nothing. A report has a line
    for each file of which it lacks something.
    """
    before = {path.name for path in directory.iterdir()}
    capsys.readouterr()
    status = main(list(map(str, command)))
    err = capsys.readouterr().err
    assert status in (0, 2), err
    notes = [line for line in err.splitlines() if not line.startswith("flowrt report: ")]
    assert err.count("\n") == 1 if status else not notes, err
    assert {path.name for path in directory.iterdir()} - before == ({target} if status == 0 else set())
    if target:
        (directory / target).unlink(missing_ok=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("suffix", nightly(["dot", "pb"], 1))
@quick
@given(changes=damages)
def test_a_damaged_file(whole, tmp_path, capsys, name, suffix, changes):
    source = tmp_path / name
    source.write_bytes(damaged(whole[name], changes))
    words = ["export", source, "--view", "partitioned", "--out", tmp_path / f"out.{suffix}"]
    answered(words, tmp_path, f"out.{suffix}", capsys)


@quick
@given(changes=damages)
def test_a_damaged_file_is_explained_or_refused(whole, tmp_path, capsys, changes):
    (tmp_path / "graph.pb").write_bytes(damaged(whole["graph.pb"], changes))
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "graph.pb")]) in (0, 2)
    assert capsys.readouterr().err.count("\n") <= 1


@pytest.mark.parametrize("name", NAMES)
@quick
@given(data=st.binary(max_size=300))
def test_bytes_that_are_no_graph(tmp_path, capsys, name, data):
    (tmp_path / name).write_bytes(data)
    answered(["export", tmp_path / name, "--out", tmp_path / "out.dot"], tmp_path, "out.dot", capsys)


# --- a run's directory


@pytest.fixture(scope="module")
def run_files(tmp_path_factory):
    """An event file with scalars and a traced step, and a timeline."""
    directory = tmp_path_factory.mktemp("run")
    with tf.Graph().as_default() as graph:
        y = tf.reduce_sum(tf.random_uniform([30, 30]))
        loss = tf.summary.scalar("loss", y)
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    with tf.Session(graph=graph) as session, tf.summary.FileWriter(str(directory), graph) as writer:
        writer.add_summary(session.run(loss, options=options, run_metadata=metadata), 1)
        writer.add_run_metadata(metadata, "step_1")
    (events,) = directory.glob("events.*")
    return {"events.out.tfevents.1": events.read_bytes(), "run_metadata.pb": metadata.SerializeToString()}


@pytest.mark.parametrize("switches", [[], ["--skip-damaged"]])
@quick
@given(changes=damages, junk=st.binary(max_size=200))
def test_a_damaged_run(run_files, tmp_path, capsys, switches, changes, junk):
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    for name, data in run_files.items():
        (run / name).write_bytes(damaged(data, changes))
    for name in ("timeline-1.json", "worker-0.log", "events.out.tfevents.2", "anything.bin"):
        (run / name).write_bytes(junk)
    words = ["report", run, "-o", tmp_path / "report.html", *switches]
    answered(words, tmp_path, "report.html", capsys)


def test_a_directory_with_nothing_of_a_run(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    Path(tmp_path / "run" / "notes.txt").write_text("nothing")
    answered(["report", tmp_path / "run", "-o", tmp_path / "report.html"], tmp_path, "report.html", capsys)
