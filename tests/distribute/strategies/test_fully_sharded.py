"""`FullyShardedStrategy`: one device's losses at every stage, and the bytes that are kept and sent."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.spec import parse_device
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.layouts.attributes import REGATHER, UNIT
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.layouts.join_units import join_units
from flowrt.graph.passes.layouts.lower_layouts import Lowered, lowered
from flowrt.graph.passes.layouts.schedule_gathers import schedule_gathers
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, parse_pipeline
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.graph.passes.prepare.verify import verify_subgraph
from flowrt.graph.resources.variables import VariableResource
from tests.distribute.strategies.nets_with_layouts import COLUMNS, DEVICES, NETS, Net, of_net, trained
from tests.distribute.strategies.standing_workers import Answers
from tests.each import daily

Mesh, Axis = tf.distribute.Mesh, tf.distribute.Axis

BEFORE = parse_pipeline("extract, lower, order_effects, infer_shapes, optimise, infer_shapes")

MESHES: dict[str, tuple[Any, Any, Any, bool]] = {
    "dp 2": (Mesh([("dp", 2)]), "dp", None, False),
    "dp 3, uneven": (Mesh([("dp", 3)]), "dp", None, False),
    "hsdp": (Mesh([("replica", 2), ("shard", 2)]), ("replica", "shard"), None, False),
    "dp 2 x tp 2": (Mesh([("dp", 2), ("tp", 2)]), "dp", None, True),
    "dp 2 x 2 turns": (Mesh([("dp", 2), Axis("turn", 2, is_time=True)]), "dp", ("dp", "turn"), False),
}
"""The mesh, the axes of parts, those of the batch, and whether weights are sharded by ``tp``."""

UNITS = r"block\d|\w+"
"""A unit for each block of the GPT, and for each layer of other nets."""


@functools.cache
def on_one_device(net: str) -> tuple[list[float], list[Any]]:
    return trained(NETS[net])


def sharded(what: str, stage: int, net: str, **options: Any) -> Any:
    mesh, axis, batch, has_columns = MESHES[what]
    options = {"units": UNITS, "min_bytes": 0, **options}
    strategy = tf.distribute.FullyShardedStrategy(mesh, axis, stage, batch=batch, **options)
    strategy.variable_layouts(of_net(NETS[net], COLUMNS) if has_columns else {})
    return strategy


def trained_under(strategy: Any, build: Any, steps: int = 20) -> tuple[list[float], list[Any]]:
    """The losses of ``steps`` steps, and the variables after them."""
    with tf.Graph() as graph:
        tf.set_random_seed(7)
        with strategy.scope():
            net = build()
        with tf.Session(graph=graph, config=tf.ConfigProto(device_count={"CPU": DEVICES})) as session:
            session.run(tf.global_variables_initializer())
            losses = [session.run([net.loss, net.train], net.feeds)[0] for _ in range(steps)]
            return losses, session.run(tf.trainable_variables())


def is_for_every_run(net: str, what: str, stage: int) -> bool:
    """The small net at all stages, and on the meshes of two axes the one with blocks where weights are in
    parts.
    """
    return net == "mlp" or (net == "gpt" and stage == 3 and what in ("hsdp", "dp 2 x tp 2"))


@pytest.mark.parametrize(
    ("net", "what", "stage"), daily(itertools.product(NETS, MESHES, (0, 1, 2, 3)), is_for_every_run)
)
def test_training_is_that_of_one_device(net: str, what: str, stage: int) -> None:
    losses, variables = trained_under(sharded(what, stage, net), NETS[net])
    expected, expected_variables = on_one_device(net)
    np.testing.assert_allclose(losses, expected, 1e-12)
    for found, wanted in zip(variables, expected_variables, strict=True):
        np.testing.assert_allclose(found, wanted, 1e-6, 1e-8)


@pytest.mark.parametrize(
    ("net", "count", "stage"),
    [
        ("cnn", 2, 1),
        ("gpt", 2, 3),
        pytest.param("mlp", 3, 3, marks=pytest.mark.slow),
        pytest.param("gpt", 4, 2, marks=pytest.mark.slow),
        pytest.param("embedding", 2, 3, marks=pytest.mark.slow),
        pytest.param("lstm", 2, 3, marks=pytest.mark.slow),
    ],
)
def test_so_is_that_of_processes(answers: Answers, net: str, count: int, stage: int) -> None:
    """In which the messages of a unit are joined."""
    (losses, variables), *others = answers(f"shard:{net}:{stage}", count)
    expected, expected_variables = on_one_device(net)
    np.testing.assert_allclose(losses, expected, 1e-12)
    for found, wanted in zip(variables, expected_variables, strict=True):
        np.testing.assert_allclose(found, wanted, 1e-6, 1e-8)
    assert others == [[losses, variables]] * (count - 1)


@pytest.mark.parametrize("stage", [2, 3])
def test_processes_compute_in_a_narrower_dtype_as_devices_do(answers: Answers, stage: int) -> None:
    policy = tf.distribute.Precision("bfloat16")
    expected, _ = trained_under(
        sharded("dp 2", stage, "gpt", policy=policy), functools.partial(NETS["gpt"], tf.float32)
    )
    for losses, _ in answers(f"shard:gpt:{stage}:bfloat16", 2):
        np.testing.assert_allclose(losses, expected, 1e-5)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_an_infinity_in_one_process_skips_the_update_in_all(answers: Answers, stage: int, count: int) -> None:
    """The scale and the count of good steps change; nothing else does, in any process."""
    changed = ["global_step", "good_steps", "w", "w/Momentum"]
    for changes, are_finite in answers(f"overflows:{stage}", count):
        assert changes == [changed, ["current_loss_scale", "good_steps"], changed]
        assert all(are_finite)


# --- what is sent


LAYERS, WIDTH = 6, 8


def layers() -> Net:
    """Equal layers, each a unit."""
    x = tf.placeholder(tf.float64, [8, WIDTH])
    h = x
    for layer in range(LAYERS):
        h = tf.nn.relu(h @ tf.get_variable(f"layer{layer}/w", [WIDTH, WIDTH], tf.float64))
    loss = tf.reduce_mean(tf.square(h))
    feeds = {x: np.random.default_rng(0).standard_normal((8, WIDTH))}
    return Net(feeds, loss, tf.train.AdamOptimizer(0.01).minimize(loss))


def step_of(strategy: Any, build: Any = layers) -> Lowered:
    """A training step, lowered."""
    with tf.Graph() as graph:
        with strategy.scope():
            net = build()
        feeds = {t: np.shape(v) for t, v in net.feeds.items()}
        request = StepRequest(graph, [net.loss], [net.train], feeds)
        devices = [parse_device(f"/job:localhost/task:0/device:CPU:{i}") for i in range(DEVICES)]
        step = compile_step(request, CompileOptions(devices), pipeline=BEFORE)
    found = lowered(step, devices)
    assert found is not None
    return found


def sent(step: Lowered) -> dict[str, int]:
    """The bytes that all devices receive in a step, by collective; but for the loss, a number."""
    found: Counter[str] = Counter()
    for move in step.moves:
        if move.nbytes and move.spec.shape != ():
            found[move.step.collective] += move.nbytes
    return dict(found)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bytes_sent_in_a_step(stage: int, size: int) -> None:
    """In elements, 2, 2, 2 and 3 Phi by (N - 1) / N a device. At stage 3 the last layer is gathered once for
    both passes, and the first layer's gradient needs no weights.
    """
    strategy = tf.distribute.FullyShardedStrategy(Mesh([("dp", size)]), stage=stage, units=UNITS, min_bytes=0)
    layer = WIDTH * WIDTH * 8
    phi = LAYERS * layer
    expected = {
        0: {"AllReduce": 2 * phi},
        1: {"ReduceScatter": phi, "AllGather": phi},
        2: {"ReduceScatter": phi, "AllGather": phi},
        3: {"ReduceScatter": phi, "AllGather": 2 * phi - 2 * layer},
    }[stage]
    found = sent(step_of(strategy))
    assert found == {kind: nbytes * (size - 1) for kind, nbytes in expected.items()}


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bytes_that_sockets_receive_in_a_step(
    answers: Answers, stage: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's count of all connections of each process, of 6 layers of two variables: 2, 2, 2 and 3
    Phi, times (N - 1) / N, but for the second gather of the last layer and of the first one's first variable.
    Headers are below 1 %; before the first of the steps, some of its bytes may be there.
    """
    monkeypatch.setenv("FLOWRT_TRANSPORT", "tcp")
    phi = {0: 2, 1: 2, 2: 2, 3: 3 - 1.5 / 6}[stage]
    for received, nbytes in answers(f"sends:{stage}", count):
        assert received == pytest.approx(phi * nbytes * (count - 1) / count, rel=0.03)


def test_without_gathering_again_a_unit_is_gathered_once() -> None:
    strategy = sharded("dp 2", 3, "mlp", reshard_after_forward=False)
    phi = LAYERS * WIDTH * WIDTH * 8
    assert sent(step_of(strategy)) == {"ReduceScatter": phi, "AllGather": phi}


def test_hybrid_sharding_gathers_in_its_groups_and_reduces_parts_between_them() -> None:
    phi = LAYERS * WIDTH * WIDTH * 8
    found = sent(step_of(sharded("hsdp", 3, "mlp", reshard_after_forward=False)))
    assert found == {"AllGather": 2 * phi, "ReduceScatter": 2 * phi, "AllReduce": 2 * phi}


def clipped_and_half_frozen(new_optimizer: Callable[[], Any] = lambda: tf.train.AdamOptimizer(0.01)) -> Net:
    """`layers` with every second one frozen, and gradients clipped by their global norm."""
    x = tf.placeholder(tf.float64, [8, WIDTH])
    h = x
    for layer in range(LAYERS):
        is_trained = layer % 2 == 0
        h = tf.nn.relu(
            h @ tf.get_variable(f"layer{layer}/w", [WIDTH, WIDTH], tf.float64, trainable=is_trained)
        )
    loss = tf.reduce_mean(tf.square(h))
    optimizer = new_optimizer()
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 0.1)
    feeds = {x: np.random.default_rng(0).standard_normal((8, WIDTH))}
    return Net(feeds, loss, optimizer.apply_gradients(zip(clipped, variables, strict=True)))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_norms_are_summed_up_as_numbers_and_frozen_variables_cost_no_gradient(stage: int) -> None:
    expected, _ = trained(clipped_and_half_frozen)
    losses, _ = trained_under(sharded("dp 2", stage, "mlp"), clipped_and_half_frozen)
    np.testing.assert_allclose(losses, expected, 1e-12)
    step = step_of(sharded("dp 2", stage, "mlp"), clipped_and_half_frozen)
    found, layer = sent(step), WIDTH * WIDTH * 8
    if stage == 0:
        assert found == {"AllReduce": 2 * 3 * layer}
    else:
        gathers = {1: 3, 2: 3, 3: 2 * LAYERS - 2}[stage]
        assert found == {"ReduceScatter": 3 * layer, "AllGather": gathers * layer}
        numbers = [move for move in step.moves if move.nbytes and move.spec.shape == ()]
        assert len(numbers) == 1  # the sum of all squares
    with tf.Graph(), sharded("dp 2", stage, "mlp").scope():
        clipped_and_half_frozen()
        names = {v.op.name for v in tf.global_variables()}
        assert names & {"layer1/w/Adam", "layer0/w/Adam"} == {"layer0/w/Adam"}


BY_NORMS: dict[str, Callable[[], Any]] = {
    "LARS": lambda: tf.train.LARSOptimizer(10.0, weight_decay=0.01),
    "LAMB": lambda: tf.train.LAMBOptimizer(0.02, weight_decay=0.01),
}
"""Optimizers whose rate of a variable depends on the norms of it and of its update, as wholes."""


@functools.cache
def by_norms_on_one_device(name: str) -> list[float]:
    losses, _ = trained(functools.partial(clipped_and_half_frozen, BY_NORMS[name]))
    assert losses[-1] < 0.9 * losses[0]
    return losses


@pytest.mark.parametrize("what", ["dp 2", "dp 3, uneven", "hsdp"])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", BY_NORMS)
def test_optimizers_by_norms_of_whole_variables_train_as_on_one_device(
    name: str, stage: int, what: str
) -> None:
    """With gradients clipped by their global norm, over 20 steps."""
    build = functools.partial(clipped_and_half_frozen, BY_NORMS[name])
    losses, _ = trained_under(sharded(what, stage, "mlp"), build)
    np.testing.assert_allclose(losses, by_norms_on_one_device(name), 1e-12)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", BY_NORMS)
def test_so_they_do_in_processes(answers: Answers, name: str, stage: int) -> None:
    for losses in answers(f"norms:{name}:{stage}", 2):
        np.testing.assert_allclose(losses, by_norms_on_one_device(name), 1e-12)


# --- what is in memory


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bytes_of_variables_and_states(stage: int, size: int) -> None:
    """By the counters of the devices' pools: in units of a parameter's bytes, of float64, with Adam."""
    strategy = tf.distribute.FullyShardedStrategy(Mesh([("dp", size)]), stage=stage, units=UNITS, min_bytes=0)
    with tf.Graph() as graph:
        with strategy.scope():
            wide = tf.get_variable("w", [64, 64], tf.float64)
            train = tf.train.AdamOptimizer().minimize(tf.reduce_sum(tf.square(wide)))
        with tf.Session(graph=graph, config=tf.ConfigProto(device_count={"CPU": size})) as session:
            session.run(tf.global_variables_initializer())
            session.run(train)
            kept = [bytes_of_variables(session, device) for device in session.devices]
    parameter = 64 * 64 * 8
    expected = {0: 3.0, 1: 1 + 2 / size, 2: 1 + 2 / size, 3: 3 / size}[stage]
    assert kept == [(expected if size > 1 else 3.0) * parameter] * size


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reduce", ["", "bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bytes_a_parameter_when_the_first_update_begins(
    answers: Answers, stage: int, reduce: str, count: int
) -> None:
    """ZeRO's table, of variables, states and gradients, by the plan: 16, 8 + 8/N, 4 + 12/N and 16/N, and in
    bfloat16, 4 + 12/N and 2 + 14/N at stages 1 and 2. There stage 0 keeps no copy in bfloat16, nor does stage
    3: 14 and 14/N. Gradients of float32 are in parts at both stages: 2 + 16/N. Of 16 layers, units of two
    variables, up to two are whole or on their way at a time, and one may be reduced already.
    """
    copy = 2 if reduce else 4
    states = 12 if reduce else 8  # without a narrower copy, the part is in the whole
    kept_expected = {0: 12, 1: copy + states / count, 2: copy + states / count, 3: 12 / count}[stage]
    size = 2 if reduce == "bfloat16" else 4
    is_whole = stage == 0 or (stage == 1 and reduce != "float32")
    live_expected = size if is_whole else size / count
    for kept, live, layers in answers(f"keeps:{stage}:{reduce}", count):
        assert kept == kept_expected
        assert layers <= 2
        assert (layers > 0) == (stage == 3)
        assert live_expected - size / 16 <= live <= live_expected + 2 * size / 16


def bytes_of_variables(session: Any, device: Any) -> int:
    """The memory of the session's variables on ``device``, but for scalars."""
    found = [r for (name, _), r in session._runtime._resources.items() if name == device.name]
    return sum(r.array.nbytes for r in found if isinstance(r, VariableResource) and r.array.ndim)


def test_each_unit_is_gathered_used_and_freed_in_each_pass() -> None:
    """In the order of the step: a unit's readers in the forward pass, then in the backward pass, each behind
    gathers of their own. A gather waits for the readers of the unit two before.
    """
    step = schedule_gathers(global_step(sharded("dp 2", 3, "mlp")), Mesh([("dp", 2)]))
    reads = [node for node in step if node.op.name == "ReadVariableOp" and UNIT in node.attrs]
    readers = {
        node.name: [n.name for n in step if any(r[0] == node.name for r in n.inputs)] for node in reads
    }
    units = [node.attrs[UNIT].split()[0] for node in reads]
    forward = [f"layer{i}" for i in range(LAYERS)]
    assert units == [*forward, *forward[-2:0:-1]]
    for number, node in enumerate(reads):
        for name in readers[reads[number - 2].name] if number >= 2 else []:
            assert name in node.controls
        assert all(name not in node.controls for name in readers[reads[number - 1].name])
    verify_subgraph(step)


def global_step(strategy: Any) -> Subgraph:
    """A training step before it is lowered."""
    with tf.Graph() as graph:
        with strategy.scope():
            net = layers()
        request = StepRequest(graph, [net.loss], [net.train], {t: np.shape(v) for t, v in net.feeds.items()})
        return compile_step(request, CompileOptions([parse_device("/cpu:0")]), pipeline=BEFORE)


def test_a_variable_that_is_written_before_its_readers_is_gathered_once() -> None:
    """The backward pass needs the value that the forward pass read."""

    def run(strategy: Any) -> list[Any]:
        with tf.Graph() as graph, contextlib.ExitStack() as scopes:
            if strategy is not None:
                scopes.enter_context(strategy.scope())
            x = tf.placeholder(tf.float64, [4, 4])
            w, v = (
                tf.get_variable(f"{n}/w", initializer=np.arange(16.0).reshape(4, 4) / k)
                for n, k in (("a", 7), ("b", 9))
            )
            h = tf.matmul(x, w)
            with tf.control_dependencies([h]):
                doubled = w.assign(2 * w.read_value())
            with tf.control_dependencies([doubled]):
                y = tf.matmul(h, v) + tf.reduce_sum(w.read_value())
            return_value = [y, *tf.gradients(y, [w, v]), tf.matmul(h, w)]
            with tf.Session(graph=graph, config=tf.ConfigProto(device_count={"CPU": 2})) as session:
                session.run(tf.global_variables_initializer())
                return session.run(return_value, {x: np.eye(4) + 1})

    expected = run(None)
    for stage in (1, 2, 3):
        for found, wanted in zip(run(sharded("dp 2", stage, "mlp", units=r"\w")), expected, strict=True):
            np.testing.assert_allclose(found, wanted, 1e-12)


# --- units


def units_of(shapes: dict[str, list[int]], used: Sequence[str] = (), **options: Any) -> dict[str, list[str]]:
    """The units in a step in which variables of ``shapes`` are used in the order ``used``, or their own."""
    strategy = tf.distribute.FullyShardedStrategy(Mesh([("dp", 2)]), **options)
    with tf.Graph() as graph, strategy.scope():
        variables = {
            name: tf.get_variable(name, shape, trainable="frozen" not in name)
            for name, shape in shapes.items()
        }
        total = tf.constant(0.0)
        for name in used or shapes:
            total += tf.reduce_sum(variables[name]) * total
        request = StepRequest(graph, [total], [], {})
        step = compile_step(request, CompileOptions([parse_device("/cpu:0")]), pipeline=BEFORE)
    found: dict[str, list[str]] = {}
    for name in used or shapes:
        attrs = join_units(step).nodes[name].attrs
        if UNIT in attrs:
            found.setdefault(attrs[UNIT], []).append(name)
    return found


def test_blocks_are_units_as_a_whole() -> None:
    """A block is not divided though it is larger than 25 MiB; smaller ones are joined; frozen ones apart."""
    large = [1 << 10, 4 << 10]  # 16 MiB
    shapes = {
        "in/kernel": [64, 64], "block0/a/kernel": large, "block0/b/kernel": large, "block1/a/kernel": large,
        "block1/frozen": [64, 64], "block1/b": [64, 64], "block1/bias": [64], "out": [64, 64],
    }  # fmt: skip
    assert units_of(shapes) == {
        "in/kernel": ["in/kernel"],
        "block0/a/kernel": ["block0/a/kernel", "block0/b/kernel"],
        "block1/a/kernel": ["block1/a/kernel", "block1/b", "out"],
        "block1/frozen": ["block1/frozen"],
    }


def test_units_are_in_the_order_of_first_use() -> None:
    """Whatever the order in which variables are made: here all of one kind, then all of the other."""
    large = [1 << 10, 3 << 10]  # 12 MiB
    shapes = dict.fromkeys(("up_a", "up_b", "down_a", "down_b"), large)
    assert units_of(shapes) == {"up_a": ["up_a", "up_b"], "down_a": ["down_a", "down_b"]}
    used = ["up_a", "down_a", "up_b", "down_b"]
    assert units_of(shapes, used) == {"up_a": ["up_a", "down_a"], "up_b": ["up_b", "down_b"]}


def test_units_by_expression() -> None:
    shapes = {"x/a": [64, 64], "y/a": [64, 64], "x/b": [64, 64], "other": [64, 64]}
    assert units_of(shapes, units=r"[xy]/") == {
        "x/": ["x/a", "x/b"], "y/": ["y/a"], "other": ["other"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "expected"),
    [([4, 8], "[dp]"), ([3, 8], "[-, dp]"), ([3, 5], "[-, dp]"), ([7, 5], "[dp]"), ([1, 3], "[-, dp]")],
)
def test_the_dimension_that_is_cut(shape: list[int], expected: str) -> None:
    """The first if its parts are equal, then any of equal parts, then the largest."""
    with tf.Graph(), sharded("dp 2", 3, "mlp").scope():
        assert tf.get_variable("w", shape).op.node.attrs["_stored"] == expected


def test_what_is_small_or_has_no_states_stays_whole() -> None:
    with tf.Graph(), tf.distribute.FullyShardedStrategy(Mesh([("dp", 2)]), stage=2).scope():
        small = tf.get_variable("small", [8, 8])
        frozen = tf.get_variable("frozen", [64, 64], trainable=False)
        large = tf.get_variable("large", [64, 64])
        assert "_stored" not in small.op.node.attrs
        assert "_stored" not in frozen.op.node.attrs
        assert large.op.node.attrs["_stored"] == "[dp]"
        assert REGATHER not in large.op.node.attrs


# --- what its users get wrong


def test_units_that_match_no_variable() -> None:
    strategy = tf.distribute.FullyShardedStrategy(Mesh([("dp", 2)]), units="blok")
    with tf.Graph(), pytest.raises(InvalidArgumentError, match="a match of 'blok'; none does"):
        with strategy.scope():
            tf.get_variable("block0/w", [64, 64])


@pytest.mark.parametrize("stage", [2, 3])
def test_a_variable_made_outside_the_scope_is_trained_as_it_is(stage: int) -> None:
    def run(strategy: Any) -> Any:
        with tf.Graph() as graph, contextlib.ExitStack() as scopes:
            x = tf.placeholder(tf.float64, [4, 4])
            w = tf.get_variable("w", initializer=np.eye(4))
            if strategy is not None:
                scopes.enter_context(strategy.scope())
            v = tf.get_variable("v", initializer=np.eye(4) / 2)
            loss = tf.reduce_mean(tf.square(x @ w @ v - 1.0))
            train = tf.train.AdamOptimizer(0.1).minimize(loss)
            with tf.Session(graph=graph, config=tf.ConfigProto(device_count={"CPU": 2})) as session:
                session.run(tf.global_variables_initializer())
                return [session.run([loss, train], {x: np.eye(4) + i})[0] for i in range(4)]

    strategy = tf.distribute.FullyShardedStrategy(Mesh([("dp", 2)]), stage=stage, min_bytes=0)
    np.testing.assert_allclose(run(strategy), run(None), 1e-12)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"stage": 4}, InvalidArgumentError, "expected a stage from 0 to 3; got 4"),
        ({"axis": "pd"}, InvalidArgumentError, "expected an axis of the mesh [dp=2, time turn=2]; got 'pd'"),
        ({"axis": "turn"}, InvalidArgumentError, "expected an axis of devices"),
        ({"stage": True}, InvalidArgumentError, "expected a stage from 0 to 3; got True"),
        ({"stage": 3.0}, InvalidArgumentError, "expected a stage from 0 to 3; got 3.0"),
        ({"axis": None}, InvalidArgumentError, "expected an axis, or several; got None"),
        ({"min_bytes": -1}, InvalidArgumentError, "min_bytes: expected a number of bytes; got -1"),
        (
            {"reshard_after_forward": 2},
            InvalidArgumentError,
            "expected a bool; got 2. For parts within groups of devices: axis=('replica', 'shard')",
        ),
        (
            {"axis": ("replica", "dp")},
            InvalidArgumentError,
            "FullyShardedStrategy: axis: expected an axis of",
        ),
        (
            {"plan": {"w": "row"}, "tensor_axis": "dp"},
            InvalidArgumentError,
            "tensor_axis: expected another axis than dp, which share the batch; got 'dp'",
        ),
        (
            {"plan": {"w": "row"}},
            InvalidArgumentError,
            "tensor_axis: expected an axis of the mesh [dp=2, time turn=2]; got 'tp'",
        ),
        ({"axis": ["dp", "dp"]}, InvalidArgumentError, "axis: expected different axes; got dp, dp"),
        ({"sequence": True}, InvalidArgumentError, "sequence=True: expected a plan of the layers; got none"),
        ({"axis": []}, InvalidArgumentError, "expected an axis of the mesh [dp=2, time turn=2]; got none"),
        ({"units": "("}, InvalidArgumentError, "units: expected a regular expression; got '('"),
        (
            {"stage": 2, "reshard_after_forward": False},
            InvalidArgumentError,
            "reshard_after_forward=False: expected stage 3; got 2",
        ),
        ({"units": ["l0"]}, DTypeError, "units: expected one regular expression, such as 'l0|l1', that "),
        ({"mesh": [("dp", 2)]}, DTypeError, "expected a Mesh; got [('dp', 2)]"),
    ],
)
def test_mistakes(options: dict[str, Any], error: type[Exception], text: str) -> None:
    mesh = Mesh([("dp", 2), Axis("turn", 2, is_time=True)])
    with pytest.raises(error, match=re.escape(text)):
        tf.distribute.FullyShardedStrategy(**{"mesh": mesh, **options})
