"""The arrays and sizes that all sides share: one case is the same work, from the same numbers, on each."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

CHAIN = 500  # pairs of operations
LOOP_STEPS = 10_000
NEST_STEPS = 100  # of each of two loops
BRANCH_STEPS, BRANCH_WIDTH = 1_000, 16
MLP_WIDTHS = (784, 512, 512, 10)
KERNELS = ((5, 5, 1, 32), (5, 5, 32, 64))  # height, width, channels in, channels out
DENSE = ((3136, 256), (256, 10))
TIME, BATCH, CELLS = 100, 32, 128  # of the LSTM, whose input is as wide as its state
GELU_SIZE = 16_000_000
SQUARE = 2048
ROWS = (10_000, 60)  # of a softmax
RECORDS, RECORD_BYTES, RECORDS_A_STEP = 1 << 14, 4096, 16


class Sampled:
    """Ten sampled neighbours of each of 512 nodes, of 5,000 in all, with 64 features."""

    rows, samples, nodes, cells = 512, 10, 5_000, 64


class Gpt:
    """A decoder: 8 x 128 tokens of 256 symbols, 4 layers of 256 with 4 heads."""

    batch, length, symbols, width, layers, heads = 8, 128, 256, 256, 4, 4
    depth = width // heads
    scale = depth**-0.5


def floats(*shape: int, scale: float = 1.0) -> Any:
    """Normal float32 numbers, the same for every call of one shape."""
    numbers = np.random.default_rng(shape).standard_normal(shape, np.float32)
    return numbers * np.float32(scale)


def digits(*shape: int, below: int = 10) -> Any:
    """Labels or tokens, int64, from 0 to ``below`` - 1."""
    return np.random.default_rng(shape).integers(0, below, shape)


def mlp_parameters() -> list[Any]:
    """Weights and bias of every layer by turns."""
    arrays: list[Any] = []
    for rows, columns in pairwise(MLP_WIDTHS):
        arrays += [floats(rows, columns, scale=0.05), np.zeros(columns, np.float32)]
    return arrays


def lenet_parameters() -> list[Any]:
    """Two convolutions [height, width, in, out] and two dense layers, without biases."""
    return [floats(*s, scale=0.1) for s in KERNELS] + [floats(*s, scale=0.02) for s in DENSE]


def lstm_parameters(cells: int = CELLS) -> list[Any]:
    """Weights of input and state to the four gates, and their bias."""
    return [floats(2 * cells, 4 * cells, scale=0.02), np.zeros(4 * cells, np.float32)]


def gpt_parameters() -> dict[str, Any]:
    """By name: symbols, positions and output; a layer's own are ``0.qkv``, ``1.qkv`` …."""
    width = Gpt.width
    found = {
        "symbols": floats(Gpt.symbols, width, scale=0.02),
        "positions": floats(Gpt.length, width, scale=0.02),
        "output": floats(width, Gpt.symbols, scale=0.02),
    }
    for layer in range(Gpt.layers):
        for norm in ("norm1", "norm2"):
            found[f"{layer}.{norm}.gain"] = np.ones(width, np.float32)
            found[f"{layer}.{norm}.bias"] = np.zeros(width, np.float32)
        for name, outputs in (("qkv", 3 * width), ("join", width), ("up", 4 * width)):
            found[f"{layer}.{name}"] = floats(width, outputs, scale=0.02)
        found[f"{layer}.down"] = floats(4 * width, width, scale=0.02)
    return found


def causal_mask() -> Any:
    """[length, length] to add to the scores: nobody looks ahead."""
    return np.triu(np.full((Gpt.length, Gpt.length), -1e9, np.float32), 1)


def is_calm(x: Any) -> Any:
    """Where iterating ``z = x sin(z)`` settles; beyond |x| = 2.26 it is chaotic and rounding decides."""
    return np.abs(x) < 2
