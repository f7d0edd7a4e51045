"""`LayoutStrategy`: training under any layout gives one device's losses; what its users get wrong."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.spec import parse_device
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.graph.layouts.attributes import attributes_of, layouts_of, mesh_of
from flowrt.graph.layouts.layout import layout_of
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, parse_pipeline
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.viz.explain_layouts import explain_layouts
from tests.distribute.strategies import nets_with_layouts
from tests.distribute.strategies.nets_with_layouts import COLUMNS, DEVICES, NETS, of_net, trained
from tests.each import daily

Mesh, Axis = tf.distribute.Mesh, tf.distribute.Axis

MESHES: dict[str, tuple[Any, Any, bool]] = {
    "dp 2": (Mesh([("dp", 2)]), "dp", False),
    "dp 5, uneven": (Mesh([("dp", 5)]), "dp", False),
    "tp 2": (Mesh([("tp", 2)]), None, True),
    "tp 3, uneven": (Mesh([("tp", 3)]), None, True),
    "dp 2 x tp 2": (Mesh([("dp", 2), ("tp", 2)]), "dp", True),
    "tp 2 x dp 4": (Mesh([("tp", 2), ("dp", 4)]), "dp", True),
    "3 turns": (Mesh([Axis("turn", 3, is_time=True)]), "turn", False),
    "dp 2 x 2 turns x tp 2": (Mesh([("dp", 2), Axis("m", 2, is_time=True), ("tp", 2)]), ("dp", "m"), True),
}
"""The mesh, the axes of the batch, and whether weights are sharded."""


@functools.cache
def on_one_device(net: str) -> tuple[list[float], list[Any]]:
    return trained(NETS[net])


def is_for_every_run(net: str, what: str) -> bool:
    """Each net with axes of all kinds, two with uneven parts; one net on all meshes."""
    return net == "gpt" or what == "dp 2 x 2 turns x tp 2" or (net == "cnn" and what == "dp 5, uneven")


@pytest.mark.parametrize(("net", "what"), daily(itertools.product(NETS, MESHES), is_for_every_run))
def test_training_is_that_of_one_device(net: str, what: str) -> None:
    mesh, batch, has_columns = MESHES[what]
    layouts = of_net(NETS[net], COLUMNS) if has_columns else {}
    losses, variables = trained(NETS[net], mesh, batch, layouts)
    expected, expected_variables = on_one_device(net)
    np.testing.assert_allclose(losses, expected, 1e-12)
    for found, wanted in zip(variables, expected_variables, strict=True):
        np.testing.assert_allclose(found, wanted, 1e-6, 1e-8)


@pytest.mark.parametrize("net", daily(zip(NETS), lambda net: net in ("mlp", "cnn")))
def test_training_in_float32_is_that_of_one_device(net: str, monkeypatch: Any) -> None:
    """Losses of 20 steps are equal to six digits: sums in another order differ in their last bits, and Adam
    with a high rate makes more of it.
    """
    monkeypatch.setattr(nets_with_layouts, "RATE", 0.01)
    build = functools.partial(NETS[net], tf.float32)
    expected, _ = trained(build)
    for what in ("dp 5, uneven", "tp 2 x dp 4", "dp 2 x 2 turns x tp 2"):
        mesh, batch, has_columns = MESHES[what]
        layouts = of_net(NETS[net], COLUMNS) if has_columns else {}
        losses, _ = trained(build, mesh, batch, layouts)
        np.testing.assert_allclose(losses, expected, 1e-6, err_msg=what)


def test_variables_can_be_stored_in_parts_and_used_whole() -> None:
    """Fully sharded: what a step needs is gathered, gradients and slots stay in parts."""

    def build() -> Any:
        x, y = tf.placeholder(tf.float64, [None, 6]), tf.placeholder(tf.float64, [None, 3])
        stored = {"stored": ["dp", None]} if tf.get_collection("sharded") else {}
        w = tf.get_variable("w", [6, 3], tf.float64, **stored)
        loss = tf.reduce_mean(tf.square(x @ w - y))
        return x, y, loss, tf.train.AdamOptimizer(0.1).minimize(loss)

    def run(strategy: Any) -> list[float]:
        rng = np.random.default_rng(0)
        with tf.Graph() as graph:
            tf.set_random_seed(1)
            if strategy is None:
                x, y, loss, train = build()
            else:
                tf.add_to_collection("sharded", True)
                with strategy.scope():
                    x, y, loss, train = build()
                handle = graph.get_operation_by_name("w").node
                assert handle.attrs["_stored"] == "[dp]"
                slot = graph.get_operation_by_name("w/Adam").node
                assert slot.attrs["_layout"] == "[dp]"
            feeds = {x: rng.standard_normal((8, 6)), y: rng.standard_normal((8, 3))}
            with tf.Session(config=tf.ConfigProto(device_count={"CPU": DEVICES})) as session:
                session.run(tf.global_variables_initializer())
                return [session.run([loss, train], feeds)[0] for _ in range(5)]

    strategy = tf.distribute.LayoutStrategy(Mesh([("dp", 4)]), batch="dp")
    np.testing.assert_allclose(run(strategy), run(None), 1e-12)


def collectives(net: str, what: str) -> Counter[str]:
    """The collectives of a training step, by kind."""
    mesh, batch, has_columns = MESHES[what]
    with tf.Graph() as graph:
        strategy = tf.distribute.LayoutStrategy(mesh, batch=batch)
        strategy.variable_layouts(of_net(NETS[net], COLUMNS) if has_columns else {})
        with strategy.scope():
            built = NETS[net]()
        feeds = {t: np.shape(v) for t, v in built.feeds.items()}
        request = StepRequest(graph, [built.loss], [built.train], feeds)
        devices = [parse_device(f"/job:localhost/task:0/device:CPU:{i}") for i in range(DEVICES)]
        stages = "extract, lower, order_effects, infer_shapes, optimise, infer_shapes, lower_layouts"
        step = compile_step(request, CompileOptions(devices), pipeline=parse_pipeline(stages))
    kinds = {"AllReduce", "AllGather", "ReduceScatter", "AllToAll"}
    return Counter(node.op.name for node in step if node.op.name in kinds)


@pytest.mark.parametrize(
    ("net", "what", "expected"),
    [
        ("gpt", "tp 2", {"AllReduce": 2 * 4}),  # each block: two forward and two backward
        ("gpt", "dp 2", {"AllReduce": 2 * 8 + 2}),  # one for each gradient
        ("mlp", "dp 2", {"AllReduce": 4}),
        ("mlp", "tp 2", {"AllReduce": 1}),
        ("mlp", "3 turns", {}),
    ],
)
def test_a_step_has_no_more_collectives_than_it_needs(net: str, what: str, expected: dict[str, int]) -> None:
    assert collectives(net, what) == expected


def moved(mesh: Any, batch: Any, layouts: Any, net: str = "gpt") -> tuple[dict[str, tuple[int, int]], int]:
    """What a training step moves, as counts and bytes by kind; and the bytes of the variables."""
    with tf.Graph().as_default():
        strategy = tf.distribute.LayoutStrategy(mesh, batch=batch)
        strategy.variable_layouts(layouts)
        with strategy.scope():
            built = NETS[net]()
        sizes = [v.shape.num_elements() for v in tf.trainable_variables()]
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": DEVICES})) as session:
            found = explain_layouts(session, [built.loss, built.train], built.feeds)
    assert found is not None
    return {kind: total for kind, total in found.totals().items() if total[1]}, 8 * sum(sizes)


def test_a_constant_keeps_the_layout_that_it_is_given() -> None:
    with tf.Graph().as_default():
        with tf.distribute.LayoutStrategy(Mesh([("dp", 2)])).scope():
            rows = tf.distribute.relayout(tf.constant(np.ones((8, 3))), ["dp", None])
            total = tf.reduce_sum(rows * 2.0)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            assert session.run(total) == 48
            found = explain_layouts(session, [total])
    assert found is not None
    assert "float64[]+{dp}" in {t.layout for t in found.tensors}


def test_data_parallelism_moves_each_gradient_once() -> None:
    """An all-reduce of n bytes on two devices: each receives n, half of it to add and half of it added up."""
    totals, nbytes = moved(Mesh([("dp", 2)]), "dp", {})
    assert totals == {"AllReduce": (18, 2 * nbytes)}


def test_tensor_parallelism_moves_four_activations_a_block() -> None:
    totals, _ = moved(Mesh([("tp", 2)]), None, of_net(NETS["gpt"], COLUMNS))
    activations = 8 * (12 * 6 * 8)  # bytes of [batch, length, width]
    assert totals == {"AllReduce": (2 * 4, 2 * 4 * 2 * activations)}


def test_a_checkpoint_of_one_mesh_is_restored_on_another(tmp_path: Any) -> None:
    def values(mesh: Any, layout: Any, start: str | None, path: str) -> Any:
        with tf.Graph().as_default():
            tf.set_random_seed(5)
            with tf.distribute.LayoutStrategy(mesh).scope():
                w = tf.get_variable("w", [5, 4], tf.float64, layout=layout)
                saver = tf.train.Saver()
            with tf.Session(config=tf.ConfigProto(device_count={"CPU": DEVICES})) as session:
                if start is None:
                    session.run(w.initializer)
                else:
                    saver.restore(session, start)
                found = session.run(w)
                w.load(found + 1, session)
                np.testing.assert_array_equal(session.run(w), found + 1)
                return found, saver.save(session, path)

    first, path = values(Mesh([("tp", 3)]), ["tp", None], None, f"{tmp_path}/one")
    second, _ = values(Mesh([("a", 2), ("b", 2)]), ["a", "b"], path, f"{tmp_path}/two")
    np.testing.assert_array_equal(second, first + 1)


# --- mistakes


def error_of(build: Any, kind: Any = InvalidArgumentError) -> str:
    """The message of the error that ``build`` raises under a strategy."""
    strategy = tf.distribute.LayoutStrategy(Mesh([("dp", 2), ("tp", 2)]), batch="dp")

    def in_scope() -> None:
        with strategy.scope():
            build(strategy)

    with tf.Graph(), pytest.raises(kind) as raised:
        in_scope()
    assert "test_layout_strategy.py:" in str(raised.value), "without the user's line"
    return str(raised.value)


def test_layouts_that_do_not_fit() -> None:
    def variable(layout: Any, **options: Any) -> Any:
        return lambda strategy: tf.get_variable("w", [4, 4], layout=layout, **options)

    assert "an entry for each of 2 dimensions" in error_of(variable(["tp"]))
    assert "expected an axis of the mesh [dp=2, tp=2]; got 'pt'" in error_of(variable([None, "pt"]))
    assert "axis 'tp' to shard one dimension" in error_of(variable(["tp", "tp"]))
    assert "stored: expected an entry for each" in error_of(variable([None, "tp"], stored=["tp"]))
    assert "got 'x'" in error_of(lambda s: tf.distribute.relayout(tf.zeros([2]), ["x"]))
    assert "for each of 1 dimensions" in error_of(
        lambda s: tf.distribute.relayout(tf.zeros([2]), ["dp", None])
    )


def test_what_is_no_layout_at_all() -> None:
    def variable(layout: Any, **options: Any) -> Any:
        return lambda strategy: tf.get_variable("w", [4, 4], layout=layout, **options)

    assert "None, an axis, or several for dimension 0; got 0" in error_of(variable([0, 1]))
    assert "expected layout or axes; got [None, 'tp'] and ['a', 'b']" in error_of(
        variable([None, "tp"], axes=["a", "b"])
    )
    assert "expected a regular expression; got '('" in error_of(lambda s: s.variable_layouts({"(": ["dp"]}))
    assert "a list of axes; got {'dp': 2}. Write [('dp', 2)]" in error_of(lambda s: Mesh({"dp": 2}))
    assert "dimension 0; got 3" in error_of(lambda s: tf.distribute.LayoutStrategy(s.mesh, batch=3))
    assert "axes by logical axis; got ['a']" in error_of(
        lambda s: tf.distribute.LayoutStrategy(s.mesh, rules=["a"])
    )
    assert "layouts by expression; got [1]" in error_of(lambda s: s.variable_layouts([1]))
    assert "an entry per dimension: None, an axis, or several; got 3" in error_of(
        lambda s: s.variable_layouts({"w": 3})
    )


def test_a_shared_variable_has_one_layout() -> None:
    def build(strategy: Any) -> None:
        tf.get_variable("w", [4, 4], layout=[None, "tp"])
        with tf.variable_scope("", reuse=True):
            tf.get_variable("w", [4, 4])
            tf.get_variable("w", [4, 4], layout=[None, "tp"])
            tf.get_variable("w", [4, 4], layout=["tp", None])

    message = "variable 'w': expected layout [-, tp], as reuse shares the existing one; got layout [tp]"
    assert message in error_of(build)


def test_a_pattern_that_matches_nothing_names_the_nearest() -> None:
    def build(strategy: Any) -> None:
        strategy.variable_layouts({"kernal": [None, "tp"]})
        tf.get_variable("kernel", [4, 4])

    assert "to match 'kernal'; none does. Nearest: kernel" in error_of(build)


def test_an_axis_of_time_shards_no_variable() -> None:
    strategy = tf.distribute.LayoutStrategy(Mesh([Axis("turn", 2, is_time=True)]))
    with tf.Graph(), strategy.scope(), pytest.raises(InvalidArgumentError, match="'turn', an axis of time"):
        tf.get_variable("w", [4], layout=["turn"])


def test_a_layout_needs_a_strategy() -> None:
    with tf.Graph(), pytest.raises(FailedPreconditionError, match="scope of a LayoutStrategy"):
        tf.get_variable("w", [4], layout=[None])
    with tf.Graph(), pytest.raises(FailedPreconditionError, match="scope of a LayoutStrategy"):
        tf.distribute.relayout(tf.zeros([2]), [None])


def test_strategies_do_not_nest() -> None:
    def build(strategy: Any) -> None:
        with tf.distribute.LayoutStrategy(Mesh([("dp", 1)])).scope():
            pass

    assert "outside other strategies' scopes" in error_of(build, FailedPreconditionError)


def test_a_mesh_needs_its_devices() -> None:
    with tf.Graph():
        with tf.distribute.LayoutStrategy(Mesh([("dp", 4)]), batch="dp").scope():
            total = tf.reduce_sum(tf.placeholder(tf.float32, [None], name="x"))
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            with pytest.raises(
                InvalidArgumentError, match=r"\[dp=4\]: expected 4 devices; got 2.*flowrt-run"
            ):
                session.run(total, {"x:0": np.ones(8)})


def test_the_same_script_runs_under_mirrored() -> None:
    """A script that divides by the global batch, as docs/strategies.md asks, has equal weights after it."""

    def run(strategy: Any) -> Any:
        rng = np.random.default_rng(0)
        with tf.Graph().as_default():
            tf.set_random_seed(3)
            with strategy.scope():
                w = tf.get_variable("w", [3, 2], tf.float64)
                optimizer = tf.train.GradientDescentOptimizer(0.5)

            def step(x: Any) -> Any:
                loss = tf.reduce_sum(tf.square(x @ w)) / 8
                return optimizer.minimize(loss)

            data = tf.data.Dataset.from_tensor_slices(rng.standard_normal((32, 3))).batch(8, True)
            iterator = strategy.make_dataset_iterator(data)
            train = strategy.experimental_local_results(strategy.run(step, args=(iterator.get_next(),)))
            with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
                session.run([tf.global_variables_initializer(), iterator.initializer])
                for _ in range(4):
                    session.run(list(train))
                return session.run(w)

    mirrored = run(tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]))
    by_layouts = run(tf.distribute.LayoutStrategy(Mesh([("dp", 2)]), batch="dp"))
    np.testing.assert_allclose(by_layouts, mirrored, 1e-12)


def test_layouts_survive_a_graph_def() -> None:
    with tf.Graph() as graph:
        with tf.distribute.LayoutStrategy(Mesh([("dp", 2), ("tp", 2)]), batch="dp").scope():
            tf.get_variable("w", [4, 4], layout=[None, "tp"], stored=["dp", "tp"])
        text = graph.as_graph_def()
    with tf.Graph() as copy:
        tf.import_graph_def(text, name="")
        node = copy.get_operation_by_name("w").node
    mesh = mesh_of([node])
    assert mesh is Mesh([("dp", 2), ("tp", 2)])
    assert layouts_of(node.attrs, mesh).stored is layout_of(mesh, ["dp", "tp"])
    assert attributes_of(*layouts_of(node.attrs, mesh)).items() <= node.attrs.items()


def test_layouts_by_name_come_before_the_variables() -> None:
    strategy = tf.distribute.LayoutStrategy(Mesh([("dp", 2)]))
    with tf.Graph(), strategy.scope():
        tf.get_variable("w", [4, 4])
        with pytest.raises(
            InvalidArgumentError, match="before the variables are made; got one after 'w' was"
        ):
            strategy.variable_layouts({"w": ["dp", None]})


def test_a_strategy_of_one_process_among_workers_says_so(monkeypatch: Any, caplog: Any) -> None:
    workers = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": workers, "task": task}))
    assert str(tf.distribute.LayoutStrategy(Mesh([("dp", 2)]))) == "<LayoutStrategy over [dp=2]>"
    assert "each of the 2 workers trains a model of its own" in caplog.text
