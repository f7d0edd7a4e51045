"""Recurrent cells of TensorFlow 1, which TensorFlow 2.21 has no longer."""

import numpy as np


def rows(tf, function, t, n):
    """The outputs of a recurrent ``function`` of a cell, with weights that depend on their shapes only."""
    fill = tf.constant_initializer
    with tf.variable_scope(None, "cell", initializer=fill(0.1)):
        return function(t, n)


def calls(tf):
    rng = np.random.default_rng(14)
    nn = tf.nn
    sequence, lengths = rng.normal(size=(2, 5, 3)), np.int32([3, 5])
    found = {}
    cells = {
        "lstm": lambda: nn.rnn_cell.LSTMCell(4),
        "peepholes": lambda: nn.rnn_cell.LSTMCell(
            4, use_peepholes=True, num_proj=2, cell_clip=0.7, proj_clip=0.2
        ),
        "basic_lstm": lambda: nn.rnn_cell.BasicLSTMCell(4, forget_bias=0.3),
        "gru": lambda: nn.rnn_cell.GRUCell(4),
        "basic": lambda: nn.rnn_cell.BasicRNNCell(4),
        "several": lambda: nn.rnn_cell.MultiRNNCell([nn.rnn_cell.GRUCell(4), nn.rnn_cell.LSTMCell(2)]),
        "residual": lambda: nn.rnn_cell.ResidualWrapper(nn.rnn_cell.GRUCell(3)),
    }
    for name, cell in cells.items():
        found[f"rnn_{name}"] = (
            lambda t, n, c=cell: rows(tf, lambda u, m: nn.dynamic_rnn(c(), u, m, dtype=tf.float64), t, n),
            sequence,
            lengths,
        )
    pair = lambda: (nn.rnn_cell.GRUCell(4), nn.rnn_cell.LSTMCell(3))  # noqa: E731
    found["rnn_both"] = (
        lambda t, n: rows(
            tf, lambda u, m: nn.bidirectional_dynamic_rnn(*pair(), u, m, dtype=tf.float64), t, n
        ),
        sequence,
        lengths,
    )
    found["rnn_static"] = (
        lambda t, n: rows(
            tf,
            lambda u, m: nn.static_rnn(
                nn.rnn_cell.GRUCell(4), tf.unstack(u, axis=1), dtype=tf.float64, sequence_length=m
            ),
            t,
            n,
        ),
        sequence,
        lengths,
    )
    found["rnn_static_both"] = (
        lambda t, n: rows(
            tf,
            lambda u, m: nn.static_bidirectional_rnn(
                *pair(), tf.unstack(u, axis=1), dtype=tf.float64, sequence_length=m
            ),
            t,
            n,
        ),
        sequence,
        lengths,
    )
    found["rnn_raw"] = (lambda t, n: rows(tf, lambda u, m: raw(tf, u, m), t, n), sequence, lengths)
    return found


def raw(tf, sequence, lengths):
    """The outputs and the last state of a cell that takes half of what it gave as its next input."""
    cell = tf.nn.rnn_cell.GRUCell(3)

    def step(time, output, state, unused):
        ended = time >= lengths
        if output is None:
            return ended, sequence[:, 0], cell.zero_state(2, tf.float64), None, None
        return ended, output / 2, state, output, None

    outputs, state, _ = tf.nn.raw_rnn(cell, step)
    return outputs.stack(), state
