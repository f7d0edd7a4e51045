"""``contrib.cudnn_rnn`` against a NumPy model of cuDNN's formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib.cudnn_rnn import CudnnGRU, CudnnLSTM
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError

TIME, BATCH, DEPTH, UNITS = 4, 3, 2, 5
LENGTHS = np.array([4, 1, 3])
Step = Callable[[dict[str, Any], Any, Any], Any]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def lstm(weights: dict[str, Any], x: Any, state: Any) -> Any:
    h, c = state
    i, j, f, o = np.split(np.hstack([x, h]) @ weights["kernel"] + weights["bias"], 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(j)
    return np.stack([sigmoid(o) * np.tanh(c), c])


def gru(weights: dict[str, Any], x: Any, state: Any) -> Any:
    (h,) = state
    gates = np.hstack([x, h]) @ weights["gates/kernel"] + weights["gates/bias"]
    r, u = np.split(sigmoid(gates), 2, axis=1)
    new, old = (
        value @ weights[f"candidate/{name}_projection/kernel"] + weights[f"candidate/{name}_projection/bias"]
        for name, value in (("input", x), ("hidden", h))
    )
    return ((1 - u) * np.tanh(new + r * old) + u * h)[None]


def run(step: Step, weights: dict[str, Any], x: Any, state: Any, lengths: Any, backward: bool) -> Any:
    """One layer in one direction: the outputs and the last state."""
    outputs = np.zeros((TIME, BATCH, UNITS))
    for t in range(TIME)[:: -1 if backward else 1]:
        runs = t < lengths
        new = step(weights, x[t], state)
        state = np.where(runs[:, None], new, state)
        outputs[t] = np.where(runs[:, None], new[0], 0)
    return outputs, state


@pytest.mark.parametrize("time_major", [True, False], ids=["time first", "batch first"])
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize(("make", "step"), [(CudnnLSTM, lstm), (CudnnGRU, gru)], ids=["lstm", "gru"])
def test_two_layers_are_cudnns(make: Any, step: Step, direction: str, time_major: bool) -> None:
    rng = np.random.default_rng(0)
    dirs, parts = 1 + (direction == "bidirectional"), 2 if make is CudnnLSTM else 1
    x, start = rng.standard_normal((TIME, BATCH, DEPTH)), rng.standard_normal((parts, 2 * dirs, BATCH, UNITS))
    turned = (lambda v: v) if time_major else (lambda v: v.swapaxes(0, 1))
    with tf.Graph().as_default(), tf.Session() as session:
        net = make(2, UNITS, direction=direction, dtype=tf.float64, bias_initializer=tf.ones_initializer())
        given = tuple(tf.constant(turned(part)) for part in start)
        found = net(tf.constant(turned(x)), given, LENGTHS, time_major=time_major, training=False)
        session.run(tf.global_variables_initializer())
        outputs, states = session.run(found)
        weights = {v.op.name: session.run(v) for v in net.trainable_variables}
    expected, finals = x, []
    for layer in range(2):
        sides = []
        for side in range(dirs):
            root = f"rnn/multi_rnn_cell/cell_{layer}" if dirs == 1 else (
                f"stack_bidirectional_rnn/cell_{layer}/bidirectional_rnn/{'fb'[side]}w"
            )  # fmt: skip
            prefix = f"{net.name}/{root}/cudnn_compatible_{step.__name__}_cell/"
            own = {name.removeprefix(prefix): v for name, v in weights.items() if name.startswith(prefix)}
            state = start[:, layer * dirs + side]
            output, final = run(step, own, expected, state, LENGTHS, backward=bool(side))
            sides.append(output)
            finals.append(final)
        expected = np.concatenate(sides, axis=2)
    np.testing.assert_allclose(turned(outputs), expected, rtol=1e-10, atol=1e-12)
    for part, state in enumerate(states):
        np.testing.assert_allclose(turned(state), np.stack([f[part] for f in finals]), rtol=1e-10)


def test_bias_initializers_count_twice_where_a_cell_has_one_bias() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        net = CudnnGRU(1, UNITS, bias_initializer=tf.ones_initializer())
        net(tf.zeros([TIME, BATCH, DEPTH]))
        session.run(tf.global_variables_initializer())
        biases = {v.op.name.split("_cell/")[-1]: session.run(v)[0] for v in net.variables if "bias" in v.name}
    assert biases == {
        "gates/bias": 2, "candidate/input_projection/bias": 1, "candidate/hidden_projection/bias": 1,
    }  # fmt: skip


def test_dropout_is_between_layers_and_in_training_only() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        net = CudnnLSTM(2, UNITS, dropout=0.5, seed=1)
        x = tf.ones([TIME, BATCH, DEPTH])
        trained, used, again = net(x)[0], net(x, training=False)[0], net(x, training=False)[0]
        session.run(tf.global_variables_initializer())
        dropped, whole, same = session.run([trained, used, again])
    np.testing.assert_array_equal(whole, same)
    assert (dropped != whole).any()
    assert len(net.trainable_variables) == 4


def test_mistakes_are_one_typed_error() -> None:
    with tf.Graph().as_default():
        with pytest.raises(InvalidArgumentError, match="'unidirectional' or 'bidirectional'; got 'both'"):
            CudnnLSTM(1, UNITS, direction="both")
        with pytest.raises(InvalidArgumentError, match="num_units of at least 1; got '2' and 3"):
            CudnnLSTM("2", 3)  # type: ignore[arg-type]
        with pytest.raises(UnimplementedError, match="expected input_mode 'linear_input'; got 'skip_input'"):
            CudnnLSTM(1, UNITS, input_mode="skip_input")
        with pytest.raises(DTypeError, match="CudnnLSTM: expected initial_state to be a tuple of 2 tensors"):
            CudnnLSTM(1, UNITS)(tf.zeros([TIME, BATCH, DEPTH]), tf.zeros([1, BATCH, UNITS]))
