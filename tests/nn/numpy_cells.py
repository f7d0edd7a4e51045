"""The cells' equations written out in NumPy: ``step(x, state, weights) -> (output, new_state)``.

``weights`` are the cell's variables by the last parts of their names.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def affine(x: Any, h: Any, w: Any, name: str = "") -> Any:
    return np.concatenate([x, h], 1) @ w[f"{name}kernel"] + w[f"{name}bias"]


def basic_rnn(x: Any, h: Any, w: Any) -> Any:
    h = np.tanh(affine(x, h, w))
    return h, h


def gru(x: Any, h: Any, w: Any) -> Any:
    r, u = np.split(sigmoid(affine(x, h, w, "gates/")), 2, 1)
    h = u * h + (1 - u) * np.tanh(affine(x, r * h, w, "candidate/"))
    return h, h


def lstm(x: Any, state: Any, w: Any, forget_bias: float = 1.0) -> Any:
    c, h = state
    i, j, f, o = np.split(affine(x, h, w), 4, 1)
    c = sigmoid(f + forget_bias) * c + sigmoid(i) * np.tanh(j)
    h = sigmoid(o) * np.tanh(c)
    return h, (c, h)


def full_lstm(x: Any, state: Any, w: Any, cell_clip: float, proj_clip: float) -> Any:
    """With peepholes, projection and clipping."""
    c, h = state
    i, j, f, o = np.split(affine(x, h, w), 4, 1)
    forget, write = sigmoid(f + 1.0 + w["w_f_diag"] * c), sigmoid(i + w["w_i_diag"] * c)
    c = np.clip(forget * c + write * np.tanh(j), -cell_clip, cell_clip)
    h = (sigmoid(o + w["w_o_diag"] * c) * np.tanh(c)) @ w["projection/kernel"]
    h = np.clip(h, -proj_clip, proj_clip)
    return h, (c, h)


def layer_norm_lstm(x: Any, state: Any, w: Any) -> Any:
    def norm(name: str, v: Any) -> Any:
        centred = v - v.mean(1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-12)
        return scaled * w[f"{name}/gamma"] + w[f"{name}/beta"]

    c, h = state
    gates = np.split(np.concatenate([x, h], 1) @ w["kernel"], 4, 1)
    i, j, f, o = (norm(n, g) for n, g in zip(("input", "transform", "forget", "output"), gates, strict=True))
    c = norm("state", c * sigmoid(f + 1.0) + sigmoid(i) * np.tanh(j))
    h = np.tanh(c) * sigmoid(o)
    return h, (c, h)
