"""`Saver`: what it saves it restores, and what it cannot restore it refuses before it touches a variable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf


def build(scale: float = 1.0) -> dict[str, tf.Variable]:
    return {
        "w": tf.Variable(np.arange(6, dtype=np.float32).reshape(2, 3) * scale, name="w"),
        "step": tf.Variable(np.int64(7), name="step", trainable=False),
        "half": tf.Variable(np.array([1.5, -2.0], tf.bfloat16.as_numpy_dtype), name="half"),
    }


def values(session: tf.Session, variables: dict[str, tf.Variable]) -> dict[str, Any]:
    return {name: np.array(session.run(v)) for name, v in variables.items()}


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name])


def test_a_new_session_gets_the_saved_values_without_initialization(tmp_path: Path) -> None:
    with tf.Graph():
        variables = build()
        saver = tf.train.Saver()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            expected = values(session, variables)
            prefix = saver.save(session, str(tmp_path / "model"))
        with tf.Session() as session:
            saver.restore(session, prefix)
            assert_same(values(session, variables), expected)


def test_another_graph_with_the_same_names_restores(tmp_path: Path) -> None:
    with tf.Graph():
        variables = build(3.0)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            expected = values(session, variables)
            prefix = tf.train.Saver().save(session, tmp_path / "model")
    with tf.Graph():
        variables = build()
        with tf.Session() as session:
            tf.train.Saver().restore(session, prefix)
            assert_same(values(session, variables), expected)


def test_restoring_changes_what_a_compiled_plan_reads(tmp_path: Path) -> None:
    with tf.Graph():
        w = tf.Variable([1.0, 2.0], name="w")
        doubled = w * 2
        saver = tf.train.Saver()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            prefix = saver.save(session, str(tmp_path / "model"))
            session.run(w.assign([5.0, 5.0]))
            np.testing.assert_array_equal(session.run(doubled), [10.0, 10.0])
            saver.restore(session, prefix)
            np.testing.assert_array_equal(session.run(doubled), [2.0, 4.0])


def test_a_dict_maps_names_in_the_checkpoint_to_variables(tmp_path: Path) -> None:
    with tf.Graph():
        w = tf.Variable([1.0, 2.0], name="w")
        with tf.Session() as session:
            session.run(w.initializer)
            prefix = tf.train.Saver({"other/name": w}).save(session, str(tmp_path / "model"))
    assert tf.train.list_variables(prefix) == [("other/name", [2])]
    with tf.Graph():
        v = tf.Variable([0.0, 0.0], name="v")
        with tf.Session() as session:
            tf.train.Saver({"other/name": v}).restore(session, prefix)
            np.testing.assert_array_equal(session.run(v), [1.0, 2.0])


def test_the_step_is_in_the_name_and_only_the_last_ones_stay(tmp_path: Path) -> None:
    with tf.Graph():
        step = tf.Variable(0, name="step", trainable=False)
        saver = tf.train.Saver(max_to_keep=2)
        with tf.Session() as session:
            session.run(step.initializer)
            for number in range(4):
                session.run(step.assign(number))
                assert saver.save(session, str(tmp_path / "m"), global_step=step) == str(
                    tmp_path / f"m-{number}"
                )
    kept = [str(tmp_path / "m-2"), str(tmp_path / "m-3")]
    assert saver.last_checkpoints == kept
    assert tf.train.latest_checkpoint(str(tmp_path)) == kept[-1]
    assert not tf.train.checkpoint_exists(str(tmp_path / "m-1"))
    assert not tf.train.checkpoint_exists(f"{tmp_path}/")
    assert {path.name.split(".")[0] for path in tmp_path.glob("m-*")} == {"m-2", "m-3"}


def test_another_shape_is_refused_with_both_shapes_and_nothing_changes(tmp_path: Path) -> None:
    with tf.Graph():
        tf.Variable(np.ones([2, 3], np.float32), name="a")
        tf.Variable(np.ones([4], np.float32), name="w")
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            prefix = tf.train.Saver().save(session, str(tmp_path / "model"))
    with tf.Graph():
        a = tf.Variable(np.zeros([2, 3], np.float32), name="a")
        w = tf.Variable(np.zeros([2, 2], np.float32), name="w")
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=r"'w' has shape \(2, 2\).*shape \[4\]"
            ) as caught:
                tf.train.Saver().restore(session, prefix)
            assert "test_saver.py" in str(caught.value)
            assert not session.run(a).any()
            tf.train.Saver(reshape=True).restore(session, prefix)
            np.testing.assert_array_equal(session.run(w), np.ones([2, 2]))


def test_another_dtype_a_missing_name_and_a_missing_checkpoint_are_refused(tmp_path: Path) -> None:
    with tf.Graph():
        tf.Variable([1.0], name="weights")
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            prefix = tf.train.Saver().save(session, str(tmp_path / "model"))
    with tf.Graph(), tf.Session() as session:
        tf.Variable(np.array([1.0]), name="weights")
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"float64.*float32"):
            tf.train.Saver().restore(session, prefix)
    with tf.Graph(), tf.Session() as session:
        tf.Variable([1.0], name="weight")
        with pytest.raises(tf.errors.NotFoundError, match=r"no tensor 'weight'\. Nearest: weights"):
            tf.train.Saver().restore(session, prefix)
    with tf.Graph(), tf.Session() as session:
        weights = tf.Variable([1.0], name="weights")
        tf.train.AdamOptimizer().minimize(tf.reduce_sum(weights))
        with pytest.raises(tf.errors.NotFoundError, match=r"another optimizer\? Saver\(var_list\) restores"):
            tf.train.Saver().restore(session, prefix)
        tf.train.Saver([weights]).restore(session, prefix)
    with tf.Graph(), tf.Session() as session:
        tf.Variable([1.0], name="weight")
        for path in (None, str(tmp_path / "nothing")):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"restore: expected .*; got"):
                tf.train.Saver().restore(session, path)


def test_where_nothing_can_be_saved(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with tf.Graph(), tf.Session() as session:
        session.run(tf.Variable([1.0]).initializer)
        for path, message in (
            (str(tmp_path / "no" / "where" / "m"), "expected the parent directory of .*/no/where; got none"),
            (str(tmp_path / "file" / "m"), "expected a directory; got the file .*/file"),
            (3, "save: expected a path; got 3"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                tf.train.Saver().save(session, path)  # type: ignore[arg-type]
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_damaged_shard_is_refused_and_variables_stay(tmp_path: Path) -> None:
    with tf.Graph():
        w = tf.Variable(np.arange(100, dtype=np.float32), name="w")
        saver = tf.train.Saver()
        with tf.Session() as session:
            session.run(w.initializer)
            prefix = saver.save(session, str(tmp_path / "model"))
            session.run(w.assign(np.zeros(100, np.float32)))
            shard = next(tmp_path.glob("*.safetensors"))
            data = bytearray(shard.read_bytes())
            data[-5] ^= 1
            shard.write_bytes(data)
            with pytest.raises(tf.errors.DataLossError, match="safetensors"):
                saver.restore(session, prefix)
            assert not session.run(w).any()


def test_an_uninitialized_variable_cannot_be_saved_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    with tf.Graph():
        w = tf.Variable([1.0], name="w")
        v = tf.Variable([1.0], name="v")
        saver = tf.train.Saver()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            prefix = saver.save(session, str(tmp_path / "model"))
        with tf.Session() as session:
            session.run(w.initializer)
            with pytest.raises(tf.errors.FailedPreconditionError, match="'v' has no value"):
                saver.save(session, str(tmp_path / "model"))
            saver.restore(session, prefix)
            assert session.run(v)[0] == 1.0


def test_a_saver_works_on_a_finalized_graph(tmp_path: Path) -> None:
    with tf.Graph() as graph:
        w = tf.Variable([1.0], name="w")
        init = tf.global_variables_initializer()
        saver = tf.train.Saver()
        graph.finalize()
        with tf.Session() as session:
            session.run(init)
            saver.restore(session, saver.save(session, str(tmp_path / "model")))
            assert session.run(w)[0] == 1.0


def test_no_variables_or_two_of_one_name_are_refused() -> None:
    with tf.Graph():
        with pytest.raises(tf.errors.InvalidArgumentError, match="got none"):
            tf.train.Saver()
        w = tf.Variable([1.0], name="w")
        with pytest.raises(TypeError, match="expected variables"):
            tf.train.Saver([w, "v"])


def test_a_script_that_saves_and_restores_runs_dry(tmp_path: Path) -> None:
    with tf.Graph(), tf.device("/device:NULL:0"):
        w = tf.Variable(tf.ones([3]), name="w")
        saver = tf.train.Saver()
        with tf.Session(config=tf.ConfigProto(device_count={"NULL": 1})) as session:
            session.run(w.initializer)
            prefix = saver.save(session, str(tmp_path / "model"))
            saver.restore(session, prefix)
            w.load(np.ones(3), session)
    assert np.array_equal(tf.train.load_variable(prefix, "w"), np.zeros(3))


KILLED = """
import sys, numpy as np, flowrt as tf
w = tf.Variable(np.full(200_000, 1.0, np.float32), name="w")
saver = tf.train.Saver()
with tf.Session() as session:
    session.run(w.initializer)
    number = 0
    while True:
        number += 1
        session.run(w.assign(np.full(200_000, number, np.float32)))
        saver.save(session, sys.argv[1])
        print(number, flush=True)
"""


def test_a_process_killed_while_saving_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    prefix = str(tmp_path / "model")
    process = subprocess.Popen([sys.executable, "-c", KILLED, prefix], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    saved = [process.stdout.readline() for _ in range(5)]
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    assert json.loads(saved[-1]) == 5
    value = tf.train.load_variable(prefix, "w")
    assert value[0] >= 5
    assert (value == value[0]).all()
