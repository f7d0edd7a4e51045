"""Draws under layouts: each coordinate draws its part, and the parts are those of one device's draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.layouts.mesh import Axis, Mesh
from flowrt.graph.op_def import op_def
from flowrt.graph.ops.random.random_ops import PARTS
from flowrt.viz.explain_layouts import LayoutExplanation, explain_layouts

CONFIG = tf.ConfigProto(device_count={"CPU": 6})

DRAWS: dict[str, Callable[[Any, Any], Any]] = {
    "uniform32": lambda shape, seed: tf.random_uniform(shape, seed=seed),
    "uniform64": lambda shape, seed: tf.random_uniform(shape, -1, 2, tf.float64, seed),
    "uniform16": lambda shape, seed: tf.random_uniform(shape, dtype=tf.float16, seed=seed),
    "bfloat16": lambda shape, seed: tf.random_uniform(shape, dtype=tf.bfloat16, seed=seed),
    "powers of two": lambda shape, seed: tf.random_uniform(shape, -8, 8, tf.int32, seed),
    "long integers": lambda shape, seed: tf.random_uniform(shape, 0, 2**40, tf.int64, seed),
    "integers": lambda shape, seed: tf.random_uniform(shape, 0, 1000, tf.int64, seed),
    "normal32": lambda shape, seed: tf.random_normal(shape, 1.0, 2.0, seed=seed),
    "normal64": lambda shape, seed: tf.random_normal(shape, dtype=tf.float64, seed=seed),
    "normal16": lambda shape, seed: tf.random_normal(shape, dtype=tf.float16, seed=seed),
    "truncated": lambda shape, seed: tf.truncated_normal(shape, seed=seed),
}

MESHES: list[tuple[Mesh, Any]] = [
    (Mesh([("a", 2)]), ["a", None, None]),
    (Mesh([("a", 3)]), [None, "a", None]),
    (Mesh([("a", 2), ("b", 3)]), [None, "a", "b"]),
    (Mesh([("a", 2), Axis("turn", 3, is_time=True)]), ["a", "turn", None]),
    (Mesh([("a", 2), ("b", 2)]), [("a", "b"), None, None]),
]


def drawn(
    draw: Callable[[Any, Any], Any], shape: Any, mesh: Mesh | None, layout: Any, seed: int | None
) -> Any:
    """Two steps of a draw, and what moved in them."""
    with tf.Graph().as_default():
        tf.set_random_seed(11)
        moved: LayoutExplanation | None = None
        if mesh is None:
            fetch = draw(shape, seed)
        else:
            with tf.distribute.LayoutStrategy(mesh).scope():
                fetch = tf.distribute.relayout(draw(shape, seed), layout)
        with tf.Session(config=CONFIG) as session:
            values = [session.run(fetch) for _ in range(2)]
            moved = None if mesh is None else explain_layouts(session, [fetch])
    return values, moved


@pytest.mark.parametrize("shape", [(5, 4, 3), (30, 17, 19)])
@pytest.mark.parametrize("name", DRAWS)
def test_parts_are_those_of_one_devices_draw(name: str, shape: Any) -> None:
    for number, (mesh, layout) in enumerate(MESHES):
        seed = 7 if number % 2 else None
        expected, _ = drawn(DRAWS[name], shape, None, None, seed)
        found, explained = drawn(DRAWS[name], shape, mesh, layout, seed)
        assert not np.array_equal(expected[0], expected[1])
        np.testing.assert_array_equal(found, expected, err_msg=f"{mesh} {layout}")
        assert explained is not None
        assert explained.totals() == {}, "the whole was drawn, and cut"


@pytest.mark.parametrize("name", sorted(PARTS))
@pytest.mark.parametrize("size", [100, 4096, 4097, 20_000])
def test_any_part_is_a_slice_of_the_whole(name: str, size: int) -> None:
    """Of the op itself, for parts that begin anywhere."""
    rng = np.random.default_rng(size)
    there = op_def(f"{name}At")
    position = np.array([5, 6, 2], np.uint64)
    bounds: Any = (np.array(0), np.array(10)) if name == "RandomUniformInt" else ()
    with tf.Graph(), tf.Session() as session:
        whole = session.run(there(np.array([size]), *bounds, position))
        for _ in range(10):
            first, last = sorted(rng.integers(0, size + 1, 2).tolist())
            part = there(np.array([last - first]), *bounds, position, of=[size], begin=[first])
            np.testing.assert_array_equal(session.run(part), whole[first:last])


def explained_net(build: Callable[[], Any], mesh: Mesh, batch: Any, feeds: Any) -> LayoutExplanation:
    with tf.Graph().as_default():
        with tf.distribute.LayoutStrategy(mesh, batch=batch).scope():
            fetches, inputs = build()
        with tf.Session(config=CONFIG) as session:
            found = explain_layouts(session, fetches, dict.fromkeys(inputs, feeds))
    assert found is not None
    return found


def test_the_mask_of_a_dropout_is_drawn_where_it_is_used() -> None:
    def build() -> Any:
        x = tf.placeholder(tf.float32, [None, 8])
        return [tf.reduce_sum(tf.nn.dropout(x, 0.5))], [x]

    for mesh, batch in [(Mesh([("dp", 2)]), "dp"), (Mesh([Axis("t", 3, is_time=True)]), "t")]:
        found = explained_net(build, mesh, batch, np.ones((6, 8), np.float32))
        draw = next(t for t in found.tensors if t.op.startswith("RandomUniform"))
        assert f"float32[6/{batch}, 8]" in draw.layout
        assert not any("dropout" in move.tensor for move in found.moves)


@pytest.mark.parametrize("initializer", ["glorot_uniform", "truncated_normal", "zeros", "random_normal"])
def test_an_initial_value_is_made_where_it_is_kept(initializer: str) -> None:
    def build() -> Any:
        make = getattr(tf.initializers, initializer)()
        w = tf.get_variable("w", [600, 40], initializer=make, layout=["tp", None])
        return [w.initializer], []

    found = explained_net(build, Mesh([("tp", 3)]), None, None)
    assert found.totals() == {}, "the whole was made, and cut"


def test_a_draw_with_two_readers_of_different_layouts_is_made_once() -> None:
    with tf.Graph().as_default():
        with tf.distribute.LayoutStrategy(Mesh([("a", 2)])).scope():
            x = tf.random_normal([4, 4], seed=3)
            rows, columns = (tf.distribute.relayout(x, layout) for layout in (["a", None], [None, "a"]))
        with tf.Session(config=CONFIG) as session:
            first, second = session.run([rows, columns])
    np.testing.assert_array_equal(first, second)


def test_masks_in_a_loop_are_those_of_one_device() -> None:
    def run(mesh: Mesh | None) -> Any:
        with tf.Graph().as_default():
            tf.set_random_seed(1)

            def build() -> Any:
                x = tf.placeholder(tf.float64, [None, 4])
                body = lambda i, a: [i + 1, tf.nn.dropout(a, 0.7, seed=5)]  # noqa: E731
                return tf.while_loop(lambda i, _: i < 3, body, [0, x])[1], x

            if mesh is None:
                y, x = build()
            else:
                with tf.distribute.LayoutStrategy(mesh, batch="dp").scope():
                    y, x = build()
            with tf.Session(config=CONFIG) as session:
                return [session.run(y, {x: np.ones((6, 4))}) for _ in range(2)]

    np.testing.assert_array_equal(run(Mesh([("dp", 3)])), run(None))
