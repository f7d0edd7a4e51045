"""TensorFlow's DTensor names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.experimental import dtensor

CONFIG = tf.ConfigProto(device_count={"CPU": 4})
MESH = dtensor.create_mesh([("batch", 2), ("model", 2)])


def losses(is_laid_out: bool) -> list[float]:
    """Three steps of two layers, with the first one's columns and the second one's rows sharded."""
    rng = np.random.default_rng(0)
    columns, rows = (
        dtensor.Layout([dtensor.UNSHARDED, "model"], MESH),
        dtensor.Layout.batch_sharded(MESH, "model", 2),
    )
    batch = dtensor.Layout.batch_sharded(MESH, "batch", 2)

    def variable(value: Any, layout: Any) -> Any:
        return dtensor.DVariable(tf.constant(value), layout=layout) if is_laid_out else tf.Variable(value)

    with tf.Graph().as_default():
        x = fed = tf.placeholder(tf.float64, [8, 4])
        x = dtensor.relayout(fed, batch) if is_laid_out else fed
        w1 = variable(rng.standard_normal((4, 6)), columns)
        w2 = variable(rng.standard_normal((6, 3)), rows)
        loss = tf.reduce_mean(tf.square(tf.tanh(x @ w1) @ w2))
        train = tf.train.AdamOptimizer(0.1).minimize(loss)
        if is_laid_out:
            slot = tf.get_default_graph().get_operation_by_name(f"{w1.op.name}/Adam")
            assert slot.node.attrs["_layout"] == "[-, model]"
        feeds = {fed: rng.standard_normal((8, 4))}
        with tf.Session(config=CONFIG) as session:
            session.run(tf.global_variables_initializer())
            return [session.run([loss, train], feeds)[0] for _ in range(3)]


def test_training_is_that_of_one_device() -> None:
    np.testing.assert_allclose(losses(True), losses(False), 1e-12)


def test_layouts_say_what_each_part_is() -> None:
    layout = dtensor.Layout(["batch", dtensor.UNSHARDED], MESH)
    assert layout == dtensor.Layout.batch_sharded(MESH, "batch", 2)
    assert hash(layout) == hash(dtensor.Layout.batch_sharded(MESH, "batch", 2))
    assert layout.rank == 2
    assert [layout.num_shards(dim) for dim in range(2)] == [2, 1]
    assert layout.local_shape((5, 3), (1, 0)) == (2, 3)
    assert dtensor.Layout.inner_sharded(MESH, "model", 3).sharding_specs == [
        "unsharded",
        "unsharded",
        "model",
    ]
    assert dtensor.Layout.replicated(MESH, 1).sharding_specs == ["unsharded"]
    assert layout.to_string() == "sharding_specs:batch,unsharded mesh:[batch=2, model=2]"


def test_layouts_are_fetched_and_passed_on() -> None:
    layout = dtensor.Layout(["batch"], dtensor.create_mesh({"batch": 2}))
    with tf.Graph().as_default():
        x = dtensor.call_with_layout(tf.zeros, layout, [4])
        assert dtensor.fetch_layout(x) == layout
        assert dtensor.fetch_layout(dtensor.relayout_like(tf.ones([4]), x)) == layout
        assert dtensor.fetch_layout(dtensor.DVariable(x)) == layout
        assert dtensor.call_with_layout(tf.zeros, None, [4]).op.type != "Relayout"


def test_mistakes() -> None:
    with tf.Graph().as_default():
        plain = tf.zeros([2, 2])
        with pytest.raises(InvalidArgumentError, match="flowrt explain --layouts shows it"):
            dtensor.fetch_layout(plain)
        with pytest.raises(InvalidArgumentError, match="an entry for each of 2 dimensions"):
            dtensor.relayout(plain, dtensor.Layout.replicated(MESH, 1))
        with pytest.raises(InvalidArgumentError, match=r"an axis of the mesh.*got 'modle'. Nearest: model"):
            dtensor.Layout(["modle"], MESH)
        with pytest.raises(InvalidArgumentError, match="'model' to shard one dimension"):
            dtensor.Layout(["model", "model"], MESH)
        with pytest.raises(DTypeError, match=r"expected a dtensor.Layout; got \['model'\]"):
            dtensor.relayout(plain, ["model"])  # type: ignore[arg-type]
        with pytest.raises(DTypeError, match="expected a Mesh"):
            dtensor.Layout(["model"], "mesh")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="an entry for each of 2 dimensions"):
            dtensor.DVariable(plain, layout=dtensor.Layout(["model"], MESH))
    with pytest.raises(AttributeError, match="create_mesh"):
        _ = dtensor.create_mehs
