"""The work that is timed, written once against TensorFlow 1's names. Each case takes the module under test
(`flowrt` or TensorFlow's compat.v1).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import inputs
from benchmarks.inputs import Gpt, digits, floats
from benchmarks.timing import Outcome, median_s, timed, timed_from_first


def _session(tf: Any, graph: Any, cpus: int = 1, optimise: bool = True) -> Any:
    options = {}
    if not optimise and tf.__name__ != "flowrt":  # keep TensorFlow from folding the chain of devices away
        from tensorflow.core.protobuf import rewriter_config_pb2

        rewrites = rewriter_config_pb2.RewriterConfig(disable_meta_optimizer=True)
        options["graph_options"] = tf.GraphOptions(rewrite_options=rewrites)
    return tf.Session(graph=graph, config=tf.ConfigProto(device_count={"CPU": cpus}, **options))


def _training_step(tf: Any, graph: Any, optimizer: Any, loss: Any, feed: dict[Any, Any]) -> Callable[[], Any]:
    """One step of ``optimizer``, which returns the loss; called while ``graph`` is the default."""
    train = optimizer.minimize(loss)
    init = tf.global_variables_initializer()
    session = _session(tf, graph)
    session.run(init)
    return lambda: session.run([train, loss], feed)[1]


def _cross_entropy(tf: Any, logits: Any, labels: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def noop_run(tf: Any) -> Outcome:
    """An empty ``session.run``: what a step costs before it does anything."""
    graph = tf.Graph()
    with graph.as_default():
        nothing = tf.no_op()
    session = _session(tf, graph)
    return Outcome({"run": median_s(lambda: session.run(nothing))})


def add_feed_fetch(tf: Any) -> Outcome:
    """Feed one scalar, add one, fetch it."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [])
        y = x + 1.0
    session = _session(tf, graph)
    return timed(lambda: session.run(y, {x: 1.0}))


def add_callable(tf: Any) -> Outcome:
    """The same through ``make_callable``."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [])
        y = x + 1.0
    add = _session(tf, graph).make_callable(y, [x])
    return timed(lambda: add(1.0))


def chain_1000_small_ops(tf: Any) -> Outcome:
    """1,000 dependent operations on 64 floats."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [64])
        y = x
        for _ in range(inputs.CHAIN):
            y = tf.sin(y) * x
    session, value = _session(tf, graph), floats(64)
    return timed(lambda: session.run(y, {x: value}), value=lambda y: y[inputs.is_calm(value)].sum())


def while_10k(tf: Any) -> Outcome:
    """A loop of 10,000 steps on two scalars."""
    graph = tf.Graph()
    with graph.as_default():
        steps = tf.placeholder(tf.int32, [])
        start = [tf.constant(0), tf.constant(0.0)]
        last = tf.while_loop(lambda i, a: i < steps, lambda i, a: (i + 1, a * 0.999 + 1.0), start)
    session = _session(tf, graph)
    return timed(lambda: session.run(last, {steps: inputs.LOOP_STEPS}), value=lambda last: last[1])


def while_nested(tf: Any) -> Outcome:
    """100 steps of a loop of 100 steps, on scalars."""
    graph = tf.Graph()
    with graph.as_default():
        steps = tf.placeholder(tf.int32, [])

        def inner(j: Any, a: Any) -> Any:
            return j + 1, a * 0.999 + 1.0

        def outer(i: Any, a: Any) -> Any:
            return i + 1, 0.5 * tf.while_loop(lambda j, _: j < steps, inner, [tf.constant(0), a])[1]

        last = tf.while_loop(lambda i, _: i < steps, outer, [tf.constant(0), tf.constant(0.0)])
    session = _session(tf, graph)
    return timed(lambda: session.run(last, {steps: inputs.NEST_STEPS}), value=lambda last: last[1])


def while_cond_1k(tf: Any) -> Outcome:
    """A loop of 1,000 steps on 16 floats, with a branch in it."""
    graph = tf.Graph()
    with graph.as_default():
        steps = tf.placeholder(tf.int32, [])

        def body(i: Any, a: Any) -> Any:
            return i + 1, tf.cond(a[0] > 1.0, lambda: a * 0.5 - 1.0, lambda: tf.tanh(a) + 1.5)

        start = [tf.constant(0), tf.zeros([inputs.BRANCH_WIDTH])]
        last = tf.while_loop(lambda i, _: i < steps, body, start)
    session = _session(tf, graph)
    return timed(lambda: session.run(last, {steps: inputs.BRANCH_STEPS}), value=lambda last: last[1].sum())


def hops_1000_two_cpus(tf: Any) -> Outcome:
    """1,000 operations on two CPU devices by turns: every tensor goes through the rendezvous."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [64])
        y = x
        for i in range(1000):
            with tf.device(f"/cpu:{i % 2}"):
                y = tf.sin(y)
    session, value = _session(tf, graph, cpus=2, optimise=False), floats(64)
    return timed(lambda: session.run(y, {x: value}), value=np.sum)


def graph_50k(tf: Any) -> Outcome:
    """A graph of 100,000 operations on 64 floats: building, the first run, later runs."""
    start = time.perf_counter()
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [64])
        lanes = [x * float(i) for i in range(100)]
        for i in range(50_000):
            lane = i % 100
            lanes[lane] = tf.add(lanes[lane], lanes[(7 * i + 1) % 100]) * 0.5
        total = tf.add_n(lanes)
    built = time.perf_counter()
    session, value = _session(tf, graph), floats(64)
    session.run(total, {x: value})
    ran = time.perf_counter()
    later = timed(lambda: session.run(total, {x: value}), value=np.sum)
    return later._replace(figures={"build": built - start, "first_run": ran - built} | later.figures)


def mlp_adam(tf: Any) -> Outcome:
    """A training step of 784-512-512-10 with Adam, batch 128."""
    graph = tf.Graph()
    with graph.as_default():
        x, labels = tf.placeholder(tf.float32, [128, 784]), tf.placeholder(tf.int64, [128])
        w1, b1, w2, b2, w3, b3 = map(tf.Variable, inputs.mlp_parameters())
        h = tf.nn.relu(tf.matmul(x, w1) + b1)
        h = tf.nn.relu(tf.matmul(h, w2) + b2)
        loss = _cross_entropy(tf, tf.matmul(h, w3) + b3, labels)
        feed = {x: floats(128, 784), labels: inputs.digits(128)}
        step = _training_step(tf, graph, tf.train.AdamOptimizer(1e-3), loss, feed)
    return timed(step, "step")


def lenet_sgd(tf: Any) -> Outcome:
    """A training step of a LeNet on 64 images of 28 x 28."""
    graph = tf.Graph()
    with graph.as_default():
        x, labels = tf.placeholder(tf.float32, [64, 28, 28, 1]), tf.placeholder(tf.int64, [64])
        *kernels, hidden, output = map(tf.Variable, inputs.lenet_parameters())
        h = x
        for kernel in kernels:
            h = tf.nn.relu(tf.nn.conv2d(h, kernel, strides=[1, 1, 1, 1], padding="SAME"))
            h = tf.nn.max_pool(h, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
        h = tf.nn.relu(tf.matmul(tf.reshape(h, [64, -1]), hidden))
        loss = _cross_entropy(tf, tf.matmul(h, output), labels)
        feed = {x: floats(64, 28, 28, 1), labels: inputs.digits(64)}
        step = _training_step(tf, graph, tf.train.GradientDescentOptimizer(1e-2), loss, feed)
    return timed(step, "step")


def lstm_while_train(tf: Any) -> Outcome:
    """A training step of an LSTM written as a ``while_loop``: 100 steps, batch 32, 128 cells."""
    graph = tf.Graph()
    with graph.as_default():
        xs = tf.placeholder(tf.float32, [inputs.TIME, inputs.BATCH, inputs.CELLS])
        weights, bias = map(tf.Variable, inputs.lstm_parameters())

        def cell(t: Any, c: Any, h: Any, total: Any) -> Any:
            c, h = _lstm(tf, tf.gather(xs, t), c, h, weights, bias)
            return t + 1, c, h, total + tf.reduce_sum(h)

        zero = tf.zeros([inputs.BATCH, inputs.CELLS])
        start = [tf.constant(0), zero, zero, tf.constant(0.0)]
        *_, total = tf.while_loop(lambda t, *_: t < inputs.TIME, cell, start)
        feed = {xs: floats(inputs.TIME, inputs.BATCH, inputs.CELLS)}
        step = _training_step(tf, graph, tf.train.GradientDescentOptimizer(1e-4), total, feed)
    return timed(step, "step")


def lstm_tensor_array(tf: Any) -> Outcome:
    """The same over `TensorArray`s, as ``dynamic_rnn`` does: inputs unstacked, outputs stacked."""
    graph = tf.Graph()
    with graph.as_default():
        xs = tf.placeholder(tf.float32, [inputs.TIME, inputs.BATCH, inputs.CELLS])
        weights, bias = map(tf.Variable, inputs.lstm_parameters())
        sequence = tf.TensorArray(tf.float32, inputs.TIME).unstack(xs)

        def cell(t: Any, c: Any, h: Any, outputs: Any) -> Any:
            c, h = _lstm(tf, sequence.read(t), c, h, weights, bias)
            return t + 1, c, h, outputs.write(t, h)

        zero = tf.zeros([inputs.BATCH, inputs.CELLS])
        start = [tf.constant(0), zero, zero, tf.TensorArray(tf.float32, inputs.TIME)]
        *_, outputs = tf.while_loop(lambda t, *_: t < inputs.TIME, cell, start)
        total = tf.reduce_sum(outputs.stack())
        feed = {xs: floats(inputs.TIME, inputs.BATCH, inputs.CELLS)}
        step = _training_step(tf, graph, tf.train.GradientDescentOptimizer(1e-4), total, feed)
    return timed(step, "step")


def lstm_fed_rows(tf: Any) -> Outcome:
    """A training step of an LSTM over sampled neighbours, as GraphSAGE has it: ``dynamic_rnn`` over as many
    rows as the script feeds as a number, of different lengths.
    """
    graph, net = tf.Graph(), inputs.Sampled
    with graph.as_default():
        neighbours, rows = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [])
        weights, bias = map(tf.Variable, inputs.lstm_parameters(net.cells))
        features = tf.Variable(floats(net.nodes, net.cells))
        x = tf.reshape(tf.gather(features, neighbours), tf.stack([rows, net.samples, net.cells]))
        x.set_shape([None, net.samples, net.cells])
        cell = _Cell(tf, net.cells, weights, bias)
        length = tf.fill(tf.stack([rows]), net.samples) - tf.cast(tf.range(rows) % 3, tf.int32)
        outputs, _ = tf.nn.dynamic_rnn(
            cell, x, sequence_length=length, initial_state=cell.zero_state(rows, tf.float32)
        )
        loss = tf.reduce_mean(tf.square(outputs))
        feed = {neighbours: digits(net.rows * net.samples, below=net.nodes), rows: net.rows}
        step = _training_step(tf, graph, tf.train.GradientDescentOptimizer(1e-2), loss, feed)
    return timed(step, "step")


class _Cell:
    """A cell for ``dynamic_rnn``, of which TensorFlow 2.21 has none."""

    def __init__(self, tf: Any, cells: int, weights: Any, bias: Any) -> None:
        self._tf, self._weights, self._bias = tf, weights, bias
        self.output_size, self.state_size = cells, (cells, cells)

    def zero_state(self, rows: Any, dtype: Any) -> Any:
        zeros = self._tf.zeros(self._tf.stack([rows, self.output_size]), dtype)
        return zeros, zeros

    def __call__(self, x: Any, state: Any, scope: Any = None) -> Any:
        c, h = _lstm(self._tf, x, *state, self._weights, self._bias)
        return h, (c, h)


def _lstm(tf: Any, x: Any, c: Any, h: Any, weights: Any, bias: Any) -> tuple[Any, Any]:
    """The next ``c`` and ``h``."""
    i, j, f, o = tf.split(tf.matmul(tf.concat([x, h], 1), weights) + bias, 4, 1)
    c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
    return c, tf.tanh(c) * tf.sigmoid(o)


def gpt_adam(tf: Any, precision: Any = None) -> Outcome:
    """A training step of a decoder of 4 layers with Adam, and the first one by itself."""
    graph = tf.Graph()
    if precision is not None:
        graph.precision = precision
    with graph.as_default():
        tokens = tf.placeholder(tf.int64, [Gpt.batch, Gpt.length + 1])
        weights = {name: tf.Variable(value) for name, value in inputs.gpt_parameters().items()}
        loss = _cross_entropy(tf, _gpt_logits(tf, weights, tokens[:, :-1]), tf.reshape(tokens[:, 1:], [-1]))
        feed = {tokens: inputs.digits(Gpt.batch, Gpt.length + 1, below=Gpt.symbols)}
        step = _training_step(tf, graph, tf.train.AdamOptimizer(1e-3), loss, feed)
    return timed_from_first(step)


def _gpt_logits(tf: Any, weights: dict[str, Any], tokens: Any) -> Any:
    h = tf.gather(weights["symbols"], tokens) + weights["positions"]
    h = tf.reshape(h, [Gpt.batch * Gpt.length, Gpt.width])
    for layer in range(Gpt.layers):
        own = {name.removeprefix(f"{layer}."): value for name, value in weights.items()}
        a = tf.matmul(_layer_norm(tf, h, own["norm1.gain"], own["norm1.bias"]), own["qkv"])
        h = h + tf.matmul(_attention(tf, a), own["join"])
        a = tf.matmul(_layer_norm(tf, h, own["norm2.gain"], own["norm2.bias"]), own["up"])
        h = h + tf.matmul(_gelu(tf, a), own["down"])
    return tf.matmul(h, weights["output"])


def _layer_norm(tf: Any, x: Any, gain: Any, bias: Any) -> Any:
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.squared_difference(x, mean), -1, keepdims=True)
    return (x - mean) * tf.rsqrt(variance + 1e-5) * gain + bias


def _attention(tf: Any, qkv: Any) -> Any:
    """[tokens, 3 width] -> [tokens, width]."""
    qkv = tf.reshape(qkv, [Gpt.batch, Gpt.length, 3, Gpt.heads, Gpt.depth])
    query, key, value = (tf.transpose(qkv[:, :, i], [0, 2, 1, 3]) for i in range(3))
    scores = tf.matmul(query, key, transpose_b=True) * Gpt.scale + inputs.causal_mask()
    mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
    return tf.reshape(mixed, [Gpt.batch * Gpt.length, Gpt.width])


def _gelu(tf: Any, x: Any) -> Any:
    return 0.5 * x * (1.0 + tf.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def gelu_sum_16m(tf: Any) -> Outcome:
    """The tanh-GELU of 16 million floats, and its sum."""
    graph = tf.Graph()
    with graph.as_default():
        total = tf.reduce_sum(_gelu(tf, tf.identity(tf.Variable(floats(inputs.GELU_SIZE)))))
        init = tf.global_variables_initializer()
    session = _session(tf, graph)
    session.run(init)
    return timed(lambda: session.run(total))


def softmax_short_rows(tf: Any) -> Outcome:
    """The softmax of 10,000 rows of 60 floats, and the sum of its squares."""
    graph = tf.Graph()
    with graph.as_default():
        powers = tf.nn.softmax(tf.identity(tf.Variable(floats(*inputs.ROWS))))
        total = tf.reduce_sum(powers * powers)
        init = tf.global_variables_initializer()
    session = _session(tf, graph)
    session.run(init)
    return timed(lambda: session.run(total))


def records_4_kib(tf: Any) -> Outcome:
    """67 MB of records of 4 KiB from a file, 16 a step: 300 MB/s are 224 ms."""
    record = bytes(digits(inputs.RECORD_BYTES, below=256).astype(np.uint8))
    with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default() as graph:
        path = os.path.join(folder, "records")
        with tf.python_io.TFRecordWriter(path) as writer:
            for _ in range(inputs.RECORDS):
                writer.write(record)
        batches = tf.data.TFRecordDataset(path).batch(inputs.RECORDS_A_STEP)
        iterator = tf.data.make_initializable_iterator(batches)
        count = tf.size(iterator.get_next())
        session = _session(tf, graph)

        def read() -> int:
            session.run(iterator.initializer)
            return sum(session.run(count) for _ in range(inputs.RECORDS // inputs.RECORDS_A_STEP))

        return timed(read)


def matmul_2048(tf: Any) -> Outcome:
    """A product of two 2048 x 2048 matrices, and its sum."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.Variable(floats(inputs.SQUARE, inputs.SQUARE))
        total = tf.reduce_sum(tf.matmul(x, x))
        init = tf.global_variables_initializer()
    session = _session(tf, graph)
    session.run(init)
    return timed(lambda: session.run(total))


CASES: dict[str, Callable[[Any], Outcome]] = {
    case.__name__: case
    for case in (
        noop_run,
        add_feed_fetch,
        add_callable,
        chain_1000_small_ops,
        while_10k,
        while_nested,
        while_cond_1k,
        hops_1000_two_cpus,
        graph_50k,
        mlp_adam,
        lenet_sgd,
        lstm_while_train,
        lstm_tensor_array,
        lstm_fed_rows,
        gpt_adam,
        gelu_sum_16m,
        softmax_short_rows,
        records_4_kib,
        matmul_2048,
    )
}
