"""Recurrent cells and layers that are one op in TensorFlow: see "LSTM: A Search Space Odyssey" (Greff et al.,
2015) for the peepholes, and "On the Properties of Neural Machine Translation" (Cho et al., 2014) for the GRU.
"""

from __future__ import annotations

from typing import Any

from flowrt.control_flow.loops import while_loop
from flowrt.functions.tensor_array import TensorArray
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.derivatives.custom_gradient import clip_by_value_preserving_gradient
from flowrt.graph.ops.array.concat_and_split import concat, split
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.comparison import less, where
from flowrt.graph.ops.elementwise.math import sigmoid, tanh
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.tf1.composed_ops.composition import composed

_WEIGHTS = "w: T, wci: T, wcf: T, wco: T, b: T"
_STATES = "i: T, cs: T, f: T, o: T, ci: T, co: T, h: T"
_CELL = "forget_bias: float = 1.0, cell_clip: float = 3.0, use_peephole: bool = False"


@composed("LSTMBlockCell", f"x: T, cs_prev: T, h_prev: T, {_WEIGHTS} -> {_STATES}", _CELL)
def lstm_cell(
    x: Tensor, cs_prev: Tensor, h_prev: Tensor, w: Tensor, wci: Tensor, wcf: Tensor, wco: Tensor, b: Tensor,
    forget_bias: float, cell_clip: float, use_peephole: bool,
) -> list[Any]:  # fmt: skip
    """One step: ``x`` ``[batch, inputs]``, the others ``[batch, cells]``; ``w`` has columns for the input
    gate, the cell's input, the forget gate and the output gate.
    """
    i, ci, f, o = split(matmul(concat([x, h_prev], 1), w) + b, 4, axis=1)
    return _stepped(i, ci, f + forget_bias, o, cs_prev, (wci, wcf, wco) if use_peephole else (), cell_clip)


def _stepped(i: Any, ci: Any, f: Any, o: Any, before: Any, peepholes: Any, clip: float) -> list[Any]:
    if peepholes:
        i, f = i + before * peepholes[0], f + before * peepholes[1]
    i, f, ci = sigmoid(i), sigmoid(f), tanh(ci)
    cs = ci * i + before * f
    if clip > 0:
        cs = clip_by_value_preserving_gradient(cs, -clip, clip)
    o = sigmoid(o + cs * peepholes[2] if peepholes else o)
    co = tanh(cs)
    return [i, cs, f, o, ci, co, o * co]


_LAYER = f"seq_len_max: int64, x: T, cs_prev: T, h_prev: T, {_WEIGHTS} -> {_STATES}"


@composed("BlockLSTM", _LAYER, _CELL)
def lstm(
    steps: Tensor, x: Tensor, cs_prev: Tensor, h_prev: Tensor,
    w: Tensor, wci: Tensor, wcf: Tensor, wco: Tensor, b: Tensor,
    forget_bias: float, cell_clip: float, use_peephole: bool,
) -> list[Any]:  # fmt: skip
    """All steps of ``x`` ``[time, batch, inputs]``; outputs are zeros from ``steps`` on."""

    def gates(product: Any) -> list[Any]:
        i, ci, f, o = split(product, 4, axis=1)
        return [i, ci, f + forget_bias, o]

    return _layer(steps, x, cs_prev, h_prev, w, b, (wci, wcf, wco) if use_peephole else (), cell_clip, gates)


@composed("BlockLSTMV2", _LAYER, "cell_clip: float = 0.0, use_peephole: bool = False")
def lstm_v2(
    steps: Tensor, x: Tensor, cs_prev: Tensor, h_prev: Tensor,
    w: Tensor, wci: Tensor, wcf: Tensor, wco: Tensor, b: Tensor, cell_clip: float, use_peephole: bool,
) -> list[Any]:  # fmt: skip
    """`lstm` with the forget gate before the cell's input, and no bias of its own."""

    def gates(product: Any) -> list[Any]:
        i, f, ci, o = split(product, 4, axis=1)
        return [i, ci, f, o]

    return _layer(steps, x, cs_prev, h_prev, w, b, (wci, wcf, wco) if use_peephole else (), cell_clip, gates)


def _layer(
    steps: Any, x: Any, cs_prev: Any, h_prev: Any, w: Any, b: Any, peepholes: Any, clip: float, gates: Any
) -> list[Any]:
    length = shape(x)[0]
    read = TensorArray(x.dtype, length).unstack(x)
    kept = [TensorArray(x.dtype, length, element_shape=cs_prev.shape) for _ in range(7)]

    def body(time: Any, cs: Any, h: Any, rows: list[TensorArray]) -> Any:
        product = matmul(concat([read.read(time), h], 1), w) + b
        i, ci, f, o = gates(product)
        made = _stepped(i, ci, f, o, cs, peepholes, clip)
        goes_on = less(cast(time, "int64"), steps)
        made = [where(goes_on, each, zeros_like(each)) for each in made]
        return (
            time + 1,
            made[1],
            made[6],
            [row.write(time, each) for row, each in zip(rows, made, strict=True)],
        )

    *_, rows = while_loop(lambda time, *_: time < length, body, (0, cs_prev, h_prev, kept))
    return [row.stack() for row in rows]


@composed("GRUBlockCell", "x: T, h_prev: T, w_ru: T, w_c: T, b_ru: T, b_c: T -> r: T, u: T, c: T, h: T")
def gru_cell(x: Tensor, h_prev: Tensor, w_ru: Tensor, w_c: Tensor, b_ru: Tensor, b_c: Tensor) -> list[Any]:
    r, u = split(sigmoid(matmul(concat([x, h_prev], 1), w_ru) + b_ru), 2, axis=1)
    c = tanh(matmul(concat([x, h_prev * r], 1), w_c) + b_c)
    return [r, u, c, u * h_prev + (1 - u) * c]
