"""Sessions that are looked into: dumps, filters, and commands at a terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import AlreadyExistsError, NotFoundError
from flowrt.python import debug


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logarithm() -> tuple[tf.Tensor, tf.Tensor]:
    x = tf.placeholder(tf.float32, [2], name="x")
    return x, tf.add(tf.log(x, name="log"), 1.0, name="y")


def test_the_tensors_of_each_run_are_written_to_a_folder(tmp_path: Path) -> None:
    x, y = logarithm()
    session = debug.DumpingDebugWrapperSession(tf.Session(), tmp_path / "dumps")
    with session:
        assert tf.get_default_session() is session
        with np.errstate(divide="ignore"):
            y.eval({x: [1.0, 0.0]})
        session.run(y, {x: [1.0, 1.0]})
    first, second = (debug.DebugDumpDir(tmp_path / "dumps" / f"run_{n}") for n in (1, 2))
    assert [datum.node_name for datum in first.find(debug.has_inf_or_nan)] == ["log", "y"]
    assert second.find(debug.has_inf_or_nan) == []
    assert second.get_tensors("log", 0, "DebugIdentity")[0].tolist() == [0, 0]
    assert {"log", "y"} <= set(first.nodes())
    assert "x" not in first.nodes()  # it was fed
    with pytest.raises(NotFoundError, match="no tensor z:0"):
        first.get_tensors("z", 0)
    with pytest.raises(NotFoundError):
        debug.DebugDumpDir(tmp_path)
    with pytest.raises(AlreadyExistsError, match="expected a new or empty folder"):
        debug.DumpingDebugWrapperSession(tf.Session(), tmp_path)


def test_sparse_tensors_and_slices_are_fetched_and_fed(tmp_path: Path) -> None:
    x = tf.sparse_placeholder(tf.float32)
    table = tf.get_variable("table", initializer=[1.0, 2.0, 3.0])
    (slices,) = tf.gradients(tf.gather(table, [2, 0]) * 4, table)
    session = debug.DumpingDebugWrapperSession(tf.Session(), tmp_path)
    session.run(table.initializer)
    value = tf.SparseTensorValue([[0, 1]], [3.0], [2, 2])
    doubled, found = session.run([x * 2.0, {"slices": slices}], {x: value})
    assert doubled.values.tolist() == [6]
    assert found["slices"].indices.tolist() == [2, 0]
    assert x.values.name not in debug.DebugDumpDir(tmp_path / "run_2").nodes()


def test_a_user_runs_until_a_filter_finds_a_tensor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [
        "lt",
        "run -f nothing",
        "run -f has_inf_or_nan",
        "lt -f has_inf_or_nan",
        "pt log",
        "ni y",
        "ni z",
        "run -n",
    ]
    monkeypatch.setattr(sys, "stdin", _Terminal("\n".join([*commands, "exit", ""])))
    x, y = logarithm()
    session = debug.LocalCLIDebugWrapperSession(tf.Session(), ui_type="readline")
    session.add_tensor_filter("nothing_at_all", lambda datum, tensor: False)
    for value in (1.0, 2.0, -1.0, 1.0):  # the third one asks, the fourth is run without a look
        with np.errstate(invalid="ignore"):
            session.run(y, {x: [value, value]})
    shown = capsys.readouterr().out
    assert "error: there was no run yet: type run" in shown
    assert "error: there is no filter 'nothing'; filters: has_inf_or_nan, nothing_at_all" in shown
    assert "2 tensors pass has_inf_or_nan, the first is log:0" in shown
    assert "log:0  float32[2]\ny:0  float32[2]" in shown
    assert "log:0\narray([nan, nan], dtype=float32)" in shown
    assert "  log:0 float32[2]" in shown
    assert "error: operation 'z': not in the graph" in shown
    with pytest.raises(SystemExit):
        session.run(y, {x: [1.0, 1.0]})


def test_without_a_terminal_the_program_runs_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    x, y = logarithm()
    with debug.LocalCLIDebugWrapperSession(tf.Session()) as session:
        assert session.run({"y": y}, {x: [1.0, 1.0]})["y"].tolist() == [1, 1]
        assert session.graph is tf.get_default_graph()


def test_a_hook_writes_the_steps_of_a_monitored_session(tmp_path: Path) -> None:
    step = tf.train.get_or_create_global_step()
    train = tf.assign_add(step, 1)
    with tf.train.MonitoredSession(hooks=[debug.DumpingDebugHook(tmp_path / "dumps")]) as session:
        session.run([train, {"step": step}])
    assert train.op.name in debug.DebugDumpDir(tmp_path / "dumps" / "run_1").nodes()
