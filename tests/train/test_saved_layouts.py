"""Variables with layouts: saved in any, restored in any other, on any number of devices."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.passes.layouts.variable_shards import shards_of
from flowrt.train.checkpoints import shard_file
from tests.each import nightly
from tests.train.checkpoint_cases import shard_paths
from tests.train.test_checkpoint_pieces import write_version_1


class Form(NamedTuple):
    """A mesh, and how the matrix is used, and stored if otherwise; without axes, a session without a mesh."""

    axes: Sequence[tuple[str, int]]
    layout: Sequence[Any] = (None, None)
    stored: Sequence[Any] | None = None

    @property
    def devices(self) -> int:
        return int(np.prod([size for _, size in self.axes]))


SAVED = [
    Form([]),
    Form([("a", 2)]),
    Form([("a", 2)], ["a", None]),
    Form([("a", 4)], [None, "a"]),
    Form([("a", 2), ("b", 2)], ["b", "a"]),
    Form([("a", 2), ("b", 2)], ["a", None], [("a", "b"), None]),
]
LOADED = [
    *SAVED,
    Form([("a", 3)], ["a", None]),
    Form([("a", 3)], [None, "a"]),
    Form([("a", 2), ("b", 2)], [("a", "b"), None]),
    Form([("a", 4)], ["a", None]),
    Form([("a", 2)], None, [None, "a"]),
]
VALUES = {
    "w": np.arange(35.0).reshape(5, 7),
    "few": np.arange(3, dtype=np.float32).reshape(3, 1),  # fewer rows than some meshes have devices
    "none": np.zeros((0, 7)),
    "step": np.int64(9),
    "pair": np.array([1 + 2j, 3j]),
    "flag": np.array([True, False, True]),
}


def session_of(form: Form, values: dict[str, Any] = VALUES) -> tuple[Any, dict[str, Any]]:
    """A session with the variables ``values`` in ``form``, not initialized; its graph is the default."""
    tf.reset_default_graph()
    config = tf.ConfigProto(device_count={"CPU": 4})

    def build() -> dict[str, Any]:
        layouts = dict.fromkeys(("w", "few", "none"), form)
        found = {}
        for name, value in values.items():
            initial = tf.constant(value)
            given: dict[str, Any] = {}
            if form.axes and name in layouts:
                given = {"layout": form.layout, "stored": form.stored}
            found[name] = tf.get_variable(name, initializer=initial, **given)
        return found

    if form.axes:
        with tf.distribute.LayoutStrategy(tf.distribute.Mesh(form.axes)).scope():
            variables = build()
    else:
        variables = build()
    return tf.Session(config=config), variables


def assert_restored(session: Any, variables: dict[str, Any], values: dict[str, Any] = VALUES) -> None:
    for name, value in values.items():
        np.testing.assert_array_equal(session.run(variables[name]), value, name)


def assert_copies_are_equal(session: Any, variable: Any, value: np.ndarray) -> None:
    """Each device's part, not only the one that is fetched."""
    (shards,) = session.variable_shards([variable])
    for shard in shards:
        with shard.reading() as array:
            np.testing.assert_array_equal(array, value[shard.slices])


@pytest.mark.parametrize("saved", nightly(SAVED, 3), ids=str)
def test_what_any_layout_saved_any_other_restores(saved: Form, tmp_path: Path) -> None:
    session, variables = session_of(saved)
    with session:
        session.run(tf.global_variables_initializer())
        prefix = tf.train.Saver().save(session, tmp_path / "model")
    assert dict(tf.train.list_variables(prefix)) == {name: list(np.shape(v)) for name, v in VALUES.items()}
    for name, value in VALUES.items():
        np.testing.assert_array_equal(tf.train.load_variable(prefix, name), value)
    for form in LOADED:
        session, variables = session_of(form)
        with session:
            tf.train.Saver().restore(session, prefix)
            assert_restored(session, variables)
            assert_copies_are_equal(session, variables["w"], VALUES["w"])


@pytest.mark.parametrize("form", LOADED, ids=str)
def test_a_checkpoint_of_version_1_is_restored_in_any_layout(form: Form, tmp_path: Path) -> None:
    values = {name: np.asarray(VALUES[name]) for name in ("w", "few", "none", "step")}
    write_version_1(f"{tmp_path}/old", values)
    session, variables = session_of(form, values)
    with session:
        tf.train.Saver().restore(session, f"{tmp_path}/old")
        assert_restored(session, variables, values)


def test_restoring_changes_what_a_step_reads_that_has_run(tmp_path: Path) -> None:
    session, variables = session_of(Form([("a", 2)], ["a", None]))
    with session:
        total = tf.reduce_sum(variables["w"])
        session.run(tf.global_variables_initializer())
        prefix = tf.train.Saver().save(session, tmp_path / "model")
        session.run(variables["w"].assign(tf.zeros([5, 7], tf.float64)))
        assert session.run(total) == 0
        tf.train.Saver().restore(session, prefix)
        assert session.run(total) == VALUES["w"].sum()


def test_equal_copies_are_written_once_and_devices_share_the_work(tmp_path: Path) -> None:
    values = {f"v{i}": np.full((64, 16), i, np.float32) for i in range(8)}
    session, _ = session_of(Form([("a", 2), ("b", 2)]), values)
    with session:
        session.run(tf.global_variables_initializer())
        prefix = tf.train.Saver().save(session, tmp_path / "model")
    manifest = json.loads(Path(f"{prefix}.index.json").read_bytes())
    assert [len(tensor["pieces"]) for tensor in manifest["tensors"].values()] == [1] * 8
    written = sum(path.stat().st_size for path in shard_paths(prefix))
    assert 8 * 4096 < written < 8 * 4096 + 1000


def test_neither_saving_nor_restoring_holds_a_copy_of_a_tensor(tmp_path: Path) -> None:
    """All memory that Python and NumPy allocate meanwhile is less than a shard."""
    values = {"w": np.ones((1024, 1024), np.float32)}
    for axes, layout in product(([("a", 2)], []), (["a", None], [None, "a"])):
        session, variables = session_of(Form(axes, layout), values)
        saver = tf.train.Saver()
        with session:
            session.run(tf.global_variables_initializer())
            for act in (saver.save, saver.restore):
                act(session, f"{tmp_path}/m")  # compiles what there is to compile
                tracemalloc.start()
                act(session, f"{tmp_path}/m")
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert peak < 1 << 20, (axes, layout, peak)
            assert_restored(session, variables, values)


@pytest.mark.parametrize(
    ("given", "rows"),
    [({"stage": 1}, 64), ({"stage": 1}, 65), ({"stage": 3}, 64), ({"offload": "parameters"}, 64)],
)
def test_fully_sharded_training_goes_on_from_a_checkpoint_of_one_device(
    given: dict[str, Any], rows: int, tmp_path: Path
) -> None:
    """At stage 1 weights are whole, of which rows are updated. Of an odd number of rows columns are, which
    are kept besides: both are restored. Offloaded ones are in host memory.
    """

    def losses(strategy: Any, restores: bool) -> list[float]:
        tf.reset_default_graph()
        with strategy.scope() if strategy else nullcontext():
            x = tf.placeholder(tf.float64, [4, rows])
            w = tf.get_variable("w", [rows, 32], tf.float64, tf.zeros_initializer())
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
            train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        feed, saver = {x: np.eye(4, rows)}, tf.train.Saver()
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            if restores:
                saver.restore(session, f"{tmp_path}/model")
            else:
                session.run(tf.global_variables_initializer())
                for _ in range(3):
                    session.run(train, feed)
                saver.save(session, f"{tmp_path}/model")
            return [session.run([loss, train], feed)[0] for _ in range(3)]

    expected = losses(None, False)
    sharded = tf.distribute.FullyShardedStrategy(tf.distribute.Mesh([("dp", 2)]), **given)
    np.testing.assert_allclose(losses(sharded, True), expected, 1e-12)
    assert losses(sharded, False)[0] == pytest.approx(expected[0], 1e-12)
    np.testing.assert_allclose(losses(None, True), expected, 1e-12)


def test_a_saver_with_reshape_restores_another_shape_in_parts(tmp_path: Path) -> None:
    session, _ = session_of(Form([("a", 2)], ["a", None]), {"w": VALUES["w"]})
    with session:
        session.run(tf.global_variables_initializer())
        prefix = tf.train.Saver().save(session, tmp_path / "model")
    session, variables = session_of(Form([("a", 3)], [None, "a"]), {"w": VALUES["w"].reshape(7, 5)})
    with session:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"'w' has shape \(7, 5\).*shape \[5, 7\]"):
            tf.train.Saver().restore(session, prefix)
        tf.train.Saver(reshape=True).restore(session, prefix)
        assert_restored(session, variables, {"w": VALUES["w"].reshape(7, 5)})


def test_a_damaged_piece_leaves_all_variables_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_file, "BLOCK_BYTES", 16)
    session, variables = session_of(Form([("a", 2)], ["a", None]))
    with session:
        session.run(tf.global_variables_initializer())
        prefix = tf.train.Saver().save(session, tmp_path / "model")
        (path,) = shard_paths(prefix)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1  # the last of the smallest elements: of "flag", which is restored last
        path.write_bytes(data)
        session.run([v.assign(tf.zeros_like(v)) for v in variables.values()])
        with pytest.raises(tf.errors.DataLossError, match=rf"{path.name}.*expected CRC-32"):
            tf.train.Saver().restore(session, prefix)
        assert not any(np.any(session.run(v)) for v in variables.values())


def test_a_variable_without_a_value_is_named_and_nothing_is_saved(tmp_path: Path) -> None:
    session, variables = session_of(Form([("a", 2)], ["a", None]))
    with session:
        session.run([v.initializer for name, v in variables.items() if name != "few"])
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"'few.*has no value"):
            tf.train.Saver().save(session, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_the_shards_of_a_handle_are_those_that_steps_have(tmp_path: Path) -> None:
    """The same resources, by name: what a step assigns is in them."""
    session, variables = session_of(Form([("a", 2), ("b", 2)], ["b", "a"]))
    with session:
        session.run(tf.global_variables_initializer())
        assert_copies_are_equal(session, variables["w"], VALUES["w"])
        devices = [device.spec for device in session._runtime.devices]
        shards = shards_of(variables["w"].op.node, devices)
        handles = [shard.handle for shard in shards if shard.handle is not None]
        assert [handle.name for handle in handles] == ["w@a0b0", "w@a0b1", "w@a1b0", "w@a1b1"]
        assert [handle.attrs["shape"] for handle in handles] == [(3, 4), (2, 4), (3, 3), (2, 3)]
