"""Cells: values against NumPy, TensorFlow's names of variables, sharing, users' own cells, wrappers."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from tests.nn import numpy_cells

RNG = np.random.default_rng(7)
cells: Any = tf.nn.rnn_cell
contrib: Any = tf.contrib.rnn


def names() -> list[str]:
    return [v.op.name for v in tf.global_variables()]


def run_with_random_weights(fetches: Any, scope: str, feed: Any = None) -> tuple[Any, dict[str, Any]]:
    """The values, and the variables' by their names inside ``scope``."""
    values = {v: RNG.normal(size=v.shape.as_list()) * 0.5 for v in tf.global_variables()}
    with tf.Session() as session:
        for variable, value in values.items():
            variable.load(value, session)
        found = session.run(fetches, feed)
    return found, {v.op.name.removeprefix(f"{scope}/"): value for v, value in values.items()}


KINDS: dict[str, tuple[Any, Any]] = {
    "basic_rnn_cell": (lambda **k: cells.BasicRNNCell(4, **k), numpy_cells.basic_rnn),
    "gru_cell": (lambda **k: cells.GRUCell(4, **k), numpy_cells.gru),
    "basic_lstm_cell": (
        lambda **k: cells.BasicLSTMCell(4, forget_bias=0.3, **k),
        partial(numpy_cells.lstm, forget_bias=0.3),
    ),
    "lstm_cell": (lambda **k: cells.LSTMCell(4, **k), numpy_cells.lstm),
    "full_lstm": (
        lambda **k: cells.LSTMCell(4, True, 0.2, num_proj=2, proj_clip=0.25, name="full_lstm", **k),
        partial(numpy_cells.full_lstm, cell_clip=0.2, proj_clip=0.25),
    ),
    "layer_norm_basic_lstm_cell": (
        lambda **k: contrib.LayerNormBasicLSTMCell(4),
        numpy_cells.layer_norm_lstm,
    ),
}


@pytest.mark.parametrize("scope", KINDS)
def test_a_step_is_what_the_equations_say(scope: str) -> None:
    make, reference = KINDS[scope]
    cell = make(dtype=tf.float64)
    x = RNG.normal(size=(3, 5))
    state = tf.nest.map_structure(lambda size: RNG.normal(size=(3, size)), cell.state_size)
    (output, new_state), weights = run_with_random_weights(cell(tf.constant(x), state), scope)
    expected, expected_state = reference(x, state, weights)
    np.testing.assert_allclose(output, expected, rtol=1e-12)
    flat, expected_flat = tf.nest.flatten(new_state), tf.nest.flatten(expected_state)
    for found, wanted in zip(flat, expected_flat, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_variables_have_the_names_of_tensorflows_checkpoints() -> None:
    x = tf.zeros([2, 3])
    with tf.variable_scope("rnn"):
        for cell in (
            cells.BasicRNNCell(4),
            cells.GRUCell(4),
            cells.BasicLSTMCell(4),
            cells.LSTMCell(4, use_peepholes=True, num_proj=2),
            cells.MultiRNNCell([cells.BasicLSTMCell(4), cells.GRUCell(2)]),
        ):
            cell(x, cell.zero_state(2, tf.float32))
            assert cell.weights == [v for v in tf.global_variables() if v in cell.weights]
            assert cell.trainable_weights == cell.weights
    assert names() == [
        "rnn/basic_rnn_cell/kernel",
        "rnn/basic_rnn_cell/bias",
        "rnn/gru_cell/gates/kernel",
        "rnn/gru_cell/gates/bias",
        "rnn/gru_cell/candidate/kernel",
        "rnn/gru_cell/candidate/bias",
        "rnn/basic_lstm_cell/kernel",
        "rnn/basic_lstm_cell/bias",
        "rnn/lstm_cell/kernel",
        "rnn/lstm_cell/bias",
        "rnn/lstm_cell/w_f_diag",
        "rnn/lstm_cell/w_i_diag",
        "rnn/lstm_cell/w_o_diag",
        "rnn/lstm_cell/projection/kernel",
        "rnn/multi_rnn_cell/cell_0/basic_lstm_cell/kernel",
        "rnn/multi_rnn_cell/cell_0/basic_lstm_cell/bias",
        "rnn/multi_rnn_cell/cell_1/gru_cell/gates/kernel",
        "rnn/multi_rnn_cell/cell_1/gru_cell/gates/bias",
        "rnn/multi_rnn_cell/cell_1/gru_cell/candidate/kernel",
        "rnn/multi_rnn_cell/cell_1/gru_cell/candidate/bias",
    ]
    shapes = [v.shape.as_list() for v in tf.global_variables()]
    assert shapes[:6] == [[7, 4], [4], [7, 8], [8], [7, 4], [4]]
    assert shapes[8:14] == [[5, 16], [16], [4], [4], [4], [4, 2]]


def test_biases_begin_at_zero_and_those_of_the_gates_of_a_gru_at_one() -> None:
    for cell in (cells.BasicRNNCell(2), cells.GRUCell(2), cells.BasicLSTMCell(2)):
        cell(tf.zeros([1, 2]), cell.zero_state(1, tf.float32))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        biases = {
            n: v for n, v in zip(names(), session.run(tf.global_variables()), strict=True) if "bias" in n
        }
    assert set(biases.pop("gru_cell/gates/bias")) == {1.0}
    assert not any(value.any() for value in biases.values())


# --- scopes and sharing


def test_a_cell_shares_its_variables_with_itself_wherever_it_is_called() -> None:
    cell = cells.GRUCell(3)
    state = cell.zero_state(2, tf.float32)
    with tf.variable_scope("a"):
        first, _ = cell(tf.ones([2, 4]), state)
    with tf.variable_scope("b"):
        second, _ = cell(tf.ones([2, 4]), state)
    assert len(names()) == 4
    assert all(name.startswith("a/gru_cell/") for name in names())
    (a, b), _ = run_with_random_weights([first, second], "a")
    np.testing.assert_array_equal(a, b)


def test_two_cells_have_their_own_variables_unless_the_scope_reuses_them() -> None:
    x, state = tf.zeros([2, 3]), tf.zeros([2, 3])
    cells.GRUCell(3)(x, state)
    cells.GRUCell(3)(x, state)
    assert [n for n in names() if n.endswith("gates/bias")] == [
        "gru_cell/gates/bias",
        "gru_cell_1/gates/bias",
    ]
    cells.GRUCell(3, reuse=True, name="gru_cell")(x, state)
    cells.GRUCell(3)(x, state, scope=tf.VariableScope(reuse=True, name="gru_cell"))
    assert len(names()) == 8
    with tf.variable_scope("gru_cell") as scope:
        pass
    with pytest.raises(InvalidArgumentError, match="'gru_cell/gates/kernel': expected a new name"):
        cells.GRUCell(3)(x, state, scope=scope)


def test_a_scope_given_to_the_call_is_where_the_variables_are() -> None:
    cells.BasicRNNCell(3)(tf.zeros([2, 3]), tf.zeros([2, 3]), scope="here")
    cells.MultiRNNCell([cells.BasicRNNCell(3)])(tf.zeros([2, 3]), (tf.zeros([2, 3]),), "there")
    assert [n for n in names() if "bias" in n] == ["here/bias", "there/cell_0/basic_rnn_cell/bias"]


class ByCall(cells.RNNCell):  # type: ignore[misc,name-defined]
    """As users write them: get_variable in call."""

    @property
    def state_size(self) -> int:
        return 3

    @property
    def output_size(self) -> int:
        return 3

    def call(self, inputs: Any, state: Any) -> Any:
        w = tf.get_variable("w", [inputs.shape[1].value + 3, 3])
        output = tf.tanh(tf.matmul(tf.concat([inputs, state], 1), w))
        return output, output


class ByBuild(ByCall):
    def build(self, input_shape: Any) -> None:
        self.w = self.add_variable("w", [input_shape[-1].value + 3, 3])

    def call(self, inputs: Any, state: Any) -> Any:
        output = tf.tanh(tf.matmul(tf.concat([inputs, state], 1), self.w))
        return output, output


class BySubclassCall(ByCall):
    """The oldest way: no constructor, and a __call__ that opens its own scope."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
        with tf.variable_scope(scope or type(self).__name__):
            return self.call(inputs, state)


@pytest.mark.parametrize(
    ("make", "scope"), [(ByCall, "by_call"), (ByBuild, "by_build"), (BySubclassCall, "BySubclassCall")]
)
def test_users_own_cells_work_and_share_one_variable(make: Any, scope: str) -> None:
    cell = make()
    x = RNG.normal(size=(2, 4)).astype(np.float32)
    outputs, state = tf.nn.static_rnn(cell, [tf.constant(x)] * 3, dtype=tf.float32)
    assert names() == [f"rnn/{scope}/w"]
    assert make is BySubclassCall or [v.op.name for v in cell.weights] == names()
    (found, last), w = run_with_random_weights([outputs, state], f"rnn/{scope}")
    h = np.zeros((2, 3))
    for output in found:
        h = np.tanh(np.concatenate([x, h], 1) @ w["w"])
        np.testing.assert_allclose(output, h, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(last, found[-1])


def test_a_cell_without_sizes_says_so() -> None:
    with pytest.raises(NotImplementedError, match="RNNCell: expected a state_size"):
        cells.RNNCell().zero_state(2, tf.float32)


# --- states


def test_zero_states_follow_the_structure_of_the_sizes() -> None:
    cell = cells.MultiRNNCell([cells.LSTMCell(4, num_proj=3), cells.GRUCell(2)])
    assert cell.state_size == ((4, 3), 2)
    assert cell.output_size == 2
    lstm_state, gru_state = cell.zero_state(5, tf.float64)
    assert isinstance(lstm_state, cells.LSTMStateTuple)
    assert [t.shape.as_list() for t in (*lstm_state, gru_state)] == [[5, 4], [5, 3], [5, 2]]
    assert lstm_state.dtype is tf.float64
    x = tf.placeholder(tf.float32, [None, 7])
    unknown = cells.GRUCell(2).get_initial_state(x)
    assert unknown.shape.as_list() == [None, 2]
    with tf.Session() as session:
        assert session.run(unknown, {x: np.ones((3, 7))}).tolist() == [[0, 0]] * 3
    with pytest.raises(InvalidArgumentError, match="expected inputs, or batch_size and dtype"):
        cells.GRUCell(2).get_initial_state(batch_size=3)


def test_the_number_of_rows_may_be_in_a_list() -> None:
    assert cells.BasicLSTMCell(3).zero_state([2], "float32").c.shape.as_list() == [2, 3]


def test_a_state_tuple_has_one_dtype() -> None:
    mixed = cells.LSTMStateTuple(tf.zeros([1]), tf.zeros([1], tf.float64))
    with pytest.raises(DTypeError, match="expected c and h of one dtype"):
        _ = mixed.dtype


@pytest.mark.parametrize("make", [cells.BasicLSTMCell, partial(cells.LSTMCell, num_proj=3)])
def test_states_in_one_tensor_are_those_of_tuples_side_by_side(make: Any) -> None:
    x = tf.constant(RNG.normal(size=(2, 5)))
    tupled, flat = make(4, name="a"), make(4, name="a", reuse=True, state_is_tuple=False)
    state = [RNG.normal(size=(2, size)) for size in tupled.state_size]
    assert flat.state_size == sum(tupled.state_size)
    a = tupled(x, cells.LSTMStateTuple(*state))
    b = flat(x, np.concatenate(state, 1))
    (found, expected), _ = run_with_random_weights([b, a], "a")
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], np.concatenate(expected[1], 1))


def test_a_stack_may_keep_its_state_in_one_tensor() -> None:
    stack = cells.MultiRNNCell([cells.GRUCell(2), cells.GRUCell(3)], state_is_tuple=False)
    output, state = stack(tf.ones([2, 4]), stack.zero_state(2, tf.float32))
    assert output.shape.as_list() == [2, 3]
    assert state.shape.as_list() == [2, stack.state_size] == [2, 5]
    with pytest.raises(InvalidArgumentError, match="one state tensor each, as state_is_tuple is False"):
        cells.MultiRNNCell([cells.LSTMCell(2)], state_is_tuple=False)


# --- wrappers


def test_wrappers_name_the_variables_as_the_bare_cell_does() -> None:
    cell = cells.DropoutWrapper(
        cells.ResidualWrapper(cells.DeviceWrapper(cells.GRUCell(3), "/cpu:0")), output_keep_prob=0.5
    )
    output, _ = cell(tf.ones([2, 3]), cell.zero_state(2, tf.float32))
    assert all(name.startswith("gru_cell/") for name in names())
    assert [v.op.name for v in cell.weights] == names()
    assert cell.state_size == cell.output_size == 3
    assert output.shape.as_list() == [2, 3]


def test_a_residual_is_added_to_the_outputs() -> None:
    cell = cells.GRUCell(3)
    x, state = tf.constant(RNG.normal(size=(2, 3))), tf.constant(RNG.normal(size=(2, 3)))
    plain = cell(x, state)
    added = cells.ResidualWrapper(cell)(x, state)
    product = cells.ResidualWrapper(cell, lambda i, o: i * o)(x, state)
    (p, a, q), _ = run_with_random_weights([plain, added, product], "gru_cell")
    with tf.Session() as session:
        value = session.run(x)
    np.testing.assert_allclose(a[0], p[0] + value)
    np.testing.assert_allclose(q[0], p[0] * value)
    np.testing.assert_array_equal(a[1], p[1])
    with pytest.raises(InvalidArgumentError, match="ResidualWrapper: expected inputs of the outputs' shape"):
        cells.ResidualWrapper(cells.GRUCell(4))(x, tf.zeros([2, 4], tf.float64))


def test_a_device_wrapper_puts_the_step_and_its_zeros_there() -> None:
    cell = cells.DeviceWrapper(cells.GRUCell(3), "/device:CPU:1")
    state = cell.zero_state(2, tf.float32)
    output, _ = cell(tf.ones([2, 3]), state)
    assert output.device.endswith("CPU:1")
    assert state.device.endswith("CPU:1")


class Passing(ByCall):
    """Outputs its inputs and keeps its state."""

    @property
    def state_size(self) -> Any:
        return cells.LSTMStateTuple(3, 3)

    def call(self, inputs: Any, state: Any) -> Any:
        return inputs, state


ONES = np.ones((2000, 3), np.float32)


def dropped(**options: Any) -> Any:
    cell = cells.DropoutWrapper(Passing(), seed=3, **options)
    with tf.Session() as session:
        return session.run(
            cell(tf.constant(ONES), cells.LSTMStateTuple(tf.constant(ONES), tf.constant(ONES)))
        )


@pytest.mark.parametrize("part", ["input", "output"])
def test_dropout_zeroes_a_share_and_scales_the_rest(part: str) -> None:
    output, state = dropped(**{f"{part}_keep_prob": 0.8})
    assert set(np.unique(output)) == {0, np.float32(1.25)}
    assert abs(output.mean() - 1) < 0.03
    assert all((one == 1).all() for one in state)


def test_state_dropout_spares_the_memory_of_an_lstm_unless_asked() -> None:
    output, (c, h) = dropped(state_keep_prob=0.5)
    assert (output == 1).all()
    assert (c == 1).all()
    assert set(np.unique(h)) == {0, 2}
    _, (c, h) = dropped(state_keep_prob=0.5, dropout_state_filter_visitor=lambda _: True)
    assert set(np.unique(c)) == set(np.unique(h)) == {0, 2}
    assert (c != h).any()
    _, (c, h) = dropped(state_keep_prob=0.5, dropout_state_filter_visitor=lambda _: False)
    assert (c == 1).all()
    assert (h == 1).all()


def test_the_keep_probability_may_be_a_tensor() -> None:
    keep = tf.placeholder_with_default(1.0, [])
    cell = cells.DropoutWrapper(Passing(), output_keep_prob=keep, seed=1)
    output, _ = cell(tf.constant(ONES), tf.constant(ONES))
    with tf.Session() as session:
        assert (session.run(output) == 1).all()
        assert set(np.unique(session.run(output, {keep: 0.5}))) == {0, 2}


def test_variational_dropout_has_one_mask_for_all_steps_and_rows_and_another_in_the_next_run() -> None:
    cell = cells.DropoutWrapper(
        Passing(), 0.5, 0.5, 0.5, variational_recurrent=True, input_size=3, dtype=tf.float32, seed=5
    )
    outputs, _ = tf.nn.static_rnn(cell, [tf.constant(ONES)] * 3, dtype=tf.float32)
    with tf.Session() as session:
        seen = set()
        for _ in range(20):
            values = np.stack(session.run(outputs))
            assert (values == values[:1, :1]).all()
            seen.add(tuple(values[0, 0]))
    assert len(seen) > 3
    assert set(np.unique(list(seen))) == {0, 4}


def test_dropout_refuses_what_it_cannot_do() -> None:
    cell = cells.GRUCell(3)
    with pytest.raises(InvalidArgumentError, match=r"expected output_keep_prob between 0 and 1; got 1\.5"):
        cells.DropoutWrapper(cell, output_keep_prob=1.5)
    with pytest.raises(InvalidArgumentError, match="expected a dtype with variational_recurrent"):
        cells.DropoutWrapper(cell, 0.5, variational_recurrent=True)
    with pytest.raises(InvalidArgumentError, match="expected an input_size"):
        cells.DropoutWrapper(cell, 0.5, variational_recurrent=True, dtype=tf.float32)
    with pytest.raises(DTypeError, match="expected an RNNCell; got 3, which has no output_size"):
        cells.DropoutWrapper(3)
    with pytest.raises(DTypeError, match="dropout_state_filter_visitor to be a function"):
        cells.DropoutWrapper(cell, dropout_state_filter_visitor=3)


# --- bad input


def test_bad_inputs_are_typed_errors() -> None:
    with pytest.raises(InvalidArgumentError, match=r"layer 'gru_cell': expected inputs of rank 2"):
        cells.GRUCell(3)(tf.zeros([2, 3, 4]), tf.zeros([2, 3]))
    with pytest.raises(InvalidArgumentError, match=r"expected dimension -1 of the inputs to be known"):
        cells.GRUCell(3)(tf.placeholder(tf.float32, [2, None]), tf.zeros([2, 3]))
    with pytest.raises(InvalidArgumentError, match="MultiRNNCell: expected at least one cell"):
        cells.MultiRNNCell([])
    with pytest.raises(DTypeError, match=r"MultiRNNCell: cells\[1\]: expected an RNNCell; got 'x'"):
        cells.MultiRNNCell([cells.GRUCell(2), "x"])
    with pytest.raises(InvalidArgumentError, match="expected a state for each of the 2 cells; got 1"):
        cells.MultiRNNCell([cells.GRUCell(2), cells.GRUCell(2)])(tf.zeros([1, 2]), (tf.zeros([1, 2]),))
    with pytest.raises(DTypeError, match=r"activation: expected a function of flowrt\.nn; got 'tahn'"):
        cells.GRUCell(3, activation="tahn")
    with pytest.raises(
        UnimplementedError, match=r"contrib\.rnn\.GridLSTMCell: .*Instead: nn\.rnn_cell\.LSTMCell"
    ):
        _ = contrib.GridLSTMCell


def test_one_cell_twice_in_a_stack_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flowrt"):
        cells.MultiRNNCell([cells.GRUCell(2)] * 2)
    assert "its layers share weights" in caplog.text


# --- contrib


def test_contrib_has_the_same_cells_and_more() -> None:
    assert contrib.BasicLSTMCell is cells.BasicLSTMCell
    assert contrib.static_rnn is tf.nn.static_rnn
    block = contrib.LSTMBlockCell(3)
    block(tf.zeros([1, 2]), block.zero_state(1, tf.float32))
    assert names() == ["lstm_cell/kernel", "lstm_cell/bias"]


def test_projections_and_embeddings_have_variables_around_the_cells() -> None:
    cell = contrib.EmbeddingWrapper(
        contrib.OutputProjectionWrapper(contrib.InputProjectionWrapper(cells.GRUCell(3), 4, tf.nn.relu), 5),
        embedding_classes=10,
        embedding_size=6,
    )
    (output,), _ = tf.nn.static_rnn(cell, [tf.constant([1, 2])], dtype=tf.float32)
    assert output.shape.as_list() == [2, 5]
    inside = "rnn/embedding_wrapper/output_projection_wrapper"
    assert {v.op.name: v.shape.as_list() for v in tf.global_variables()} == {
        "rnn/embedding_wrapper/embedding": [10, 6],
        f"{inside}/input_projection_wrapper/kernel": [6, 4],
        f"{inside}/input_projection_wrapper/bias": [4],
        f"{inside}/input_projection_wrapper/gru_cell/gates/kernel": [7, 6],
        f"{inside}/input_projection_wrapper/gru_cell/gates/bias": [6],
        f"{inside}/input_projection_wrapper/gru_cell/candidate/kernel": [7, 3],
        f"{inside}/input_projection_wrapper/gru_cell/candidate/bias": [3],
        f"{inside}/kernel": [3, 5],
        f"{inside}/bias": [5],
    }


def test_a_state_that_is_not_the_cells_is_a_type_error_with_the_users_line() -> None:
    def stack() -> cells.MultiRNNCell:
        return cells.MultiRNNCell([cells.GRUCell(4), cells.GRUCell(4)])

    x, one, pair = tf.zeros([2, 3]), tf.zeros([2, 4]), (tf.zeros([2, 4]),) * 2
    joined = cells.BasicLSTMCell(4, state_is_tuple=False)
    lstm = r"LSTMCell: expected an LSTMStateTuple\(c, h\) as the state; got .*Use the cell's zero_state"
    for call, message in (
        (lambda: cells.LSTMCell(4)(x, one), lstm),
        (lambda: cells.BasicLSTMCell(4)(x, one), lstm),
        (lambda: cells.LSTMCell(4)(x, (one,)), lstm),
        (lambda: tf.nn.dynamic_rnn(cells.LSTMCell(4), tf.zeros([2, 5, 3]), initial_state=one), lstm),
        (lambda: joined(x, pair), "BasicLSTMCell: expected one tensor of 8 as the state"),
        (lambda: stack()(x, one), "MultiRNNCell: expected a state for each of the 2 cells; got <"),
        (lambda: stack()(x, (one,)), "MultiRNNCell: expected a state for each of the 2 cells; got 1"),
    ):
        with pytest.raises(DTypeError, match=message) as caught:
            call()
        assert "test_rnn_cell.py:" in str(caught.value)
    stack()(x, list(pair))
    cells.LSTMCell(4)(x, pair)
