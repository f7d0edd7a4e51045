"""Factors and offsets by channel that follow a convolution are in its filter and one sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.lower.schedule import LOOP_COMPILER
from flowrt.graph.evaluate import evaluate
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.fusion.fold_factors import fold_factors
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import snapshot, subgraph_of

COMPILER = LOOP_COMPILER._replace(has_epilogues=lambda: True)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 6, 4)).astype(np.float32)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype(np.float32)


def conv(x: Any) -> Any:
    return tf.nn.conv2d(x, floats(3, 2, 4, 6), [1, 1, 1, 1], "SAME")


def depthwise(x: Any) -> Any:
    return tf.nn.depthwise_conv2d(x, floats(3, 2, 4, 2), [1, 1, 1, 1], "SAME")


def normalized(y: Any, **options: Any) -> Any:
    size = int(y.shape[-1])
    statistics = [floats(size), floats(size), floats(size), np.abs(floats(size))]
    return tf.nn.fused_batch_norm(y, *statistics, epsilon=0.01, is_training=False, **options)[0]


def rewritten(build: Callable[[Any], Any]) -> tuple[Subgraph, Subgraph]:
    """The subgraph of ``build(x)`` before and after the pass, which gives the same."""
    x = tf.placeholder(tf.float32, X.shape, name="x")
    before = subgraph_of(tf.contrib.framework.nest.flatten(build(x)), feeds=[x])
    seen = snapshot(before)
    after = fold_factors(before, COMPILER)
    assert snapshot(before) == seen
    verify_subgraph(after)
    for wanted, found in zip(*(evaluate(each, {"x": X}) for each in (before, after)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    return before, after


def names(subgraph: Subgraph) -> list[str]:
    return [node.op.name for node in subgraph if node.op.name not in ("Const", "_Feed")]


FOLDED: dict[str, Callable[[Any], Any]] = {
    "factor and offset": lambda x: conv(x) * floats(6) + floats(1, 1, 1, 6),
    "offset first": lambda x: floats(6) * tf.nn.bias_add(conv(x), floats(6)),
    "numbers": lambda x: (conv(x) + 1.0) * 3.0,
    "two offsets": lambda x: conv(x) + floats(6) + floats(1, 6),
    "normalized": lambda x: normalized(conv(x)),
    "depthwise": lambda x: normalized(depthwise(x)) * floats(8),
}


@pytest.mark.parametrize("case", FOLDED)
def test_what_is_constant_is_folded(case: str) -> None:
    _, after = rewritten(lambda x: tf.nn.relu(FOLDED[case](x)))
    first = "DepthwiseConv2dNative" if case == "depthwise" else "Conv2D"
    assert names(after) == [first, "AddV2", "Relu"]


def test_a_factor_alone_leaves_no_sum() -> None:
    _, after = rewritten(lambda x: tf.nn.relu(conv(x) * floats(6)))
    assert names(after) == ["Conv2D", "Relu"]


def read_twice(x: Any) -> Any:
    y = conv(x)
    return [y * floats(6), tf.abs(y)]


def fetched(x: Any) -> Any:
    y = conv(x)
    return [y, y * floats(6)]


def by_itself(x: Any) -> Any:
    y = conv(x)
    return y * y


KEPT: dict[str, Callable[[Any], Any]] = {
    "an offset alone": lambda x: conv(x) + floats(6),
    "others read it": read_twice,
    "it is fetched": fetched,
    "by rows": lambda x: conv(x) * floats(6, 1),
    "by pixels": lambda x: conv(x) * floats(5, 6, 1),
    "not constant": lambda x: conv(x) * tf.reduce_mean(x),
    "by itself": by_itself,
    "more dimensions": lambda x: conv(x) * floats(1, 1, 1, 1, 6),
    "statistics of the batch": lambda x: tf.nn.fused_batch_norm(conv(x), floats(6), floats(6))[0],
    "a filter that is no constant": lambda x: tf.nn.conv2d(
        x, tf.reshape(x[0, :, :2], [5, 2, 4, 1]), [1, 1, 1, 1], "SAME"
    ) * 2.0,
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_all_else_stays(case: str) -> None:
    before, after = rewritten(KEPT[case])
    assert after is before


def test_nothing_changes_where_no_library_is() -> None:
    x = tf.placeholder(tf.float32, X.shape)
    before = subgraph_of([conv(x) * 2.0], feeds=[x])
    assert fold_factors(before, LOOP_COMPILER) is before
