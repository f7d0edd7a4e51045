"""The cells and fused networks of ``contrib.rnn``, against NumPy and against loops of cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError

RNG = np.random.default_rng(0)
X, C, H = RNG.standard_normal((3, 2)), RNG.standard_normal((3, 4)), RNG.standard_normal((3, 4))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def one_step(cell: Any, state: Any) -> tuple[Any, dict[str, Any]]:
    """The output and state of ``cell`` on X, and its variables, all random."""
    with tf.Graph().as_default(), tf.Session() as session:
        found = cell(tf.constant(X), state)
        for variable in cell.variables:
            variable.load(RNG.standard_normal(variable.shape.as_list()), session)
        weights = {v.op.name: session.run(v) for v in cell.variables}
        return session.run(found), weights


@pytest.mark.parametrize("size", [None, 4], ids=["plain", "projected"])
def test_the_cell_of_the_architecture_search(size: int | None) -> None:
    cell = tf.contrib.rnn.NASCell(4, num_proj=size, use_bias=True)
    (output, (new_c, new_h)), w = one_step(cell, (C, H))
    state = H @ w["nas_cell/recurrent_kernel"] + w["nas_cell/bias"]
    i, m = (np.split(v, 8, axis=1) for v in (X @ w["nas_cell/kernel"], state))
    first = np.tanh(sigmoid(i[0] + m[0]) * np.maximum(i[1] + m[1], 0))
    second = np.tanh(sigmoid(i[2] + m[2]) + np.maximum(i[3] * m[3], 0))
    third = np.tanh(np.tanh(i[4] + m[4]) * sigmoid(i[5] + m[5]))
    fourth = sigmoid(np.tanh(i[6] + m[6]) + sigmoid(i[7] + m[7]))
    c = np.tanh(first + C) * second
    h = np.tanh(c * np.tanh(third + fourth))
    h = h if size is None else h @ w["nas_cell/projection_weights"]
    np.testing.assert_allclose(new_c, c, rtol=1e-10)
    np.testing.assert_allclose(new_h, h, rtol=1e-10)
    np.testing.assert_array_equal(output, new_h)


def test_the_cell_with_one_gate() -> None:
    (output, state), w = one_step(tf.contrib.rnn.UGRNNCell(4, forget_bias=0.5), H)
    gate, candidate = np.split(np.hstack([X, H]) @ w["ugrnn_cell/kernel"] + w["ugrnn_cell/bias"], 2, axis=1)
    kept = sigmoid(gate + 0.5)
    np.testing.assert_allclose(output, kept * H + (1 - kept) * np.tanh(candidate), rtol=1e-10)
    np.testing.assert_array_equal(output, state)


def test_a_fused_lstm_is_a_loop_of_cells_in_either_direction() -> None:
    steps, lengths = RNG.standard_normal((5, 3, 2)), np.array([5, 2, 3])
    with tf.Graph().as_default(), tf.Session() as session:
        fused = tf.contrib.rnn.LSTMBlockFusedCell(4, use_peephole=True)
        options = {"initial_state": (C, H), "dtype": tf.float64, "sequence_length": lengths}
        forward = fused(tf.constant(steps), **options)
        backward = tf.contrib.rnn.TimeReversedFusedRNN(fused)(tf.constant(steps), **options)
        names = [v.op.name for v in fused.variables]
        cell = tf.contrib.rnn.LSTMBlockCell(4, use_peephole=True)
        start = tf.nn.rnn_cell.LSTMStateTuple(tf.constant(C), tf.constant(H))
        turned = tf.reverse_sequence(steps, lengths, seq_axis=0, batch_axis=1)
        loops = [
            tf.nn.dynamic_rnn(cell, x, lengths, start, time_major=True) for x in (tf.constant(steps), turned)
        ]
        session.run(tf.global_variables_initializer())
        session.run([v.assign(w) for v, w in zip(cell.variables, fused.variables, strict=True)])
        expected, (again, state) = session.run(loops)
        found, other = session.run([forward, backward])
    assert names == [f"lstm_fused_cell/{n}" for n in ("kernel", "bias", "w_i_diag", "w_f_diag", "w_o_diag")]
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)
    np.testing.assert_allclose(other[1], state, rtol=1e-12)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(other[0][:length, row], again[:length, row][::-1], rtol=1e-12)


def test_a_block_cell_of_gru_is_a_gru() -> None:
    with tf.Graph().as_default():
        cell = tf.contrib.rnn.GRUBlockCellV2(4)
        cell(tf.constant(X), tf.constant(H))
        parts = ("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias")
        assert [v.op.name for v in cell.variables] == [f"gru_cell/{part}" for part in parts]


def test_gradients_pass_where_a_block_lstm_clips_its_memory() -> None:
    """As in TensorFlow's kernels, whose gradients know nothing of the clipping; those of LSTMCell do."""
    state, x = tf.nn.rnn_cell.LSTMStateTuple(tf.constant(C), tf.constant(H)), tf.constant(X)
    with tf.variable_scope("", initializer=tf.zeros_initializer()):
        block = tf.contrib.rnn.LSTMBlockCell(4, cell_clip=0.01)
        cell = tf.nn.rnn_cell.LSTMCell(4, cell_clip=0.01)
        found = [each(x, state)[1].c for each in (block, cell)]
    slopes = [tf.gradients(c, state.c)[0] for c in found]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        (bound, again), (whole, none) = session.run([found, slopes])
    np.testing.assert_array_equal(bound, np.sign(C) * 0.01)
    np.testing.assert_array_equal(again, bound)
    np.testing.assert_allclose(whole, sigmoid(1) + 0 * C)
    np.testing.assert_array_equal(none, 0 * C)


def test_variables_have_the_names_and_order_of_tensorflows() -> None:
    """By name a checkpoint is restored, and by order a list of weights."""
    cells = {
        "gru_cell": tf.contrib.rnn.GRUBlockCell(4),
        "cudnn_compatible_gru_cell": tf.contrib.cudnn_rnn.CudnnCompatibleGRUCell(4),
    }
    for cell in cells.values():
        cell(tf.constant(X), tf.constant(H))
    projections = [f"candidate/{part}_projection" for part in ("input", "hidden")]
    parts = [f"{name}/{kind}" for kind in ("kernel", "bias") for name in projections]
    expected = {
        "gru_cell": ["w_ru", "b_ru", "w_c", "b_c"],
        "cudnn_compatible_gru_cell": ["gates/kernel", "gates/bias", *parts],
    }
    names = [f"{cell}/{name}" for cell, own in expected.items() for name in own]
    assert [v.op.name for v in tf.global_variables()] == names


def test_a_size_that_is_no_number_is_an_error_of_the_variable() -> None:
    cell = tf.contrib.rnn.NASCell("4")  # type: ignore[arg-type]
    with pytest.raises(
        InvalidArgumentError, match=r"\.py:.*variable 'nas_cell/.*kernel': expected a dimension"
    ):
        cell(tf.constant(X), (tf.constant(C), tf.constant(H)))
