"""Plans as files, and the strategies that they make."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError, NotFoundError, OpError
from flowrt.plan.auto_strategy import AutoStrategy
from flowrt.plan.choice import Choice
from flowrt.plan.plan_file import Plan, read_plan, write_plan

CHOICE = Choice(dp=2, tp=2, micro_batches=2, sharding=3, layouts=(("hidden/kernel", (None, "tp")),))
VARIABLES = {"hidden/kernel": "float32 [4, 6]", "hidden/bias": "float32 [6]"}


PLAN = Plan(CHOICE, VARIABLES, "train.py", "[device.a]\n[host]\n", {"seconds": 0.5})


@pytest.fixture
def path(tmp_path: Path) -> str:
    name = str(tmp_path / "plan.json")
    write_plan(name, PLAN)
    return name


def test_a_plan_is_read_as_it_was_written(path: str) -> None:
    assert read_plan(path) == PLAN


def test_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(
        NotFoundError, match=r"none\.json: expected a file; there is none\. flowrt plan --json"
    ):
        read_plan(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flowrt_plan": 1}, "plan.json:2: flowrt_plan: expected 3; got 1"),
        ({"choice": {"sharding": 7}}, r"plan.json:14: choice.sharding: expected 0, 1, 2 or 3; got 7"),
        ({"choice": {"pp": 2}}, "choice.sharding: expected 0, as there is a pipeline"),
        ({"choice": {"dp": 1}}, "choice.sharding: expected 0, as .* only one part of the batch"),
        ({"choice": {"chunks": 2}}, r"choice.chunks: expected 1, as there is no pipeline \(pp=1\); got 2"),
        ({"choice": {"remat": True}}, "choice.remat: expected False, as there is no pipeline"),
        ({"choice": {"schedule": "1f2b"}}, r"choice.schedule: expected one of .*1f1b.*; got '1f2b'"),
        (
            {"choice": {"pp": 2, "sharding": 0, "chunks": 3}},
            "choice.chunks: expected 1 with the schedule 1f1b",
        ),
        ({"choice": {"tp": 1}}, "choice.layouts.hidden/kernel: expected axes null, as tp is 1"),
        ({"choice": {"layouts": {"hiden": ["tp"]}}}, "choice.layouts.hiden: expected the name of one of"),
        ({"predicted": 3}, "predicted: expected an object; got 3"),
        ({"cluster": "[host]"}, "cluster: expected the lines of a cluster's file"),
        ({"choice": {"dp": 0}}, "choice.dp: expected an integer >= 1; got 0"),
        ({"choice": {"dp": True}}, "choice.dp: expected an integer >= 1; got True"),
        ({"choice": {"remat": 1}}, "choice.remat: expected a bool; got 1"),
        ({"choice": {"layouts": {"w": [1]}}}, "choice.layouts: expected lists of axes"),
        ({"choice": {"shcedule": "1f1b"}}, r"got choice.shcedule\..*schedule"),
        ({"variables": ["w"]}, "variables: expected dtypes and shapes by name"),
        ({"extra": 1}, "got extra"),
    ],
)
def test_what_is_no_plan(path: str, change: dict[str, Any], message: str) -> None:
    content = json.loads(Path(path).read_text())
    for key, value in change.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    Path(path).write_text(json.dumps(content, indent=2))
    with pytest.raises(InvalidArgumentError, match=message):
        read_plan(path)


def test_damaged_files_are_typed_errors(path: str) -> None:
    data = Path(path).read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        at, length = rng.integers(0, len(data)), rng.integers(1, 20)
        Path(path).write_bytes(data[:at] + rng.bytes(int(rng.integers(0, 4))) + data[at + length :])
        with contextlib.suppress(OpError):
            read_plan(path)


def model(units: int = 6) -> Any:
    x = tf.placeholder(tf.float32, [8, 4])
    return tf.layers.dense(x, units, name="hidden")


def test_the_strategy_of_a_plan_trains_as_one_device_does(path: str) -> None:
    def trained() -> Any:
        tf.set_random_seed(1)
        x = tf.placeholder(tf.float32, [8, 4])
        loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 6, name="hidden")))
        return x, loss, tf.train.AdamOptimizer(0.1).minimize(loss)

    losses = []
    for strategy in (None, AutoStrategy(path)):
        with tf.Graph().as_default():
            if strategy is None:
                x, loss, train = trained()
            else:
                with strategy.scope():
                    x, loss, train = trained()
            with tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
                session.run(tf.global_variables_initializer())
                feed = {x: np.random.default_rng(0).random((8, 4))}
                losses.append([session.run([loss, train], feed)[0] for _ in range(5)])
    np.testing.assert_allclose(losses[1], losses[0], 1e-5)


@pytest.mark.parametrize(
    ("name", "units", "message"),
    [
        ("hiden", 6, r"the variable 'hidden/kernel', float32 \[4, 6\], as train.py had .*; got none"),
        ("hiden", 6, r"got none\. Nearest: hiden/kernel[^.]*\. Plan the script again"),
        ("hidden", 7, r"'hidden/kernel' to be float32 \[4, 6\], as train.py .*; got float32 \[4, 7\]"),
    ],
)
def test_a_script_that_has_changed(path: str, name: str, units: int, message: str) -> None:
    write_plan(path, Plan(Choice(dp=2), VARIABLES, "train.py"))
    with pytest.raises(InvalidArgumentError, match=message), AutoStrategy(path).scope():
        tf.layers.dense(tf.placeholder(tf.float32, [8, 4]), units, name=name)


def test_a_script_with_a_new_variable(path: str) -> None:
    expected = r"got another, 'new/kernel', float32 \[6, 2\]\. Plan the script again"
    with pytest.raises(InvalidArgumentError, match=expected), AutoStrategy(path).scope():
        tf.layers.dense(model(), 2, name="new")
