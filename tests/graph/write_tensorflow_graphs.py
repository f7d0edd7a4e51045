"""Writes the graphs of tests/graph/v1_control_flow and tests/graph/v2_control_flow, with TensorFlow:

    PYTHON_WITH_TENSORFLOW tests/graph/write_tensorflow_graphs.py

Each graph has the scalar placeholder "x" and the outputs "out_0", "out_1", ...; values.json has their values
for each of `FEEDS`. Written by TensorFlow 2.21: once with its control flow of Switch and Merge, once with
functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf  # type: ignore[import-not-found]
from google.protobuf import text_format
from tensorflow.python.ops import rnn  # type: ignore[import-not-found]
from tensorflow.python.ops.rnn_cell_impl import RNNCell  # type: ignore[import-not-found]

FEEDS = (0.5, 1.5, 2.5)
CASES: dict[str, Callable[[Any], Any]] = {}
V2_ONLY = ("call",)
V1_ONLY = (
    "gradient_of_arrays", "gradient_of_branches", "gradient_of_nested_loops", "gradient_of_rnn",
    "second_gradient_of_branches",
)  # fmt: skip
"""TensorFlow 1 keeps what gradients read on stacks."""


def case(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    CASES[function.__name__] = function
    return function


def three_times(body: Callable[[Any, Any], Any], start: Any, **options: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, body(i, a)), [0, start], **options)[1]


@case
def loop(x: Any) -> Any:
    return tf.while_loop(lambda i, a: a < 20, lambda i, a: [i + 1, a * x + 1], [0, x], maximum_iterations=4)


@case
def branches(x: Any) -> Any:
    return tf.cond(x > 1, lambda: (x * 2, tf.constant(3)), lambda: (x - 1, tf.constant(4)))


@case
def branch_after_branch(x: Any) -> Any:
    predicate = x > 1
    first = tf.cond(predicate, lambda: x * 2, lambda: x - 1)
    return first, tf.cond(predicate, lambda: first * 2, lambda: first - 1)


@case
def loops_and_branches(x: Any) -> Any:
    def halved(i: Any, a: Any) -> Any:
        branch = lambda b: tf.cond(b > 5, lambda: b - 3, lambda: b * x + 1)  # noqa: E731
        return tf.while_loop(lambda j, _: j < i, lambda j, b: (j + 1, branch(b)), [0, a])[1]

    return three_times(lambda i, a: tf.cond(a > 2, lambda: halved(i, a), lambda: a + x), x)


@case
def growing(x: Any) -> Any:
    shapes = [tf.TensorShape([]), tf.TensorShape([None])]
    return three_times(lambda i, a: tf.concat([a, a * 2], 0), tf.reshape(x, [1]), shape_invariants=shapes)


@case
def arrays(x: Any) -> Any:
    rows = tf.TensorArray(tf.float32, 4, element_shape=[2], clear_after_read=False)
    rows = rows.unstack(tf.reshape(tf.range(8.0), [4, 2]) * x)
    sums = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[])
    sums = three_times(lambda i, t: t.write(i, tf.reduce_sum(rows.read(i))), sums)
    return sums.stack(), sums.size(), rows.gather([2, 0]), rows.concat()


class Cell(RNNCell):  # type: ignore[misc]
    state_size = output_size = 3

    def __init__(self) -> None:
        super().__init__()
        self._reuse = False

    def call(self, inputs: Any, state: Any) -> Any:
        weights = tf.constant(np.linspace(-1, 1, 15).reshape(5, 3).astype(np.float32))
        new = tf.tanh(tf.matmul(tf.concat([inputs, state], 1), weights))
        return new, new


@case
def dynamic_rnn(x: Any) -> Any:
    inputs = tf.reshape(tf.range(24.0), [3, 4, 2]) * x / 10
    return rnn.dynamic_rnn(Cell(), inputs, sequence_length=tf.constant([4, 2, 3]), dtype=tf.float32)


@case
def assertion(x: Any) -> Any:
    with tf.control_dependencies([tf.Assert(x < 100, [x])]):
        return tf.identity(x) + 1


@case
def call(x: Any) -> Any:
    function = tf.function(lambda a: a * a + x)
    return function(x) + function(tf.constant(2.0))


@case
def gradient(x: Any) -> Any:
    array = tf.TensorArray(tf.float32, 3, element_shape=[])
    array = three_times(lambda i, t: t.write(i, x * x * tf.cast(i, tf.float32)), array)
    return tf.gradients(three_times(lambda i, a: a * x, x), x)[0], tf.gradients(array.stack(), x)[0]


def with_gradient(y: Any, x: Any) -> tuple[Any, Any]:
    return y, tf.gradients(y, x)[0]


@case
def gradient_of_nested_loops(x: Any) -> Any:
    def inner(i: Any, a: Any) -> Any:
        return tf.while_loop(lambda j, _: j < i + 1, lambda j, b: (j + 1, tf.sin(b) * x + b), [0, a])[1]

    shapes = [tf.TensorShape([]), tf.TensorShape([None])]
    growing = three_times(lambda i, a: tf.concat([a, a * x], 0), tf.reshape(x, [1]), shape_invariants=shapes)
    return with_gradient(three_times(inner, x) + tf.reduce_sum(growing), x)


@case
def gradient_of_branches(x: Any) -> Any:
    """In loops, around one, and one that draws: its gradient has the numbers that it has drawn."""

    def body(i: Any, a: Any) -> Any:
        return tf.cond(a > 1, lambda: tf.cond(a > 2, lambda: tf.tanh(a) * x, lambda: a * a), lambda: a + x)

    y = tf.cond(x > 1, lambda: three_times(lambda i, a: tf.sin(a) * x, x), lambda: x)
    kept = lambda a: tf.cond(x > 1, lambda: a * tf.floor(tf.random.uniform([9]) + 0.5), lambda: a)  # noqa: E731
    drawn = tf.reduce_sum(kept(three_times(lambda i, a: kept(a), tf.fill([9], x))) ** 2, name="drawn")
    return *with_gradient(three_times(body, x) + y, x), drawn - x * tf.gradients(drawn, x)[0] / 2


@case
def second_gradient_of_branches(x: Any) -> Any:
    """Branches inside others, and one after another on the same predicate."""
    first = tf.cond(x > 1, lambda: tf.cond(x > 2, lambda: tf.tanh(x) * x, lambda: x * x), lambda: tf.sin(x))
    y = tf.cond(x > 1, lambda: first * first * x, lambda: tf.exp(first)) * first
    (dy,) = tf.gradients(y, x)
    return dy, *tf.gradients(dy * dy, x)


@case
def gradient_of_arrays(x: Any) -> Any:
    """Read and written in loops and outside, one element twice and one not at all, and parts of one."""
    rows = tf.TensorArray(tf.float32, 4, clear_after_read=False, infer_shape=False)
    rows = rows.unstack(tf.reshape(tf.range(12.0), [4, 3])[:, : 1 + tf.cast(x > 1, tf.int32)] * x)
    sums = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[])
    product = lambda i: tf.reduce_sum(rows.read(i)) * tf.reduce_sum(rows.read(i + 1))  # noqa: E731
    sums = tf.while_loop(lambda i, _: i < 2, lambda i, t: (i + 1, t.write(i, product(i))), [0, sums])[1]
    parts = tf.TensorArray(tf.float32, 2, infer_shape=False).split(tf.stack([x, x * x, x + 1]), [1, 2])
    return with_gradient(tf.reduce_sum(sums.stack() ** 2) + tf.reduce_sum(parts.concat() ** 2), x)


@case
def gradient_of_rnn(x: Any) -> Any:
    """With steps that no example has: their inputs get zeros."""
    inputs = tf.reshape(tf.range(24.0), [3, 4, 2]) * x / 50
    inputs = tf.placeholder_with_default(inputs, [None, 4, 2])
    lengths = tf.constant([1, 2, 3])
    outputs, state = rnn.dynamic_rnn(Cell(), inputs, sequence_length=lengths, dtype=tf.float32)
    y = tf.reduce_sum(outputs**2) + tf.reduce_sum(state)
    return y, *tf.gradients(y, [x, inputs])


def write(folder: Path, names: list[str]) -> None:
    values = {}
    for name in names:
        with tf.Graph().as_default() as graph, tf.Session() as session:
            x = tf.placeholder(tf.float32, [], name="x")
            found = CASES[name](x)
            outputs = found if isinstance(found, (list, tuple)) else [found]
            outputs = [tf.identity(t, name=f"out_{i}") for i, t in enumerate(outputs)]
            values[name] = [[v.tolist() for v in session.run(outputs, {x: feed})] for feed in FEEDS]
            text = text_format.MessageToString(graph.as_graph_def(), indent=0)
            (folder / f"{name}.pbtxt").write_text(text)
    (folder / "values.json").write_text(json.dumps(values, indent=1) + "\n")


def main() -> None:
    tf.disable_eager_execution()
    folder = Path(__file__).parent
    tf.disable_control_flow_v2()
    write(folder / "v1_control_flow", [name for name in CASES if name not in V2_ONLY])
    tf.enable_control_flow_v2()
    write(folder / "v2_control_flow", [name for name in CASES if name not in V1_ONLY])


if __name__ == "__main__":
    main()
