"""The cases on JAX under `jax.jit`, as far as they exist there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import inputs
from benchmarks.inputs import Gpt, floats
from benchmarks.timing import Outcome, timed, timed_from_first

Loss = Callable[..., Any]


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def _stepping(update: Callable[..., Any], state: Any, data: tuple[Any, ...]) -> Callable[[], float]:
    """A call that takes ``update(state, *data) -> state, loss`` one step on and returns the loss."""
    step, arrays = jax.jit(update), [jnp.array(item) for item in data]

    def call() -> float:
        nonlocal state
        state, loss = step(state, *arrays)
        return float(loss)

    return call


def _sgd(loss_of: Loss, parameters: Any, rate: float, *data: Any) -> Callable[[], float]:
    def update(parameters: Any, *data: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, *data)
        return jax.tree.map(lambda p, g: p - rate * g, parameters, gradients), loss

    return _stepping(update, jax.tree.map(jnp.array, parameters), data)


def _adam(loss_of: Loss, parameters: Any, *data: Any) -> Callable[[], float]:
    def update(state: Any, *data: Any) -> Any:
        parameters, means, squares, count = state
        loss, gradients = jax.value_and_grad(loss_of)(parameters, *data)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
        squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, gradients)
        rate = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        parameters = jax.tree.map(
            lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), parameters, means, squares
        )
        return (parameters, means, squares, count + 1), loss

    start = jax.tree.map(jnp.array, parameters)
    zeros = jax.tree.map(jnp.zeros_like, start)
    return _stepping(update, (start, zeros, zeros, jnp.float32(1)), data)


def add_callable() -> Outcome:
    one, add = jnp.float32(1), jax.jit(lambda x: x + 1.0)
    return timed(lambda: add(one).block_until_ready())


def chain_1000_small_ops() -> Outcome:
    x = floats(64)

    @jax.jit
    def chain(x: Any) -> Any:
        y = x
        for _ in range(inputs.CHAIN):
            y = jnp.sin(y) * x
        return y

    on_device = jnp.array(x)
    return timed(lambda: chain(on_device).block_until_ready(), value=lambda y: y[inputs.is_calm(x)].sum())


def while_10k() -> Outcome:
    def step(state: Any) -> Any:
        i, a = state
        return i + 1, a * 0.999 + 1.0

    @jax.jit
    def loop(steps: Any) -> Any:
        return jax.lax.while_loop(lambda state: state[0] < steps, step, (0, 0.0))[1]

    return timed(lambda: loop(inputs.LOOP_STEPS).block_until_ready())


def while_nested() -> Outcome:
    def inner(state: Any) -> Any:
        j, a = state
        return j + 1, a * 0.999 + 1.0

    @jax.jit
    def loop(steps: Any) -> Any:
        def outer(state: Any) -> Any:
            i, a = state
            return i + 1, 0.5 * jax.lax.while_loop(lambda state: state[0] < steps, inner, (0, a))[1]

        return jax.lax.while_loop(lambda state: state[0] < steps, outer, (0, 0.0))[1]

    return timed(lambda: loop(inputs.NEST_STEPS).block_until_ready())


def while_cond_1k() -> Outcome:
    def step(state: Any) -> Any:
        i, a = state
        return i + 1, jax.lax.cond(a[0] > 1.0, lambda: a * 0.5 - 1.0, lambda: jnp.tanh(a) + 1.5)

    @jax.jit
    def loop(steps: Any) -> Any:
        start = (0, jnp.zeros(inputs.BRANCH_WIDTH))
        return jax.lax.while_loop(lambda state: state[0] < steps, step, start)[1]

    return timed(lambda: loop(inputs.BRANCH_STEPS).block_until_ready(), value=lambda a: a.sum())


def mlp_adam() -> Outcome:
    def loss(parameters: Any, x: Any, labels: Any) -> Any:
        w1, b1, w2, b2, w3, b3 = parameters
        h = jax.nn.relu(jax.nn.relu(x @ w1 + b1) @ w2 + b2)
        return _cross_entropy(h @ w3 + b3, labels)

    return timed(_adam(loss, inputs.mlp_parameters(), floats(128, 784), inputs.digits(128)), "step")


def lenet_sgd() -> Outcome:
    def loss(parameters: Any, h: Any, labels: Any) -> Any:
        layout, window = ("NHWC", "HWIO", "NHWC"), (1, 2, 2, 1)
        for kernel in parameters[:2]:
            h = jax.lax.conv_general_dilated(h, kernel, (1, 1), "SAME", dimension_numbers=layout)
            h = jax.lax.reduce_window(jax.nn.relu(h), -jnp.inf, jax.lax.max, window, window, "VALID")
        return _cross_entropy(jax.nn.relu(h.reshape(64, -1) @ parameters[2]) @ parameters[3], labels)

    images, labels = floats(64, 28, 28, 1), inputs.digits(64)
    return timed(_sgd(loss, inputs.lenet_parameters(), 1e-2, images, labels), "step")


def lstm_while_train() -> Outcome:
    def loss(parameters: Any, xs: Any) -> Any:
        weights, bias = parameters

        def cell(state: Any, x: Any) -> Any:
            c, h = state
            i, j, f, o = jnp.split(jnp.concatenate([x, h], 1) @ weights + bias, 4, 1)
            c = c * jax.nn.sigmoid(f + 1.0) + jax.nn.sigmoid(i) * jnp.tanh(j)
            h = jnp.tanh(c) * jax.nn.sigmoid(o)
            return (c, h), h.sum()

        zero = jnp.zeros((inputs.BATCH, inputs.CELLS))
        return jax.lax.scan(cell, (zero, zero), xs)[1].sum()

    xs = floats(inputs.TIME, inputs.BATCH, inputs.CELLS)
    return timed(_sgd(loss, inputs.lstm_parameters(), 1e-4, xs), "step")


def gpt_adam() -> Outcome:
    mask = jnp.array(inputs.causal_mask())

    def norm(h: Any, weights: Any, name: str) -> Any:
        centred = h - h.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return centred * scale * weights[f"{name}.gain"] + weights[f"{name}.bias"]

    def attention(qkv: Any) -> Any:
        qkv = qkv.reshape(Gpt.batch, Gpt.length, 3, Gpt.heads, Gpt.depth)
        query, key, value = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        weights = jax.nn.softmax(query @ key.transpose(0, 1, 3, 2) * Gpt.scale + mask)
        return (weights @ value).transpose(0, 2, 1, 3).reshape(Gpt.batch, Gpt.length, Gpt.width)

    def loss(weights: Any, tokens: Any) -> Any:
        h = weights["symbols"][tokens[:, :-1]] + weights["positions"]
        for layer in range(Gpt.layers):
            qkv = norm(h, weights, f"{layer}.norm1") @ weights[f"{layer}.qkv"]
            h = h + attention(qkv) @ weights[f"{layer}.join"]
            up = norm(h, weights, f"{layer}.norm2") @ weights[f"{layer}.up"]
            h = h + jax.nn.gelu(up, approximate=True) @ weights[f"{layer}.down"]
        return _cross_entropy((h @ weights["output"]).reshape(-1, Gpt.symbols), tokens[:, 1:].reshape(-1))

    tokens = inputs.digits(Gpt.batch, Gpt.length + 1, below=Gpt.symbols)
    return timed_from_first(_adam(loss, inputs.gpt_parameters(), tokens))


def gelu_sum_16m() -> Outcome:
    x = jnp.array(floats(inputs.GELU_SIZE))
    call = jax.jit(lambda x: (0.5 * x * (1.0 + jnp.tanh(0.79788456 * (x + 0.044715 * x * x * x)))).sum())
    return timed(lambda: float(call(x)))


def softmax_short_rows() -> Outcome:
    x, call = jnp.array(floats(*inputs.ROWS)), jax.jit(lambda x: (jax.nn.softmax(x) ** 2).sum())
    return timed(lambda: float(call(x)))


def matmul_2048() -> Outcome:
    x, call = jnp.array(floats(inputs.SQUARE, inputs.SQUARE)), jax.jit(lambda x: (x @ x).sum())
    return timed(lambda: float(call(x)))


CASES: dict[str, Callable[[], Outcome]] = {
    case.__name__: case
    for case in (
        add_callable,
        chain_1000_small_ops,
        while_10k,
        while_nested,
        while_cond_1k,
        mlp_adam,
        lenet_sgd,
        lstm_while_train,
        gpt_adam,
        gelu_sum_16m,
        softmax_short_rows,
        matmul_2048,
    )
}
