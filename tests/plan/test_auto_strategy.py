"""`AutoStrategy` of devices: planned when its scope ends, it trains as one device does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError
from flowrt.graph.layouts.attributes import MESH
from flowrt.graph.precision import Precision
from flowrt.plan.auto_strategy import AutoStrategy
from flowrt.plan.choice import Choice
from flowrt.plan.in_place import InPlaceStrategy, carry_out
from flowrt.plan.plan_file import Plan, write_plan
from flowrt.plan.step.recorded import RecordingStrategy
from tests.each import daily
from tests.plan import test_applied

CHOICES = [
    Choice(dp=4),
    Choice(dp=4, sharding=1),
    Choice(dp=4, sharding=2),
    Choice(dp=2, sharding=3, micro_batches=2),
    Choice(dp=2, pp=2, micro_batches=2),
    Choice(pp=4, micro_batches=4, schedule="zb_h1"),
    Choice(pp=2, micro_batches=4, remat=True),
    Choice(pp=2, chunks=2, micro_batches=4, schedule="interleaved"),
    Choice(dp=2, tp=2, layouts=(("layer0/kernel", (None, "tp")), ("layer1/kernel", ("tp", None)))),
]


def trained(batch: int | None = 16, x: Any = None, y: Any = None) -> Any:
    tf.set_random_seed(1)
    if x is None:
        x, y = tf.placeholder(tf.float32, [batch, 32]), tf.placeholder(tf.int32, [batch])
    h = x
    for layer in range(4):
        h = tf.layers.dense(h, 80, tf.nn.relu, name=f"layer{layer}")
    logits = tf.layers.dense(h, 10, name="logits")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    return x, y, loss, tf.train.AdamOptimizer(0.01).minimize(loss)


def losses(make: Callable[[], Any], devices: int, steps: int = 5) -> list[float]:
    """The losses of ``steps`` steps."""
    with tf.Graph().as_default():
        x, y, loss, train = make()
        rng = np.random.default_rng(0)
        feed = {x: rng.random((16, 32)), y: rng.integers(0, 10, 16)}
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": devices})) as session:
            session.run(tf.global_variables_initializer())
            return [session.run([loss, train], feed)[0] for _ in range(steps)]


def in_scope(strategy: Any, batch: int | None = 16) -> Callable[[], Any]:
    def make() -> Any:
        with strategy.scope():
            return trained(batch)

    return make


@pytest.fixture(scope="module")
def expected() -> list[float]:
    return losses(trained, 1)


@pytest.mark.parametrize("devices", [1, 2, 4, ["/cpu:0", "/cpu:1", "/cpu:2", "/cpu:3"]])
def test_it_trains_as_one_device_does(devices: Any, expected: list[float]) -> None:
    strategy = AutoStrategy(devices)
    count = devices if isinstance(devices, int) else len(devices)
    np.testing.assert_allclose(losses(in_scope(strategy), count), expected, 1e-4)
    assert isinstance(strategy, InPlaceStrategy)
    assert strategy.choice is not None
    assert strategy.choice.devices == count == strategy.mesh.num_devices


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_every_choice_is_carried_out_on_the_graph(
    choice: Choice, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = InPlaceStrategy(choice.devices)

    def planned(graph: Any) -> Choice:
        carry_out(graph, strategy._recorded(graph), choice.strategy(), choice)
        return choice

    monkeypatch.setattr(strategy, "_planned", planned)
    np.testing.assert_allclose(losses(in_scope(strategy), choice.devices), expected, 1e-4)


@pytest.mark.parametrize(
    ("net", "choice"),
    daily(
        product(["wide", "clipped"], test_applied.CHOICES),
        lambda net, choice: (net == "wide") == (choice.pp == 1),
    ),
    ids=str,
)
def test_the_graph_is_that_of_a_script_written_for_the_strategy(net: str, choice: Choice) -> None:
    choice, build = test_applied.with_layouts(choice, net), test_applied.ALL[net]
    found = test_applied.carried_out(build, choice)
    expected = test_applied.written(build, choice)
    text_of = test_applied.text_of
    assert text_of(found, choice.devices) == text_of(expected, choice.devices)


@pytest.mark.parametrize("how", ["devices", "file"])
def test_inputs_from_before_the_scope_are_divided(how: str, expected: list[float], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    names = {f"layer{layer}": [32 if layer == 0 else 80, 80] for layer in range(4)} | {"logits": [80, 10]}
    variables = {f"{name}/kernel": f"float32 {shape}" for name, shape in names.items()}
    variables |= {f"{name}/bias": f"float32 {shape[1:]}" for name, shape in names.items()}
    write_plan(str(path), Plan(Choice(dp=2), variables))
    strategy = AutoStrategy(2 if how == "devices" else path)

    def make() -> Any:
        x, y = tf.placeholder(tf.float32, [16, 32]), tf.placeholder(tf.int32, [16])
        with strategy.scope():
            made = trained(x=x, y=y)
        assert {op.node.attrs[MESH] for op in (x.op, y.op)} == {
            made[2].graph.operations["layer0/bias"].node.attrs[MESH]
        }
        return made

    np.testing.assert_allclose(losses(make, 2), expected, 1e-4)


def test_a_batch_of_unknown_size_is_given(expected: list[float]) -> None:
    found = losses(in_scope(AutoStrategy(2, batch_size=16), None), 2)
    np.testing.assert_allclose(found, expected, 1e-4)
    with pytest.raises(InvalidArgumentError, match=r"known size; got the placeholder .* of shape \[None"):
        losses(in_scope(AutoStrategy(2), None), 2)


def test_without_an_optimizer() -> None:
    with (
        tf.Graph().as_default(),
        pytest.raises(FailedPreconditionError, match=r"the minimize\(\) of an optimizer in the scope"),
        AutoStrategy(2).scope(),
    ):
        tf.layers.dense(tf.placeholder(tf.float32, [8, 4]), 2)


def test_it_trains_in_16_bits() -> None:
    policy = Precision("bfloat16")
    strategy = AutoStrategy(2, policy=policy)
    assert isinstance(strategy, InPlaceStrategy)
    found = losses(in_scope(strategy), 2)
    assert strategy.choice is not None
    by_hand = losses(in_scope(strategy.choice.strategy(policy=policy)), 2)
    np.testing.assert_allclose(found, by_hand, 1e-4)
    assert found[0] != losses(trained, 1)[0]


def test_a_script_that_is_being_planned_has_no_choice_yet() -> None:
    with tf.Graph().as_default(), RecordingStrategy().scope():
        strategy = AutoStrategy(2)
    assert isinstance(strategy, RecordingStrategy)
    assert strategy.choice is None


def test_a_second_scope() -> None:
    strategy = AutoStrategy(2)
    losses(in_scope(strategy), 2, steps=1)
    with pytest.raises(FailedPreconditionError, match="expected one scope"), strategy.scope():
        pass


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        (0, InvalidArgumentError, "expected at least one device; got 0"),
        ([], InvalidArgumentError, r"expected at least one device; got \[\]"),
        (True, DTypeError, "expected a plan's file, a number of devices or their names; got True"),
        (2.5, DTypeError, "got 2.5"),
        (["/gpu:0"], InvalidArgumentError, "expected CPUs, whose rates are known; got '/gpu:0'"),
    ],
)
def test_what_are_no_devices(devices: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        AutoStrategy(devices)


def test_several_workers_need_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    config = '{"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(InvalidArgumentError, match="as 2 workers run this script"):
        AutoStrategy(2)
