"""Convolutions get their channels last, with what is between them; results stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.lower.schedule import LOOP_COMPILER
from flowrt.graph.evaluate import evaluate
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.fusion.channels_last import channels_last
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import op, snapshot, subgraph_of

COMPILER = LOOP_COMPILER._replace(has_epilogues=lambda: True)

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype(np.float32)


X = floats(2, 4, 5, 6)


def conv(x: Any, outputs: int = 4, taps: tuple[int, int] = (3, 2), **attrs: Any) -> Any:
    attrs = {"padding": "SAME", "strides": [1, 1, 1, 1], **attrs}
    return tf.nn.conv2d(x, floats(*taps, int(x.shape[1]), outputs), data_format="NCHW", **attrs)


def rewritten(build: Callable[[Any], Any], value: np.ndarray[Any, Any] = X) -> tuple[Subgraph, Subgraph]:
    """The subgraph of ``build(x)`` before and after the pass, which gives the same."""
    x = tf.placeholder(tf.float32, value.shape, name="x")
    ys = tf.contrib.framework.nest.flatten(build(x))
    before = subgraph_of(ys, feeds=[x])
    seen = snapshot(before)
    after = channels_last(before, COMPILER)
    assert snapshot(before) == seen
    verify_subgraph(after)
    for wanted, found in zip(*(evaluate(each, {"x": value}) for each in (before, after)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    return before, after


def count(subgraph: Subgraph) -> Counter[str]:
    return Counter(node.op.name for node in subgraph if node.op.name != "Const")


def test_transposes_are_left_where_images_come_and_go() -> None:
    def build(x: Any) -> Any:
        y = tf.nn.relu(tf.nn.bias_add(conv(x), floats(4), data_format="NCHW"))
        return conv(y) + y

    before, after = rewritten(build)
    assert count(after) == count(before) + Counter(Transpose=2)
    formats = {node.attrs["data_format"] for node in after if "data_format" in node.attrs}
    assert formats == {"NHWC"}


BETWEEN: dict[str, Callable[[Any], Any]] = {
    "vector": lambda y: y * floats(4, 1, 1) + floats(1, 4, 1, 1),
    "plane": lambda y: y * floats(5, 6),
    "row": lambda y: y * floats(6) + 2.0,
    "other images": lambda y: y + tf.square(y),
    "one of each channel": lambda y: y * tf.sigmoid(tf.reduce_mean(y, [2, 3], keep_dims=True)),
    "means": lambda y: y + tf.reduce_max(y, -3, keep_dims=True),
    "concat": lambda y: tf.concat([y, y * 2.0], 1),
    "concat of rows": lambda y: tf.concat([y, y * 2.0], -1),
    "split": lambda y: tf.split(y, 2, 1)[1],
    "split of rows": lambda y: tf.split(y, [1, 4], 2)[1],
    "pad": lambda y: tf.pad(y, [[0, 1], [1, 2], [0, 3], [2, 0]]),
    "mirrored": lambda y: tf.pad(y, [[0, 0], [1, 2], [0, 3], [2, 0]], "REFLECT"),
    "slice": lambda y: tf.slice(y, [0, 1, 2, 3], [2, 2, 3, -1]),
    "strided": lambda y: y[:, 1:3, ::2],
    "gather": lambda y: tf.gather(y, [0, 0, 2], axis=2),
    "max pool": lambda y: tf.nn.max_pool(y, [1, 1, 2, 3], [1, 1, 2, 1], "SAME", data_format="NCHW"),
    "mean pool": lambda y: tf.nn.avg_pool(y, [1, 1, 2, 3], [1, 1, 1, 2], "VALID", data_format="NCHW"),
    "normalized": lambda y: tf.nn.fused_batch_norm(
        y, floats(4), floats(4), floats(4), np.abs(floats(4)), is_training=False, data_format="NCHW"
    )[0],
    "depthwise": lambda y: tf.nn.depthwise_conv2d(
        y, floats(2, 3, 4, 2), [1, 1, 1, 1], [[0, 0], [0, 0], [2, 1], [0, 1]], data_format="NCHW",
        dilations=[1, 2],
    ),
    "groups and steps": lambda y: op(
        "Conv2D", y, floats(2, 3, 2, 6), padding="EXPLICIT", strides=(1, 1, 2, 1), data_format="NCHW",
        explicit_paddings=(0, 0, 0, 0, 1, 0, 2, 3), dilations=(1, 1, 1, 2),
    ),
    "spread": lambda y: tf.squeeze(tf.expand_dims(tf.reshape(y, [2, 4, 1, 30]), 2), [2]),
}  # fmt: skip


@pytest.mark.parametrize("between", BETWEEN)
def test_what_is_between_has_its_channels_last(between: str) -> None:
    before, after = rewritten(lambda x: conv(BETWEEN[between](conv(x)), taps=(1, 1)))
    found = count(after)
    assert found["Transpose"] == 2
    names = [name for name in count(before) if name not in ("ExpandDims", "Squeeze")]
    assert all(found[name] == count(before)[name] for name in names if name != "Reshape")


OUTSIDE: dict[str, Callable[[Any], Any]] = {
    "flat": lambda y: tf.reshape(y, [2, -1]),
    "product": lambda y: tf.matmul(y, floats(6, 3)),
    "means of all": lambda y: tf.reduce_mean(y, [2, 3]),
    "sums of rows": lambda y: tf.reduce_sum(y, [1, 3]),
    "softmax": tf.nn.softmax,
    "shrunk": lambda y: y[:, 0],
    "other order": lambda y: tf.transpose(y, [1, 0, 3, 2]),
    "last": lambda y: tf.transpose(y, [0, 2, 3, 1]),
    "batch": lambda y: tf.split(y, 2, 0),
    "more": lambda y: [y, tf.reduce_sum(y), tf.abs(y)],
    "rank": lambda y: y + floats(3, 1, 1, 1, 1),
}


@pytest.mark.parametrize("outside", OUTSIDE)
def test_others_read_images_as_they_were(outside: str) -> None:
    rewritten(lambda x: OUTSIDE[outside](conv(x)))


def test_images_that_come_with_channels_last_stay_so() -> None:
    def build(x: Any) -> Any:
        return tf.transpose(conv(tf.transpose(x, [0, 3, 1, 2])), [0, 2, 3, 1])

    _, after = rewritten(build, floats(2, 5, 6, 4))
    assert count(after)["Transpose"] == 0


def test_vectors_of_channels_are_reshaped() -> None:
    _, after = rewritten(lambda x: tf.reshape(conv(tf.nn.relu(x), taps=(1, 1)), [2, 4]), floats(2, 4, 1, 1))
    assert count(after)["Transpose"] == 0


def test_rows_in_one_dimension() -> None:
    def build(x: Any) -> Any:
        for _ in range(2):
            x = tf.nn.relu(tf.squeeze(conv(tf.expand_dims(x, 2)), [2]) + floats(4, 1))
        return x

    _, after = rewritten(build, floats(2, 4, 7))
    assert count(after)["Transpose"] == 2


def test_volumes() -> None:
    def build(x: Any) -> Any:
        y = tf.nn.conv3d(x, floats(2, 3, 1, 4, 5), [1, 1, 2, 1, 1], "VALID", data_format="NCDHW")
        return tf.nn.max_pool3d(tf.nn.relu(y), [1, 1, 1, 2, 2], [1, 1, 1, 1, 1], "SAME", data_format="NCDHW")

    before, after = rewritten(build, floats(2, 4, 3, 5, 6))
    assert count(after) == count(before) + Counter(Transpose=2)


def test_gradients_stay_as_they_are() -> None:
    x = tf.placeholder(tf.float32, X.shape)
    before = subgraph_of(tf.gradients(tf.reduce_sum(tf.square(conv(x))), x), feeds=[x])
    assert channels_last(before, COMPILER) is before


def test_nothing_changes_where_no_library_is() -> None:
    x = tf.placeholder(tf.float32, X.shape)
    before = subgraph_of([conv(x)], feeds=[x])
    assert channels_last(before, LOOP_COMPILER) is before


def test_targets_stay() -> None:
    x = tf.placeholder(tf.float32, X.shape, name="x")
    y = tf.identity(conv(x), name="y")
    after = channels_last(subgraph_of([tf.square(x)], [y.op], feeds=[x]), COMPILER)
    verify_subgraph(after)
    assert after.targets == ("y",)
    assert after.nodes["Conv2D"].attrs["data_format"] == "NHWC"
