"""The cases on PyTorch, as far as they exist there. Each takes ``compiled``, which wraps the function that is
timed: `torch.compile`, or nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import inputs
from benchmarks.inputs import Gpt, floats
from benchmarks.timing import Outcome, timed, timed_from_first

torch.set_num_threads(len(os.sched_getaffinity(0)))  # by default one a core, though a core may have two

Wrap = Callable[[Any], Any]


def eager(function: Any) -> Any:
    return function


def _leaves(arrays: list[Any]) -> list[Any]:
    return [torch.tensor(array, requires_grad=True) for array in arrays]


def _training_step(loss_of: Callable[[], Any], optimizer: Any) -> Callable[[], float]:
    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def add_callable(compiled: Wrap) -> Outcome:
    one, add = torch.tensor(1.0), compiled(lambda x: x + 1.0)
    return timed(lambda: add(one))


def chain_1000_small_ops(compiled: Wrap) -> Outcome:
    numbers = floats(64)
    x = torch.tensor(numbers)

    def chain(x: Any) -> Any:
        y = x
        for _ in range(inputs.CHAIN):
            y = torch.sin(y) * x
        return y

    call = compiled(chain)
    return timed(lambda: call(x).numpy(force=True), value=lambda y: y[inputs.is_calm(numbers)].sum())


def mlp_adam(compiled: Wrap) -> Outcome:
    x, labels = torch.tensor(floats(128, 784)), torch.tensor(inputs.digits(128))
    parameters = _leaves(inputs.mlp_parameters())

    def loss() -> Any:
        w1, b1, w2, b2, w3, b3 = parameters
        h = F.relu(F.relu(x @ w1 + b1) @ w2 + b2)
        return F.cross_entropy(h @ w3 + b3, labels)

    return timed(_training_step(compiled(loss), torch.optim.Adam(parameters, 1e-3)), "step")


def lenet_sgd(compiled: Wrap) -> Outcome:
    images = torch.tensor(floats(64, 28, 28, 1).transpose(0, 3, 1, 2).copy())
    labels = torch.tensor(inputs.digits(64))
    *kernels, hidden, output = inputs.lenet_parameters()
    # PyTorch counts channels before rows: the features are flattened in another order, so are the weights'
    kernels = [kernel.transpose(3, 2, 0, 1).copy() for kernel in kernels]
    hidden = hidden.reshape(7, 7, 64, 256).transpose(2, 0, 1, 3).reshape(3136, 256)
    parameters = _leaves([*kernels, hidden, output])

    def loss() -> Any:
        h = images
        for kernel in parameters[:2]:
            h = F.max_pool2d(F.relu(F.conv2d(h, kernel, padding=2)), 2)
        return F.cross_entropy(F.relu(h.reshape(64, -1) @ parameters[2]) @ parameters[3], labels)

    return timed(_training_step(compiled(loss), torch.optim.SGD(parameters, 1e-2)), "step")


def gpt_adam(compiled: Wrap) -> Outcome:
    tokens = torch.tensor(inputs.digits(Gpt.batch, Gpt.length + 1, below=Gpt.symbols))
    weights = {
        name: torch.tensor(array, requires_grad=True) for name, array in inputs.gpt_parameters().items()
    }

    def norm(h: Any, name: str) -> Any:
        return F.layer_norm(h, (Gpt.width,), weights[f"{name}.gain"], weights[f"{name}.bias"])

    def heads(x: Any) -> Any:
        return x.reshape(Gpt.batch, Gpt.length, Gpt.heads, Gpt.depth).transpose(1, 2)

    def loss() -> Any:
        h = weights["symbols"][tokens[:, :-1]] + weights["positions"]
        for layer in range(Gpt.layers):
            query, key, value = map(
                heads, (norm(h, f"{layer}.norm1") @ weights[f"{layer}.qkv"]).chunk(3, dim=-1)
            )
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            h = h + mixed.transpose(1, 2).reshape(h.shape) @ weights[f"{layer}.join"]
            up = norm(h, f"{layer}.norm2") @ weights[f"{layer}.up"]
            h = h + F.gelu(up, approximate="tanh") @ weights[f"{layer}.down"]
        logits = (h @ weights["output"]).reshape(-1, Gpt.symbols)
        return F.cross_entropy(logits, tokens[:, 1:].reshape(-1))

    return timed_from_first(_training_step(compiled(loss), torch.optim.Adam(weights.values(), 1e-3)))


def gelu_sum_16m(compiled: Wrap) -> Outcome:
    x = torch.tensor(floats(inputs.GELU_SIZE))
    call = compiled(lambda x: (0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))).sum())
    return timed(lambda: call(x).item())


def softmax_short_rows(compiled: Wrap) -> Outcome:
    x = torch.tensor(floats(*inputs.ROWS))
    call = compiled(lambda x: (torch.softmax(x, -1) ** 2).sum())
    return timed(lambda: call(x).item())


def matmul_2048(compiled: Wrap) -> Outcome:
    x = torch.tensor(floats(inputs.SQUARE, inputs.SQUARE))
    call = compiled(lambda x: (x @ x).sum())
    return timed(lambda: call(x).item())


CASES: dict[str, Callable[[Wrap], Outcome]] = {
    case.__name__: case
    for case in (
        add_callable,
        chain_1000_small_ops,
        mlp_adam,
        lenet_sgd,
        gpt_adam,
        gelu_sum_16m,
        softmax_short_rows,
        matmul_2048,
    )
}
