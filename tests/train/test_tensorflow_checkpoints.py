"""`Saver` and TensorFlow's checkpoints: what it trained goes on here, and what is saved here it reads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import flowrt as tf
from tests.storage.cases import RATE, STEPS, batch, tensors
from tests.storage.network import train

FIXTURES = Path(__file__).parents[1] / "storage" / "fixtures"
LOSSES = json.loads((FIXTURES / "losses.json").read_text())
INTERPRETER = os.environ.get("FLOWRT_TENSORFLOW")


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_training_goes_on_from_tensorflows_checkpoint(name: str) -> None:
    """With the optimizer's slots, whose names are TensorFlow's."""
    with tf.Graph(), tf.Session() as session:
        given = {"momentum": 0.9} if name == "Momentum" else {}
        x, y, loss, update = train(tf, getattr(tf.train, f"{name}Optimizer")(RATE, **given))
        tf.train.Saver().restore(session, str(FIXTURES / name))
        assert session.run(tf.train.get_global_step()) == STEPS
        for step in range(STEPS, 2 * STEPS):
            found = session.run([loss, update], dict(zip((x, y), batch(step), strict=True)))[0]
            np.testing.assert_allclose(found, LOSSES[name][step], rtol=1e-5)


@pytest.mark.parametrize("prefix", ["all", "sharded-7", "version_1"])
def test_all_values_are_restored(prefix: str) -> None:
    path = str(FIXTURES / prefix)
    names = dict(tf.train.list_variables(path))
    with tf.Graph(), tf.Session() as session:
        expected = {name: value for name, value in tensors().items() if name in names}
        assert {name: list(value.shape) for name, value in expected.items()} == names
        variables = {
            name: tf.Variable(value, name=name.replace("/", "_")) for name, value in expected.items()
        }
        tf.train.Saver(variables).restore(session, path)
        for name, value in expected.items():
            assert session.run(variables[name]).tolist() == value.tolist()
    assert tf.train.load_variable(path, "by_rows:0").tolist() == tensors()["by_rows"].tolist()


def test_a_layout_reads_its_parts() -> None:
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.Graph(), tf.distribute.LayoutStrategy(tf.distribute.Mesh([("x", 2)])).scope():
        tf.get_variable("by_columns", [2, 150], tf.float64, layout=(None, "x"))
        with tf.Session(config=config) as session:
            tf.train.Saver().restore(session, str(FIXTURES / "all"))
            (shards,) = session.variable_shards(tf.global_variables())
            assert len(shards) == 2
            for shard in shards:
                with shard.reading() as array:
                    assert array.tolist() == tensors()["by_columns"][shard.slices].tolist()


def test_what_does_not_fit(tmp_path: Path) -> None:
    path = str(FIXTURES / "all")
    for shape, dtype, name, error, message in (
        (
            [3],
            tf.float64,
            "float32/of_1",
            tf.errors.InvalidArgumentError,
            "is float64; its saved value is float32",
        ),
        ([4], tf.float32, "float32/of_1", tf.errors.InvalidArgumentError, r"has shape \(4,\)"),
        (
            [3],
            tf.float32,
            "float32/of_9",
            tf.errors.NotFoundError,
            "no tensor 'float32/of_9'. Nearest: float32/of_",
        ),
    ):
        with tf.Graph(), tf.Session() as session, pytest.raises(error, match=message):
            tf.train.Saver({name: tf.Variable(tf.zeros(shape, dtype))}).restore(session, path)
    for path in (f"{FIXTURES}/all.index", f"{FIXTURES}/all.data-00000-of-00001"):
        with tf.Graph(), tf.Session() as session:
            tf.Variable(1.0)
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"remove '\.(index|data-.*)' from it"):
                tf.train.Saver().restore(session, path)
    for name in ("all.index", "all.data-00000-of-00001"):
        shutil.copy(FIXTURES / name, tmp_path)
    (tmp_path / "all.data-00000-of-00001").write_bytes(b"short")
    with tf.Graph(), tf.Session() as session:
        variable = tf.Variable([1.0, 2.0, 3.0], name="v")
        session.run(variable.initializer)
        saver = tf.train.Saver({"float32/of_1": variable})
        with pytest.raises(tf.errors.DataLossError, match="tensor 'float32/of_1': expected bytes"):
            saver.restore(session, str(tmp_path / "all"))
        (tmp_path / "all.data-00000-of-00001").unlink()
        with pytest.raises(tf.errors.NotFoundError, match=r"all\.data-00000-of-00001: tensor 'float32/of_1'"):
            saver.restore(session, str(tmp_path / "all"))
        assert session.run(variable).tolist() == [1.0, 2.0, 3.0]


def test_saved_in_tensorflows_format(tmp_path: Path) -> None:
    """Kept, listed, replaced and removed as checkpoints of flowrt's."""
    with tf.Graph(), tf.Session() as session:
        variables = [tf.Variable(value, name=f"v{i}") for i, value in enumerate(tensors().values())]
        session.run(tf.global_variables_initializer())
        own = tf.train.Saver()
        saver = tf.train.Saver(file_format="tensorflow", max_to_keep=2)
        own.save(session, str(tmp_path / "m"), 1)
        prefixes = [saver.save(session, str(tmp_path / "m"), step) for step in (1, 2, 3)]
        assert saver.last_checkpoints == prefixes[1:]
        assert tf.train.latest_checkpoint(str(tmp_path)) == prefixes[-1]
        left = {f"m-{step}.{kind}" for step in (2, 3) for kind in ("index", "data-00000-of-00001", "meta")}
        assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", *left}
        session.run([v.assign(tf.zeros_like(v)) for v in variables if v.dtype not in (tf.string, tf.bool)])
        saver.restore(session, prefixes[-1])
        for variable, value in zip(variables, tensors().values(), strict=True):
            assert session.run(variable).tolist() == value.tolist()
        tf.train.remove_checkpoint(prefixes[-1])
        assert not tf.train.checkpoint_exists(prefixes[-1])


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tf.Graph(), tf.Session() as session:
        variable = tf.Variable([1.0, 2.0])
        session.run(variable.initializer)
        saver = tf.train.Saver(file_format="tensorflow")
        prefix = saver.save(session, str(tmp_path / "m"))
        session.run(variable.assign([3.0, 4.0]))
        files = {path.name for path in tmp_path.iterdir()}

        def fails(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fails)
            with pytest.raises(tf.errors.ResourceExhaustedError, match=r"saving checkpoint .*No space left"):
                saver.save(session, prefix)
        assert {path.name for path in tmp_path.iterdir()} == files
        assert tf.train.load_variable(prefix, "Variable").tolist() == [1.0, 2.0]


def test_an_unknown_format() -> None:
    with tf.Graph(), pytest.raises(tf.errors.InvalidArgumentError, match="or 'tensorflow'; got 'v2'"):
        tf.train.Saver([tf.Variable(1.0)], file_format="v2")  # type: ignore[arg-type]


@pytest.mark.skipif(INTERPRETER is None, reason="FLOWRT_TENSORFLOW names no interpreter")
def test_tensorflow_reads_what_is_saved(tmp_path: Path) -> None:
    with tf.Graph(), tf.Session() as session:
        names = {name: tf.Variable(value) for name, value in tensors().items()}
        session.run(tf.global_variables_initializer())
        tf.train.Saver(names, file_format="tensorflow").save(session, str(tmp_path / "m"))
    script = (
        "import sys, tensorflow as tf\n"
        "from tests.storage.cases import tensors\n"
        "reader = tf.compat.v1.train.NewCheckpointReader(sys.argv[1])\n"
        "for name, value in tensors().items():\n"
        "    found = reader.get_tensor(name)\n"
        "    assert str(found.dtype) == str(value.dtype) and found.tolist() == value.tolist(), name\n"
    )
    root = Path(__file__).parents[2]
    subprocess.run([str(INTERPRETER), "-c", script, str(tmp_path / "m")], cwd=root, check=True, timeout=120)
