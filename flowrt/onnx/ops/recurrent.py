"""RNN, GRU and LSTM: one product of the inputs for all steps, then a loop over the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, dtype_of, shape_of

MAX_UNROLLED = 32
"""Steps; more are a loop."""

States = tuple[Any, ...]
Step = Callable[[Any, States], States]


def _function(node: Node, index: int, default: str) -> Callable[[Value], Value]:
    name = (node.get("activations") or [])[index : index + 1] or [default]
    alphas, betas = node.get("activation_alpha") or [], node.get("activation_beta") or []
    alpha = alphas[index] if index < len(alphas) else None
    beta = betas[index] if index < len(betas) else None
    match name[0].lower():
        case "sigmoid":
            return tf.sigmoid
        case "tanh":
            return tf.tanh
        case "relu":
            return tf.nn.relu
        case "softsign":
            return tf.nn.softsign
        case "softplus":
            return tf.nn.softplus
        case "affine":
            return lambda x: x * dtype_of(x).type(1 if alpha is None else alpha) + dtype_of(x).type(beta or 0)
        case "leakyrelu":
            return lambda x: tf.nn.leaky_relu(x, 0.01 if alpha is None else alpha)
        case "thresholdedrelu":
            return lambda x: tf.where_v2(
                x > dtype_of(x).type(1 if alpha is None else alpha), x, tf.zeros_like(x)
            )
        case "scaledtanh":
            return lambda x: dtype_of(x).type(alpha) * tf.tanh(dtype_of(x).type(beta) * x)
        case "hardsigmoid":
            a, b = 0.2 if alpha is None else alpha, 0.5 if beta is None else beta
            return lambda x: tf.clip_by_value(dtype_of(x).type(a) * x + dtype_of(x).type(b), 0.0, 1.0)
        case "elu":
            return tf.nn.elu
    return node.refuse(f"the activation {name[0]!r} is not supported")


def _clipped(node: Node, x: Value) -> Value:
    limit = node.get("clip")
    if limit is None:
        return x
    return tf.minimum(tf.maximum(x, dtype_of(x).type(-limit)), dtype_of(x).type(limit))


def _run(
    node: Node, x: Value, lengths: Value, initial: list[States], step_of: Callable[[int], tuple[Value, Step]]
) -> tuple[Value, list[States]]:
    """Outputs [time, directions, batch, hidden] and the last states of each direction.

    ``step_of(d)`` gives the inputs of direction d, [time, batch, gates], and its step.
    """
    time = shape_of(x)[0]
    outputs, lasts = [], []
    for d, states in enumerate(initial):
        backwards = node.get("direction", "forward") == "reverse" or d == 1
        gates, step = step_of(d)
        if backwards:
            gates = _turned(gates, lengths)
        out, last = _steps(gates, states, step, lengths, time)
        outputs.append(_turned(out, lengths) if backwards else out)
        lasts.append(last)
    return tf.stack(outputs, 1), lasts


def _turned(x: Value, lengths: Value) -> Value:
    if lengths is None:
        return tf.reverse(x, [0])
    return tf.reverse_sequence(x, lengths, seq_axis=0, batch_axis=1)


def _steps(gates: Value, states: States, step: Step, lengths: Value, time: int) -> tuple[Value, States]:
    def advanced(t: Any, now: Value, old: States) -> tuple[Value, States]:
        """The output of a step, and the states behind it; entries that have ended keep theirs, and give 0."""
        new = step(now, old)
        if lengths is None:
            return new[0], new
        going = tf.expand_dims(tf.less(tf.cast(t, tf.int32), tf.cast(lengths, tf.int32)), -1)
        kept = tuple(tf.where_v2(going, a, b) for a, b in zip(new, old, strict=True))
        return tf.where_v2(going, new[0], tf.zeros_like(new[0])), kept

    if time <= MAX_UNROLLED:
        outs = []
        gates = tf.convert_to_tensor(gates)
        for t in range(time):
            out, states = advanced(t, gates[t], states)
            outs.append(out)
        return tf.stack(outs), states
    array = tf.TensorArray(tf.as_dtype(dtype_of(gates)), time)

    def body(t: Any, array: Any, *old: Any) -> tuple[Any, ...]:
        out, new = advanced(t, tf.gather(gates, t), tuple(old))
        return (t + 1, array.write(t, out), *new)

    _, array, *last = tf.while_loop(
        lambda t, *_: t < time, body, (tf.constant(0), array, *(tf.convert_to_tensor(s) for s in states))
    )
    return array.stack(), tuple(last)


class _Weights:
    """Weights of one direction, for ``gates`` gates of ``hidden`` units."""

    def __init__(self, w: Value, r: Value, b: Value, d: int, gates: int, kind: np.dtype[Any]) -> None:
        self.w, self.r = (tf.transpose(tf.convert_to_tensor(each)[d]) for each in (w, r))
        hidden = shape_of(r)[2]
        if b is None:
            self.of_inputs = self.of_states = np.zeros(gates * hidden, kind)
        else:
            row = tf.convert_to_tensor(b)[d]
            self.of_inputs, self.of_states = row[: gates * hidden], row[gates * hidden :]


def _entry(x: Value, layout: int) -> Value:
    return tf.transpose(x, [1, 0, *range(2, len(shape_of(x)))]) if layout and x is not None else x


def _finish(node: Node, outputs: Value, lasts: list[States], layout: int) -> tuple[Value, ...]:
    finals = [tf.stack([last[i] for last in lasts]) for i in range(len(lasts[0]))]
    if layout:
        outputs = tf.transpose(outputs, [2, 0, 1, 3])
        finals = [tf.transpose(each, [1, 0, 2]) for each in finals]
    return (outputs, *finals)


def _states(given: Value, directions: int, batch: int, hidden: int, kind: np.dtype[Any]) -> list[Value]:
    if given is None:
        return [tf.zeros([batch, hidden], tf.as_dtype(kind))] * directions
    return [tf.convert_to_tensor(given)[d] for d in range(directions)]


@handles("RNN")
def rnn(
    node: Node, x: Value, w: Value, r: Value, b: Value = None, lengths: Value = None, h0: Value = None
) -> Any:
    layout, directions, hidden = node.get("layout", 0), shape_of(w)[0], shape_of(r)[2]
    x, h0 = _entry(x, layout), _entry(h0, layout)
    kind = dtype_of(x)

    def step_of(d: int) -> tuple[Value, Step]:
        weights = _Weights(w, r, b, d, 1, kind)
        function = _function(node, d, "Tanh")

        def step(now: Value, states: States) -> States:
            return (function(_clipped(node, now + tf.matmul(states[0], weights.r))),)

        return tf.tensordot(x, weights.w, 1) + weights.of_inputs + weights.of_states, step

    initial = [(h,) for h in _states(h0, directions, shape_of(x)[1], hidden, kind)]
    return _finish(node, *_run(node, x, lengths, initial, step_of), layout)


@handles("GRU")
def gru(
    node: Node, x: Value, w: Value, r: Value, b: Value = None, lengths: Value = None, h0: Value = None
) -> Any:
    layout, directions, hidden = node.get("layout", 0), shape_of(w)[0], shape_of(r)[2]
    x, h0 = _entry(x, layout), _entry(h0, layout)
    kind = dtype_of(x)

    def step_of(d: int) -> tuple[Value, Step]:
        weights = _Weights(w, r, b, d, 3, kind)
        f, g = _function(node, 2 * d, "Sigmoid"), _function(node, 2 * d + 1, "Tanh")
        inner = weights.r[:, : 2 * hidden], weights.r[:, 2 * hidden :]
        last = weights.of_states[2 * hidden :]

        def step(now: Value, states: States) -> States:
            (h,) = states
            first = f(_clipped(node, now[:, : 2 * hidden] + tf.matmul(h, inner[0])))
            z, reset = first[:, :hidden], first[:, hidden:]
            if node.get("linear_before_reset", 0):
                part = reset * (tf.matmul(h, inner[1]) + last)
            else:
                part = tf.matmul(reset * h, inner[1]) + last
            fresh = g(_clipped(node, now[:, 2 * hidden :] + part))
            return (fresh + z * (h - fresh),)

        zeros = np.zeros(hidden, kind)
        bias = weights.of_inputs + tf.concat([weights.of_states[: 2 * hidden], zeros], 0)
        return tf.tensordot(x, weights.w, 1) + bias, step

    initial = [(h,) for h in _states(h0, directions, shape_of(x)[1], hidden, kind)]
    return _finish(node, *_run(node, x, lengths, initial, step_of), layout)


@handles("LSTM")
def lstm(node: Node, x: Value, w: Value, r: Value, b: Value = None, lengths: Value = None, h0: Value = None,
         c0: Value = None, peepholes: Value = None) -> Any:  # fmt: skip
    layout, directions, hidden = node.get("layout", 0), shape_of(w)[0], shape_of(r)[2]
    x, h0, c0 = _entry(x, layout), _entry(h0, layout), _entry(c0, layout)
    kind = dtype_of(x)

    def step_of(d: int) -> tuple[Value, Step]:
        weights = _Weights(w, r, b, d, 4, kind)
        f, g, h_of = (_function(node, 3 * d + i, name) for i, name in enumerate(("Sigmoid", "Tanh", "Tanh")))
        if peepholes is None:
            pi = po = pf = np.zeros(hidden, kind)
        else:
            row = tf.convert_to_tensor(peepholes)[d]
            pi, po, pf = row[:hidden], row[hidden : 2 * hidden], row[2 * hidden :]

        def step(now: Value, states: States) -> States:
            h, c = states
            gates = now + tf.matmul(h, weights.r)
            i, o, forget, new = (gates[:, k * hidden : (k + 1) * hidden] for k in range(4))
            i = f(_clipped(node, i + pi * c))
            forget = f(_clipped(node, forget + pf * c)) if not node.get("input_forget", 0) else 1 - i
            c = forget * c + i * g(_clipped(node, new))
            o = f(_clipped(node, o + po * c))
            return o * h_of(c), c

        return tf.tensordot(x, weights.w, 1) + weights.of_inputs + weights.of_states, step

    batch = shape_of(x)[1]
    both = (_states(each, directions, batch, hidden, kind) for each in (h0, c0))
    initial = list(zip(*both, strict=True))
    return _finish(node, *_run(node, x, lengths, initial, step_of), layout)
