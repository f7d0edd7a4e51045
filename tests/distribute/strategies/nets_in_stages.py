"""Nets in stages, which are trained under any `PipelineStrategy` and on one device: with `at(where)`, a part
of a net is at the stage that is ``where``, from 0 to 1, of the way.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import flowrt as tf
from flowrt.graph.pipeline.schedules import TABLE

DEVICES = 8
BATCH, LENGTH, WIDTH, HEADS, WORDS = 16, 5, 8, 2, 11
CONFIG = tf.ConfigProto(device_count={"CPU": DEVICES})

At: TypeAlias = Callable[[float], AbstractContextManager[Any]]
Feeds: TypeAlias = Mapping[Any, Any]


class Net(NamedTuple):
    """What to feed, by the step, the loss, and the update."""

    feeds: Callable[[int], Feeds]
    loss: Any
    train: Any


class Trained(NamedTuple):
    losses: list[float]
    variables: dict[str, Any]


def trained(
    build: Callable[[At], Net], strategy: Any = None, steps: int = 3, is_staged: bool = True
) -> Trained:
    """The losses of ``steps`` steps, and the variables after them."""
    with tf.Graph() as graph, tf.Session(graph=graph, config=CONFIG) as session:
        net = built(build, strategy, is_staged)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        losses = [float(session.run([net.loss, net.train], net.feeds(i))[0]) for i in range(steps)]
        return Trained(losses, session.run({v.op.name: v for v in tf.global_variables()}))


def built(build: Callable[[At], Net], strategy: Any = None, is_staged: bool = True) -> Net:
    """The net in the default graph. ``is_staged``: it says where its stages are."""
    tf.set_random_seed(7)
    if strategy is None:
        return build(lambda where: nullcontext())
    count = strategy.schedule.stages

    def at(where: float) -> AbstractContextManager[Any]:
        return tf.distribute.stage(min(int(where * count), count - 1)) if is_staged else nullcontext()

    with strategy.scope():
        return build(at)


def agree(found: Trained, expected: Trained, what: str = "", rtol: float = 1e-9) -> None:
    """Check that losses and variables are the same, but for the last bits of sums."""
    np.testing.assert_allclose(found.losses, expected.losses, rtol, err_msg=f"losses: {what}")
    assert found.variables.keys() == expected.variables.keys()
    for name, value in expected.variables.items():
        np.testing.assert_allclose(found.variables[name], value, rtol, 1e-9, err_msg=f"{name}: {what}")


# --- a GPT


def gpt(
    at: At, blocks: int = 4, batches: Sequence[int] = (BATCH,), lengths: Sequence[int] = (LENGTH,),
    optimizer: Callable[..., Any] | None = None, dtype: Any = tf.float64, rate: float = 0.2,
) -> Net:  # fmt: skip
    """A decoder with dropout, a skip connection from its first stage to its last, and one matrix for the
    words that it reads and those that it writes. Batches and sequences take turns in their sizes.
    """
    tokens, targets = (tf.placeholder(tf.int32, [None, None], name) for name in ("tokens", "targets"))
    length = tf.shape(tokens)[1]
    with at(0):
        words = tf.get_variable("words", [WORDS, WIDTH], dtype)
        h = skip = tf.nn.embedding_lookup(words, tokens)
    for i in range(blocks):
        with at(i / blocks), tf.variable_scope(f"block{i}"):
            h = block(h, length, dtype, rate)
    with at(1):
        logits = tf.matmul(tf.reshape(h + skip, [-1, WIDTH]), words, transpose_b=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.reshape(targets, [-1]), logits=logits
        )
        loss = tf.reduce_mean(losses)

    def feeds(step: int) -> Feeds:
        rng = np.random.default_rng(step)
        shape = batches[step % len(batches)], lengths[step % len(lengths)]
        return {each: rng.integers(0, WORDS, shape) for each in (tokens, targets)}

    train = (optimizer or adam)(loss)
    return Net(feeds, loss, train)


def tied(at: At) -> Net:
    """One matrix of words that the first stage, one in the middle and the last one read."""
    tokens, targets = (tf.placeholder(tf.int32, [None, None], name) for name in ("tokens", "targets"))
    with at(0):
        words = tf.get_variable("words", [WORDS, WIDTH], tf.float64)
        h = tf.reshape(tf.nn.embedding_lookup(words, tokens), [-1, WIDTH])
    for i in range(8):
        with at(i / 8):
            h = tf.layers.dense(h, WIDTH, tf.nn.tanh)
            if i == 4:
                h += tf.nn.softmax(tf.matmul(h, words, transpose_b=True)) @ words
    with at(1):
        loss = cross_entropy(tf.matmul(h, words, transpose_b=True), tf.reshape(targets, [-1]))

    def feeds(step: int) -> Feeds:
        rng = np.random.default_rng(step)
        return {each: rng.integers(0, WORDS, (BATCH, LENGTH)) for each in (tokens, targets)}

    return Net(feeds, loss, adam(loss))


def skipping(at: At) -> Net:
    """Eight layers, each of which reads the outputs of all before it, whichever stages made them."""
    x, y = tf.placeholder(tf.float64, [None, 6]), tf.placeholder(tf.int32, [None])
    outputs = [x]
    for i in range(8):
        with at(i / 8):
            outputs.append(tf.layers.dense(tf.concat(outputs, 1), 4, tf.nn.tanh))
    with at(1):
        loss = cross_entropy(tf.layers.dense(tf.concat([outputs[0], outputs[2], outputs[-1]], 1), 4), y)

    def feeds(step: int) -> Feeds:
        rng = np.random.default_rng(step)
        return {x: rng.standard_normal((12, 6)), y: rng.integers(0, 4, 12)}

    return Net(feeds, loss, adam(loss))


def adam(loss: Any) -> Any:
    return tf.train.AdamOptimizer(0.05).minimize(loss)


def block(h: Any, length: Any, dtype: Any, rate: float) -> Any:
    """Attention, and two layers with dropout."""

    def weights(name: str, *shape: int) -> Any:
        return tf.get_variable(name, shape, dtype)

    def split(x: Any) -> Any:
        return tf.transpose(tf.reshape(x, [-1, length, HEADS, WIDTH // HEADS]), [0, 2, 1, 3])

    x = tf.reshape(normalised(h, "first"), [-1, WIDTH])
    query, key, value = (split(x @ weights(name, WIDTH, WIDTH)) for name in ("query", "key", "value"))
    found = tf.matmul(tf.nn.softmax(tf.matmul(query, key, transpose_b=True)), value)
    joined = tf.reshape(tf.transpose(found, [0, 2, 1, 3]), [-1, WIDTH])
    h += tf.reshape(joined @ weights("output", WIDTH, WIDTH), [-1, length, WIDTH])
    x = tf.reshape(normalised(h, "second"), [-1, WIDTH])
    inner = tf.nn.gelu(x @ weights("up", WIDTH, 2 * WIDTH))
    inner = tf.nn.dropout(inner, rate=rate, seed=5) if rate else inner
    return h + tf.reshape(inner @ weights("down", 2 * WIDTH, WIDTH), [-1, length, WIDTH])


def normalised(x: Any, name: str) -> Any:
    scale = tf.get_variable(name, [WIDTH], x.dtype, tf.ones_initializer())
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    return centred * tf.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + 1e-5) * scale


PLAN = {r".*/(query|key|value|up)": "column", r".*/(output|down)": "row"}
"""Tensor parallelism of a block."""


# --- other nets


def mlp(at: At, batches: Sequence[int] = (12,), dtype: Any = tf.float64, is_normalised: bool = False) -> Net:
    """Three layers, dropout, and batch normalization if it ``is_normalised``."""
    x, y = tf.placeholder(dtype, [None, 6]), tf.placeholder(tf.int32, [None])
    with at(0):
        h = tf.layers.dense(x, 8, tf.nn.relu, name="first")
        h = tf.layers.batch_normalization(h, training=True) if is_normalised else h
    with at(0.5):
        h = tf.nn.dropout(tf.layers.dense(h, 8, tf.nn.relu, name="second"), 0.8, seed=3)
    with at(1):
        loss = cross_entropy(tf.layers.dense(h, 4, name="logits"), y)

    def feeds(step: int) -> Feeds:
        rng, count = np.random.default_rng(step), batches[step % len(batches)]
        return {x: rng.standard_normal((count, 6)), y: rng.integers(0, 4, count)}

    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return Net(feeds, loss, adam(loss))


def cross_entropy(logits: Any, labels: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def lstm(at: At, keep: float = 1.0, rows: int = 12) -> Net:
    """Two recurrent layers, each a loop in the graph, the first with dropout unless ``keep`` is 1."""
    x, y = tf.placeholder(tf.float64, [None, 5, 3]), tf.placeholder(tf.int32, [None])
    with at(0):
        cell = tf.nn.rnn_cell.BasicLSTMCell(6)
        cell = tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=keep, seed=2) if keep < 1 else cell
        h, _ = tf.nn.dynamic_rnn(cell, x, dtype=tf.float64, scope="first")
    with at(0.5):
        _, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.BasicLSTMCell(6), h, dtype=tf.float64, scope="second")
    with at(1):
        loss = cross_entropy(tf.layers.dense(state.h, 4), y)

    def feeds(step: int) -> Feeds:
        rng = np.random.default_rng(step)
        return {x: rng.standard_normal((rows, 5, 3)), y: rng.integers(0, 4, rows)}

    return Net(feeds, loss, adam(loss))


def fed_by_dataset(at: At) -> Net:
    """Two layers on a shuffled dataset, with a metric, a global step and a rate that decays."""
    rng = np.random.default_rng(0)
    rows = tf.data.Dataset.from_tensor_slices((rng.standard_normal((48, 6)), rng.integers(0, 4, 48)))
    iterator = rows.shuffle(48, seed=1).repeat().batch(12, drop_remainder=True).make_one_shot_iterator()
    x, y = iterator.get_next()
    with at(0):
        h = tf.layers.dense(x, 8, tf.nn.relu)
    with at(1):
        logits = tf.layers.dense(h, 4)
        loss = cross_entropy(logits, y)
        _, counted = tf.metrics.accuracy(y, tf.argmax(logits, 1))
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.1, step, 2, 0.5)
    train = tf.train.MomentumOptimizer(rate, 0.9).minimize(loss, global_step=step)
    return Net(lambda step: {}, loss, tf.group(train, counted))


def embeddings(at: At) -> Net:
    """Rows of one table looked up at both ends: sparse gradients from two stages."""
    x, y = tf.placeholder(tf.int32, [None, 5]), tf.placeholder(tf.int32, [None])
    with at(0):
        table = tf.get_variable("table", [10, 6], tf.float64)
        h = tf.reduce_mean(tf.nn.embedding_lookup(table, x), 1)
    with at(1):
        h += tf.reduce_mean(tf.nn.embedding_lookup(table, x[:, :2]), 1)
        labels = tf.nn.embedding_lookup(tf.get_variable("labels", [4, 6], tf.float64), y)
        loss = cross_entropy(tf.layers.dense(h * labels, 4), y)

    def feeds(step: int) -> Feeds:
        rng = np.random.default_rng(step)
        return {x: rng.integers(0, 10, (12, 5)), y: rng.integers(0, 4, 12)}

    return Net(feeds, loss, adam(loss))


def losses_of_epochs(strategy: Any = None) -> list[float]:
    """The losses of two epochs of three batches, with weights that the last stage sends to the first."""
    rows = np.random.default_rng(0).standard_normal((2, 12, 4))
    batches = [tf.data.Dataset.from_tensor_slices(each).batch(4, drop_remainder=True) for each in rows]
    begins: list[Any] = []

    def net(at: At) -> Net:
        inputs, labels = (each.make_initializable_iterator() for each in batches)
        begins.extend([inputs.initializer, labels.initializer])
        with at(1):
            w = tf.get_variable("w", [4, 4], tf.float64)
        with at(0):
            h = inputs.get_next() @ w
        for where in (0.25, 0.5):
            with at(where):
                h = tf.tanh(h)
        with at(1):
            loss = tf.reduce_mean(tf.square(h @ w - labels.get_next()))
        return Net(lambda step: {}, loss, adam(loss))

    found: list[float] = []
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        made = built(net, strategy)
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(begins)
            with suppress(tf.errors.OutOfRangeError):
                while True:
                    found.append(float(session.run([made.loss, made.train])[0]))
    return found


def weighted(at: At) -> Net:
    """A loss that is a mean of the rows with weights, and one of their sizes."""
    x, y = tf.placeholder(tf.float64, [None, 6]), tf.placeholder(tf.int32, [None])
    with at(0):
        h = tf.layers.dense(x, 8, tf.nn.relu)
    with at(1):
        weights = tf.cast(y > 0, tf.float64)
        logits = tf.layers.dense(h, 4)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        sizes = tf.losses.compute_weighted_loss(tf.square(logits), weights[:, None])
        loss = tf.reduce_sum(losses * weights) / tf.reduce_sum(weights) + 0.1 * sizes

    def feeds(step: int) -> Feeds:
        rng = np.random.default_rng(step)
        return {x: rng.standard_normal((12, 6)), y: rng.integers(0, 4, 12)}

    return Net(feeds, loss, adam(loss))


def recomputing(at: At) -> Net:
    """Layers that the script computes again for their derivatives, with what they read of variables."""
    h = x = tf.placeholder(tf.float64, [None, 6])
    for i in range(4):
        with at(i / 4):
            w = tf.get_variable(f"w{i}", [6, 6], tf.float64)
            h = tf.recompute_grad(lambda h, w=w: tf.tanh(tf.tanh(2.0 * h) @ w))(h)
    with at(1):
        loss = tf.reduce_mean(tf.square(h - x))
    return Net(lambda step: {x: np.random.default_rng(step).standard_normal((12, 6))}, loss, adam(loss))


def counting(at: At) -> Net:
    """Steps that are counted in the forward pass, which reads the number."""
    x = tf.placeholder(tf.float64, [None, 6])
    with at(0):
        steps = tf.get_variable("steps", [], tf.float64, tf.zeros_initializer(), trainable=False)
        with tf.control_dependencies([steps.assign_add(1.0)]):
            h = tf.layers.dense(x, 8, tf.nn.relu) * steps.read_value()
    with at(1):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(h, 6) - x))
    return Net(lambda step: {x: np.random.default_rng(step).standard_normal((12, 6))}, loss, adam(loss))


def branching(at: At) -> Net:
    """A branch that draws, and two that read variables which are written afterwards."""
    x, is_training = tf.placeholder(tf.float64, [None, 6]), tf.placeholder_with_default(True, [])

    def variable(name: str) -> Any:
        return tf.get_variable(name, [], tf.float64, tf.ones_initializer(), trainable=False)

    with at(0):
        scales = [variable("first"), variable("last")]
        h = tf.layers.dense(x, 8, tf.nn.tanh)
        h = tf.cond(is_training, lambda: tf.nn.dropout(h, 0.5, seed=3), lambda: h)
        for scale in scales:
            h = tf.tanh(tf.cond(is_training, lambda h=h, v=scale: h * v.read_value(), lambda h=h: h))
    with at(1):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(h, 4)))
    train = tf.group(adam(loss), scales[0].assign_add(1.0))
    with tf.control_dependencies([train]):
        train = scales[1].assign_add(1.0)
    return Net(lambda step: {x: np.random.default_rng(step).standard_normal((12, 6))}, loss, train)


def scaling(at: At) -> Net:
    """A loss that is scaled by hand: one branch updates all variables, or none if a gradient is infinite, as
    those of the second step are, and the scale of either.
    """
    x = tf.placeholder(tf.float64, [None, 6])
    with at(0):
        h = tf.layers.dense(x, 8, tf.nn.relu)
    with at(1):
        scale = tf.get_variable("scale", [], tf.float64, tf.constant_initializer(8.0), trainable=False)
        loss = tf.reduce_mean(tf.square(tf.layers.dense(h, 6) - x))
    step = tf.train.get_or_create_global_step()
    optimizer = tf.train.AdamOptimizer(0.05)
    pairs = [(g / scale, v) for g, v in optimizer.compute_gradients(loss * scale)]
    is_good = tf.reduce_all([tf.reduce_all(tf.is_finite(g)) for g, _ in pairs])

    def update() -> Any:
        with tf.control_dependencies([optimizer.apply_gradients(pairs, step)]):
            return tf.group(scale.assign(scale + 1.0))

    train = tf.cond(is_good, update, lambda: tf.group(scale.assign(scale / 2)))

    def feeds(step: int) -> Feeds:
        rows = np.random.default_rng(step).standard_normal((12, 6))
        return {x: np.where(rows == rows[3, 2], np.inf, rows) if step == 1 else rows}

    return Net(feeds, loss, train)


def accumulating(at: At) -> Net:
    """Gradients of two steps, which are added up in variables."""
    x = tf.placeholder(tf.float64, [None, 6])
    with at(0):
        h = tf.layers.dense(x, 8, tf.nn.tanh)
    with at(1):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(h, 6) - x))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)
    sums = [tf.Variable(tf.zeros_like(v), trainable=False) for _, v in pairs]
    count = tf.get_variable("count", [], tf.int64, tf.zeros_initializer(), trainable=False)
    added = [s.assign_add(g) for s, (g, _) in zip(sums, pairs, strict=True)]
    with tf.control_dependencies([*added, count.assign_add(1)]):
        is_due = tf.equal(count.read_value() % 2, 0)

    def update() -> Any:
        values = [(s.read_value(), v) for s, (_, v) in zip(sums, pairs, strict=True)]
        with tf.control_dependencies([optimizer.apply_gradients(values)]):
            return tf.group(*[s.assign(tf.zeros_like(s)) for s in sums])

    train = tf.cond(is_due, update, tf.no_op)
    return Net(lambda step: {x: np.random.default_rng(step).standard_normal((12, 6))}, loss, train)


def checking(at: At) -> Net:
    """Assertions on a layer, rows that are counted and a print, for which later layers wait, and a variable
    that is read when all variables are updated.
    """
    x = tf.placeholder(tf.float64, [None, 6])
    with at(0):
        rows = tf.get_variable("rows", [], tf.float64, tf.zeros_initializer(), trainable=False)
        h = tf.layers.dense(x, 8, tf.nn.tanh)
        with tf.control_dependencies([tf.assert_less(h, tf.constant(2.0, tf.float64))]):
            h = tf.Print(tf.layers.dense(h, 8), [tf.reduce_sum(h)], first_n=0)
        count = rows.assign_add(tf.reduce_sum(tf.ones_like(h[:, 0])))
    with at(1), tf.control_dependencies([count]):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(h, 6) - x))
    last = tf.get_variable("last", [8, 6], tf.float64, trainable=False)
    with tf.control_dependencies([adam(loss)]):
        updated = next(v for v in tf.trainable_variables() if v.op.name == "dense_2/kernel")
        train = last.assign(updated.read_value())
    return Net(lambda step: {x: np.random.default_rng(step).standard_normal((12, 6))}, loss, train)


def looping(at: At) -> Net:
    """A function mapped over the rows of a weight, and a recurrence over the columns of each row of the
    batch.
    """
    x = tf.placeholder(tf.float64, [None, 6])
    with at(0):
        w = tf.get_variable("w", [8, 6], tf.float64)
        rows = tf.map_fn(lambda row: tf.tanh(row) * tf.reduce_sum(row), w)
        h = tf.nn.dropout(tf.matmul(x, rows, transpose_b=True), 0.8, seed=3)
    with at(0.5):
        scale = tf.get_variable("scale", [8], tf.float64, tf.ones_initializer())
        columns = tf.scan(lambda a, c: tf.tanh(0.5 * a + c), tf.transpose(h * scale))
    with at(1):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.transpose(columns), 6) - x))
    return Net(lambda step: {x: np.random.default_rng(step).standard_normal((12, 6))}, loss, adam(loss))


def averaging(at: At) -> Net:
    """Moving averages of all variables and of the loss, metrics of the whole batch, and a global step."""
    x, y = tf.placeholder(tf.float64, [None, 6]), tf.placeholder(tf.int32, [None])
    with at(0):
        h = tf.layers.dense(x, 8, tf.nn.relu)
    with at(1):
        logits = tf.layers.dense(h, 4)
        loss = cross_entropy(logits, y)
        metrics = [tf.metrics.mean(loss), tf.metrics.accuracy(y, tf.argmax(logits, 1)), tf.metrics.mean(h)]
    for variable in tf.get_collection(tf.GraphKeys.METRIC_VARIABLES):  # local ones, which are compared, too
        tf.add_to_collection(tf.GraphKeys.GLOBAL_VARIABLES, variable)
    step = tf.train.get_or_create_global_step()
    average = tf.train.ExponentialMovingAverage(0.9, num_updates=step)
    with tf.control_dependencies([tf.train.AdamOptimizer(0.05).minimize(loss, global_step=step)]):
        train = average.apply([*tf.trainable_variables(), loss])

    def feeds(step: int) -> Feeds:
        rng = np.random.default_rng(step)
        return {x: rng.standard_normal((12, 6)), y: rng.integers(0, 4, 12)}

    return Net(feeds, loss, tf.group(train, *[update for _, update in metrics]))


def clipped(loss: Any) -> Any:
    """An update with gradients clipped by the norm of all."""
    optimizer = tf.train.AdamOptimizer(0.05)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    return optimizer.apply_gradients(zip(tf.clip_by_global_norm(gradients, 0.1)[0], variables, strict=True))


# --- all schedules

GRID_NETS: dict[str, Callable[[At], Net]] = {
    "gpt": functools.partial(gpt, blocks=8),
    "skip connections": skipping,
    "tied embeddings": tied,
}
GRID = [*itertools.product(GRID_NETS, TABLE, (2, 4), (4, 8))]
"""Nets, schedules, stages' devices, and micro-batches."""
