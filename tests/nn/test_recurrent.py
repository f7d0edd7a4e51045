"""Recurrent networks: the loop against the unrolled graph and NumPy, lengths, gradients, bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError
from tests.nn import numpy_cells

HERE = r"\S*test_recurrent\.py:\d+"

cells: Any = tf.nn.rnn_cell
BATCH, TIME, DEPTH, UNITS = 3, 5, 4, 2
X = np.random.default_rng(1).normal(size=(BATCH, TIME, DEPTH))
LENGTHS = np.array([3, 0, 5])

STEPS: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "basic_rnn_cell": (lambda: cells.BasicRNNCell(UNITS), numpy_cells.basic_rnn),
    "gru_cell": (lambda: cells.GRUCell(UNITS), numpy_cells.gru),
    "basic_lstm_cell": (lambda: cells.BasicLSTMCell(UNITS), numpy_cells.lstm),
}


def unrolled_in_numpy(step: Any, x: Any, lengths: Any, state: Any, weights: Any) -> Any:
    """Row by row, each for as many steps as it is long."""
    outputs = np.zeros((BATCH, TIME, UNITS))
    finals = []
    for row, length in enumerate(lengths):
        own = tf.nest.map_structure(lambda part, row=row: part[row : row + 1], state)
        for time in range(length):
            output, own = step(x[row : row + 1, time], own, weights)
            outputs[row, time] = output
        finals.append(own)
    return outputs, tf.nest.map_structure(lambda *rows: np.concatenate(rows), *finals)


def session_with_random_weights(seed: int = 2) -> tuple[Any, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    session = tf.Session()
    values = {v: rng.normal(size=v.shape.as_list()) for v in tf.global_variables()}
    for variable, value in values.items():
        variable.load(value, session)
    return session, {v.op.name: value for v, value in values.items()}


def zero_state(cell: Any) -> Any:
    return tf.nest.map_structure(lambda size: np.zeros((BATCH, size)), cell.state_size)


def leaves_close(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    flat, wanted = tf.nest.flatten(found), tf.nest.flatten(expected)
    for one, other in zip(flat, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


# --- values


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("lengths", [None, LENGTHS, [1, 2, 1], [0, 0, 0]])
def test_a_loop_is_the_cell_step_by_step(name: str, lengths: Any) -> None:
    make, step = STEPS[name]
    cell = make()
    fetches = tf.nn.dynamic_rnn(cell, tf.constant(X), lengths, dtype=tf.float64)
    session, values = session_with_random_weights()
    weights = {key.removeprefix(f"rnn/{name}/"): value for key, value in values.items()}
    with session:
        found = session.run(fetches)
    counts = [TIME] * BATCH if lengths is None else lengths
    leaves_close(found, unrolled_in_numpy(step, X, counts, zero_state(cell), weights))
    assert fetches[0].shape.as_list() == [BATCH, TIME, UNITS]


@pytest.mark.parametrize("name", STEPS)
def test_unrolled_is_the_cell_step_by_step(name: str) -> None:
    make, step = STEPS[name]
    cell = make()
    inputs = tf.unstack(tf.constant(X), axis=1)
    outputs, state = tf.nn.static_rnn(cell, inputs, dtype=tf.float64, sequence_length=LENGTHS)
    session, values = session_with_random_weights()
    weights = {key.removeprefix(f"rnn/{name}/"): value for key, value in values.items()}
    with session:
        found = session.run((tf.stack(outputs, 1), state))
    leaves_close(found, unrolled_in_numpy(step, X, LENGTHS, zero_state(cell), weights))


def test_sizes_may_be_known_only_when_it_runs() -> None:
    x = tf.placeholder(tf.float64, [None, None, DEPTH])
    lengths = tf.placeholder(tf.int64, [None])
    cell = cells.BasicLSTMCell(UNITS)
    outputs, state = tf.nn.dynamic_rnn(cell, x, lengths, dtype=tf.float64)
    assert outputs.shape.as_list() == [None, None, UNITS]
    assert state.h.shape.as_list() == [None, UNITS]
    session, values = session_with_random_weights()
    weights = {key.removeprefix("rnn/basic_lstm_cell/"): value for key, value in values.items()}
    with session:
        for time in (5, 3):
            counts = np.minimum(LENGTHS, time)
            found = session.run((outputs, state), {x: X[:, :time], lengths: counts})
            expected, final = unrolled_in_numpy(numpy_cells.lstm, X, counts, zero_state(cell), weights)
            leaves_close(found, (expected[:, :time], final))


def test_time_may_come_first() -> None:
    cell = cells.GRUCell(UNITS)
    plain = tf.nn.dynamic_rnn(cell, tf.constant(X), LENGTHS, dtype=tf.float64)
    major = tf.nn.dynamic_rnn(
        cell, tf.constant(X.transpose(1, 0, 2)), LENGTHS, dtype=tf.float64, time_major=True, scope="again"
    )
    session, _ = session_with_random_weights()
    with session:
        (a, last), (b, also) = session.run((plain, major))
    np.testing.assert_array_equal(a, b.transpose(1, 0, 2))
    np.testing.assert_array_equal(last, also)


def test_an_initial_state_is_where_the_cell_begins() -> None:
    cell = cells.BasicLSTMCell(UNITS)
    state = cells.LSTMStateTuple(*np.random.default_rng(3).normal(size=(2, BATCH, UNITS)))
    _, middle = tf.nn.dynamic_rnn(cell, tf.constant(X[:, :2]), initial_state=state)
    halves = tf.nn.dynamic_rnn(cell, tf.constant(X[:, 2:]), initial_state=middle)
    whole = tf.nn.dynamic_rnn(cell, tf.constant(X), initial_state=state)
    session, _ = session_with_random_weights()
    with session:
        (tail, end), (outputs, also) = session.run((halves, whole))
    leaves_close((tail, end), (outputs[:, 2:], also))
    assert isinstance(also, cells.LSTMStateTuple)


def test_steps_past_the_longest_sequence_do_not_run() -> None:
    calls: list[int] = []

    class Counting(cells.BasicRNNCell):  # type: ignore[misc,name-defined]
        def call(self, inputs: Any, state: Any) -> Any:
            counted = tf.py_func(lambda x: calls.append(1) or x, [inputs], tf.float64)
            counted.set_shape(inputs.shape)
            return super().call(counted, state)

    outputs, _ = tf.nn.dynamic_rnn(Counting(UNITS), tf.constant(X), [2, 1, 0], dtype=tf.float64)
    unrolled, _ = tf.nn.static_rnn(
        Counting(UNITS), tf.unstack(X, axis=1), dtype=tf.float64, sequence_length=[2, 1, 0], scope="unrolled"
    )
    session, _ = session_with_random_weights()
    with session:
        for fetch in (outputs, unrolled):
            calls.clear()
            session.run(fetch)
            assert len(calls) == 2


def test_a_stack_with_dropout_and_residuals_runs_in_a_loop() -> None:
    layers = [
        cells.DropoutWrapper(cells.ResidualWrapper(cells.GRUCell(DEPTH)), output_keep_prob=0.5, seed=1),
        cells.LSTMCell(3, use_peepholes=True, num_proj=UNITS),
    ]
    outputs, state = tf.nn.dynamic_rnn(cells.MultiRNNCell(layers), tf.constant(X), LENGTHS, dtype=tf.float64)
    assert outputs.shape.as_list() == [BATCH, TIME, UNITS]
    prefix = "rnn/multi_rnn_cell"
    assert [v.op.name for v in tf.global_variables()][::5] == [
        f"{prefix}/cell_0/gru_cell/gates/kernel",
        f"{prefix}/cell_1/lstm_cell/bias",
    ]
    session, _ = session_with_random_weights()
    with session:
        values, final = session.run((outputs, state))
    assert (values[1] == 0).all()
    assert (values[0, 3:] == 0).all()
    np.testing.assert_array_equal(values[2, -1], final[1].h[2])


@pytest.mark.parametrize("variational", [False, True])
def test_dropout_draws_anew_in_each_time_step_unless_it_is_variational(variational: bool) -> None:
    cell = cells.DropoutWrapper(
        Identity(20), output_keep_prob=0.5, variational_recurrent=variational, dtype=tf.float32, seed=1
    )
    outputs, _ = tf.nn.dynamic_rnn(cell, tf.ones([1, TIME, 20]), dtype=tf.float32)
    with tf.Session() as session:
        first, second = session.run(outputs)[0], session.run(outputs)[0]
    assert set(np.unique(first)) == {0, 2}
    assert len(np.unique(first, axis=0)) == (1 if variational else TIME)
    assert (first != second).any()


class Identity(cells.RNNCell):  # type: ignore[misc,name-defined]
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    state_size = output_size = property(lambda self: self.size)

    def call(self, inputs: Any, state: Any) -> Any:
        return inputs, state


def test_users_cells_make_their_variables_in_the_scope_of_the_network() -> None:
    class Own(Identity):
        def call(self, inputs: Any, state: Any) -> Any:
            return inputs * tf.get_variable("scale", [self.size], regularizer=tf.nn.l2_loss), state

    class Older(Own):
        def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
            with tf.variable_scope(scope or "older"):
                return self.call(inputs, state)

    cell = Own(DEPTH)
    for each in (cell, Older(DEPTH)):
        tf.nn.dynamic_rnn(each, tf.zeros([BATCH, TIME, DEPTH]), dtype=tf.float32)
    assert [v.op.name for v in tf.global_variables()] == ["rnn/own/scale", "rnn/older/scale"]
    assert [v.op.name for v in cell.trainable_weights] == ["rnn/own/scale"]
    session, values = session_with_random_weights()
    with session:
        losses = session.run(tf.losses.get_regularization_losses())
    np.testing.assert_allclose(losses, [np.sum(v**2) / 2 for v in values.values()], rtol=1e-5)


# --- structures


class Pair(cells.RNNCell):  # type: ignore[misc,name-defined]
    """Two inputs, outputs of two structures, and a state in a dict."""

    @property
    def state_size(self) -> Any:
        return {"sum": DEPTH, "count": 1}

    @property
    def output_size(self) -> Any:
        return (DEPTH, tf.TensorShape([2, 2]))

    def call(self, inputs: Any, state: Any) -> Any:
        a, b = inputs
        total = state["sum"] + a * b
        square = tf.reshape(total[:, :4], [-1, 2, 2])
        return (total, square), {"sum": total, "count": state["count"] + 1}


@pytest.mark.parametrize("unrolled", [False, True])
def test_inputs_outputs_and_states_may_be_structures(unrolled: bool) -> None:
    a, b = tf.constant(X), tf.constant(2 * X)
    if unrolled:
        steps = list(zip(tf.unstack(a, axis=1), tf.unstack(b, axis=1), strict=True))
        pairs, state = tf.nn.static_rnn(Pair(), steps, dtype=tf.float64, sequence_length=LENGTHS)
        outputs: Any = tuple(tf.stack(column, 1) for column in zip(*pairs, strict=True))
    else:
        outputs, state = tf.nn.dynamic_rnn(Pair(), (a, b), LENGTHS, dtype=tf.float64)
    with tf.Session() as session:
        (totals, squares), final = session.run((outputs, state))
    mask = np.arange(TIME)[None, :, None] < LENGTHS[:, None, None]
    expected = np.cumsum(2 * X * X, 1) * mask
    np.testing.assert_allclose(totals, expected)
    np.testing.assert_allclose(squares, expected.reshape(BATCH, TIME, 2, 2))
    assert final["count"].ravel().tolist() == LENGTHS.tolist()
    np.testing.assert_allclose(final["sum"], (2 * X * X * mask).sum(1))


# --- both directions


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("time_major", [False, True])
def test_bidirectional_reads_each_sequence_from_both_ends(lengths: Any, time_major: bool) -> None:
    order = (1, 0, 2) if time_major else (0, 1, 2)
    (fw, bw), states = tf.nn.bidirectional_dynamic_rnn(
        cells.GRUCell(UNITS), cells.BasicLSTMCell(UNITS), tf.constant(X.transpose(order)), lengths,
        dtype=tf.float64, time_major=time_major,
    )  # fmt: skip
    session, values = session_with_random_weights()
    assert {name.rpartition("_cell/")[0] for name in values} == {
        "bidirectional_rnn/fw/gru",
        "bidirectional_rnn/bw/basic_lstm",
    }
    with session:
        ahead, back, (state_fw, state_bw) = session.run((fw, bw, states))
    counts = [TIME] * BATCH if lengths is None else lengths

    def flipped(x: Any) -> Any:
        return np.stack([np.r_[row[:n][::-1], row[n:]] for row, n in zip(x, counts, strict=True)])

    def weights(prefix: str) -> dict[str, Any]:
        return {k.removeprefix(f"bidirectional_rnn/{prefix}/"): v for k, v in values.items() if prefix in k}

    zeros = np.zeros((BATCH, UNITS))
    expected, final = unrolled_in_numpy(numpy_cells.gru, X, counts, zeros, weights("fw/gru_cell"))
    leaves_close((ahead.transpose(order), state_fw), (expected, final))
    turned, final = unrolled_in_numpy(
        numpy_cells.lstm, flipped(X), counts, (zeros, zeros), weights("bw/basic_lstm_cell")
    )
    leaves_close((back.transpose(order), state_bw), (flipped(turned), final))


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_unrolled_in_both_directions_is_the_loop_in_both(lengths: Any) -> None:
    forward, backward = cells.GRUCell(UNITS), cells.GRUCell(UNITS)
    both, (fw, bw) = tf.nn.bidirectional_dynamic_rnn(
        forward, backward, tf.constant(X), lengths, dtype=tf.float64
    )
    outputs, also_fw, also_bw = tf.nn.static_bidirectional_rnn(
        forward, backward, tf.unstack(X, axis=1), dtype=tf.float64, sequence_length=lengths, scope="unrolled"
    )
    session, _ = session_with_random_weights()
    with session:
        loop, unrolled = session.run(((tf.concat(both, 2), fw, bw), (tf.stack(outputs, 1), also_fw, also_bw)))
    leaves_close(unrolled, loop)


@pytest.mark.parametrize("unrolled", [False, True])
def test_layers_of_both_directions_stack(unrolled: bool) -> None:
    def make() -> list[Any]:
        return [cells.GRUCell(UNITS), cells.GRUCell(3)]

    if unrolled:
        outputs, fw, bw = tf.contrib.rnn.stack_bidirectional_rnn(
            make(), make(), tf.unstack(X, axis=1), dtype=tf.float64
        )
        outputs = tf.stack(outputs, 1)
    else:
        outputs, fw, bw = tf.contrib.rnn.stack_bidirectional_dynamic_rnn(
            make(), make(), tf.constant(X), dtype=tf.float64, sequence_length=[TIME] * BATCH
        )
    assert outputs.shape.as_list() == [BATCH, TIME, 6]
    first = "stack_bidirectional_rnn/cell_0/bidirectional_rnn/fw/gru_cell/gates/kernel"
    assert tf.global_variables()[0].op.name == first
    session, _ = session_with_random_weights()
    with session:
        values, forward, backward = session.run((outputs, fw, bw))
    np.testing.assert_array_equal(values[:, -1, :3], forward[1])
    np.testing.assert_array_equal(values[:, 0, 3:], backward[1])


# --- raw_rnn


def test_raw_rnn_can_be_a_dynamic_rnn() -> None:
    cell = cells.BasicLSTMCell(UNITS)
    inputs = tf.TensorArray(tf.float64, TIME).unstack(tf.constant(X.transpose(1, 0, 2)))

    def loop_fn(time: Any, output: Any, state: Any, loop_state: Any) -> Any:
        finished = time >= tf.constant(LENGTHS, tf.int32)
        done = tf.reduce_all(finished)
        following = tf.cond(done, lambda: tf.zeros([BATCH, DEPTH], tf.float64), lambda: inputs.read(time))
        if output is None:
            state = cell.zero_state(BATCH, tf.float64)
        return finished, following, state, output, None

    emitted, state, loop_state = tf.nn.raw_rnn(cell, loop_fn)
    assert loop_state is None
    loop = tf.nn.dynamic_rnn(cell, tf.constant(X), LENGTHS, dtype=tf.float64, scope="again")
    session, _ = session_with_random_weights()
    with session:
        raw, expected = session.run(((emitted.stack(), state), loop))
    leaves_close(raw, (expected[0].transpose(1, 0, 2), expected[1]))


def test_raw_rnn_can_feed_outputs_back_emit_structures_and_carry_a_loop_state() -> None:
    cell = Identity(1)

    def loop_fn(time: Any, output: Any, state: Any, loop_state: Any) -> Any:
        if output is None:
            row = {"value": tf.zeros([1], tf.int32), "time": tf.zeros([], tf.int32)}
            return [False, False], tf.constant([[1], [10]]), tf.zeros([2, 1], tf.int32), row, 7
        emit = {"value": output, "time": tf.fill([2], time)}
        return time >= tf.constant([2, 4]), output * 2, state + 1, emit, loop_state + 1

    emitted, state, loop_state = tf.nn.raw_rnn(cell, loop_fn)
    arrays = {key: array.stack() for key, array in emitted.items()}
    with tf.Session() as session:
        found, final, count = session.run((arrays, state, loop_state))
    assert found["value"][:, :, 0].tolist() == [[1, 10], [2, 20], [0, 40], [0, 80]]
    assert found["time"].tolist() == [[1, 1], [2, 2], [0, 3], [0, 4]]
    assert final.tolist() == [[2], [4]]
    assert count == 11


# --- gradients


def loss_of(outputs: Any, state: Any) -> Any:
    """A scalar in which every output and state counts differently."""
    parts = [outputs, *tf.nest.flatten(state)]
    total = tf.constant(0.0, tf.float64)
    for part in parts:
        shape = part.shape.as_list()
        total += tf.reduce_sum(tf.square(part) * np.linspace(0.5, 1.5, int(np.prod(shape))).reshape(shape))
    return total


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_gradients_are_those_of_the_unrolled_graph_and_of_finite_differences(name: str, lengths: Any) -> None:
    cell = STEPS[name][0]()
    x = tf.placeholder(tf.float64, [BATCH, TIME, DEPTH])
    loop = loss_of(*tf.nn.dynamic_rnn(cell, x, lengths, dtype=tf.float64))
    steps, final = tf.nn.static_rnn(
        cell, tf.unstack(x, axis=1), dtype=tf.float64, sequence_length=lengths, scope="unrolled"
    )
    unrolled = loss_of(tf.stack(steps, 1), final)
    variables = tf.trainable_variables()
    session, _ = session_with_random_weights()
    with session:
        found, expected = session.run(
            (tf.gradients(loop, [x, *variables]), tf.gradients(unrolled, [x, *variables])), {x: X}
        )
        leaves_close(found, expected)
        direction = np.random.default_rng(9).normal(size=X.shape)
        step = 1e-6
        up, down = (session.run(loop, {x: X + sign * step * direction}) for sign in (1, -1))
        np.testing.assert_allclose((up - down) / (2 * step), np.sum(found[0] * direction), rtol=1e-6)
        for variable, gradient in zip(variables, found[1:], strict=True):
            value = session.run(variable)
            direction = np.random.default_rng(8).normal(size=value.shape)
            losses = []
            for sign in (1, -1):
                variable.load(value + sign * step * direction, session)
                losses.append(session.run(loop, {x: X}))
            variable.load(value, session)
            slope = (losses[0] - losses[1]) / (2 * step)
            np.testing.assert_allclose(slope, np.sum(gradient * direction), rtol=1e-6)


def test_second_derivatives_are_those_of_the_unrolled_graph() -> None:
    cell = cells.GRUCell(UNITS)
    loop = loss_of(*tf.nn.dynamic_rnn(cell, tf.constant(X), LENGTHS, dtype=tf.float64))
    steps, final = tf.nn.static_rnn(
        cell, tf.unstack(X, axis=1), dtype=tf.float64, sequence_length=LENGTHS, scope="unrolled"
    )
    unrolled = loss_of(tf.stack(steps, 1), final)
    kernel = tf.trainable_variables()[0]

    def second(loss: Any) -> Any:
        (first,) = tf.gradients(loss, kernel)
        return tf.gradients(tf.reduce_sum(tf.square(first)), kernel)[0]

    session, _ = session_with_random_weights()
    with session:
        found, expected = session.run((second(loop), second(unrolled)))
    leaves_close(found, expected, 1e-8)


def test_a_loop_learns() -> None:
    """The sum of a sequence, of whatever length."""
    rng = np.random.default_rng(4)
    x, lengths = tf.placeholder(tf.float32, [None, None, 1]), tf.placeholder(tf.int32, [None])
    _, state = tf.nn.dynamic_rnn(cells.BasicLSTMCell(8), x, lengths, dtype=tf.float32)
    predicted = tf.layers.dense(state.h, 1)
    target = tf.placeholder(tf.float32, [None, 1])
    loss = tf.reduce_mean(tf.square(predicted - target))
    tf.set_random_seed(1)
    train = tf.train.AdamOptimizer(0.02).minimize(loss)
    losses = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(150):
            longest = rng.integers(2, 7)
            values = rng.normal(size=(16, longest, 1)) * 0.5
            counts = rng.integers(1, longest + 1, 16)
            mask = np.arange(longest)[None, :, None] < counts[:, None, None]
            feed = {x: values, lengths: counts, target: (values * mask).sum(1)}
            losses.append(session.run([loss, train], feed)[0])
    assert np.mean(losses[-10:]) < 0.3 * np.mean(losses[:10])


# --- bad input


class Forgetful(Identity):
    def call(self, inputs: Any, state: Any) -> Any:
        return inputs, state[0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda c: tf.nn.dynamic_rnn(c, X), "dynamic_rnn: expected an initial_state or a dtype; got neither"),
        (
            lambda c: tf.nn.dynamic_rnn(c, X[0], dtype=tf.float64),
            r"dynamic_rnn: expected inputs \[batch, time, depth\] of known depth",
        ),
        (
            lambda c: tf.nn.dynamic_rnn(c, tf.placeholder(tf.float64, [1, 2, None]), dtype=tf.float64),
            rf"^\({HERE}\): dynamic_rnn: expected inputs .* of known depth",
        ),
        (
            lambda c: tf.nn.dynamic_rnn(c, X, [[1, 2, 3]], dtype=tf.float64),
            "expected sequence_length to be a vector, one length per row of 3; got shape",
        ),
        (
            lambda c: tf.nn.dynamic_rnn(c, X, [1, 2], dtype=tf.float64),
            "expected sequence_length to be a vector",
        ),
        (
            lambda c: tf.nn.dynamic_rnn(c, (X, X[:, :2]), dtype=tf.float64),
            rf"^\({HERE}\): dynamic_rnn: expected inputs of equal time and batch",
        ),
        (
            lambda c: tf.nn.dynamic_rnn(Forgetful(DEPTH), X, initial_state=(X[:, 0], X[:, 0])),
            "recurrent network: expected a new state like the old one",
        ),
        (lambda c: tf.nn.static_rnn(c, []), "static_rnn: expected at least one time step; got none"),
        (lambda c: tf.nn.static_rnn(c, [X[:, 0]]), "static_rnn: expected an initial_state or a dtype"),
    ],
)
def test_bad_input_is_said_with_what_was_expected(build: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        build(cells.GRUCell(UNITS))


def test_what_is_no_cell_list_or_function_is_a_type_error() -> None:
    with pytest.raises(DTypeError, match=rf"^\({HERE}\): dynamic_rnn: expected an RNNCell; got 3"):
        tf.nn.dynamic_rnn(3, X)
    with pytest.raises(DTypeError, match="static_rnn: expected a list of time steps"):
        tf.nn.static_rnn(cells.GRUCell(2), tf.constant(X))
    with pytest.raises(DTypeError, match=rf"^\({HERE}\): raw_rnn: expected loop_fn to be callable; got 3"):
        tf.nn.raw_rnn(cells.GRUCell(2), 3)


def test_lengths_that_do_not_fit_the_rows_fail_the_step() -> None:
    x, lengths = tf.placeholder(tf.float64, [None, None, DEPTH]), tf.placeholder(tf.int32, [None])
    outputs, _ = tf.nn.dynamic_rnn(cells.GRUCell(UNITS), x, lengths, dtype=tf.float64)
    session, _ = session_with_random_weights()
    with session, pytest.raises(InvalidArgumentError, match="expected two compatible shapes"):
        session.run(outputs, {x: X, lengths: [1]})


def test_a_second_network_in_a_scope_needs_reuse() -> None:
    tf.nn.dynamic_rnn(cells.GRUCell(UNITS), X, dtype=tf.float64)
    with pytest.raises(
        InvalidArgumentError, match="variable 'rnn/gru_cell/gates/kernel': expected a new name"
    ):
        tf.nn.dynamic_rnn(cells.GRUCell(UNITS), X, dtype=tf.float64)
    with tf.variable_scope("", reuse=True):
        tf.nn.dynamic_rnn(cells.GRUCell(UNITS), X, dtype=tf.float64)
    assert len(tf.global_variables()) == 4
