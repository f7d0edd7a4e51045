"""Operations on the bits of integers: TensorFlow's ``tf.bitwise``."""

from __future__ import annotations

import numpy as np

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import OpDef, Ufunc, sample, undoes_itself
from flowrt.graph.op_facets import Loop, instruction
from flowrt.graph.ops.elementwise.comparison import elementwise_op
from flowrt.loops.loop_program import LoopBuilder, LoopValue

__all__ = ["bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"]


def _shift_loop(b: LoopBuilder, x: LoopValue, y: LoopValue, op: str, beyond: LoopValue | int) -> LoopValue:
    """``x`` shifted by ``y``, and ``beyond`` unless y is at least 0 and below the number of bits: the
    processor then uses only some of y's bits.
    """
    bits = np.dtype(x.dtype).itemsize * 8
    return b.select((y >= 0) & (y < bits), b.emit(op, x, y & (bits - 1)), beyond)


def _bitwise(name: str, ufunc: str, loop: Loop, doc: str, commutative: bool = True) -> OpDef[Tensor]:
    return elementwise_op(
        name,
        "x: T in INTEGER, y: T -> z: T",
        kernel=Ufunc(ufunc),
        samples=lambda rng: (
            sample(np.array([[5], [-6]], np.int32), np.array([3, 1, 0], np.int32)),
            sample(np.array(200, np.uint8), np.array([7, 1], np.uint8)),
            sample(np.zeros(0, np.int64), np.array(1, np.int64)),
        ),
        commutative=commutative,
        loop=loop,
        doc=doc,
    )


bitwise_and = _bitwise("BitwiseAnd", "bitwise_and", instruction("and"), "The bits that are set in both.")
bitwise_or = _bitwise("BitwiseOr", "bitwise_or", instruction("or"), "The bits that are set in one or both.")
bitwise_xor = _bitwise("BitwiseXor", "bitwise_xor", instruction("xor"), "The bits that are set in just one.")
left_shift = _bitwise(
    "LeftShift",
    "left_shift",
    Loop(lambda b, x, y: _shift_loop(b, x, y, "shl", 0)),
    "x * 2**y, for 0 <= y < the number of bits.",
    commutative=False,
)
right_shift = _bitwise(
    "RightShift",
    "right_shift",
    Loop(lambda b, x, y: _shift_loop(b, x, y, "shr", b.select(x < 0, b.const(-1, x.dtype), 0))),
    "x / 2**y, rounded down, for 0 <= y < the number of bits.",
    commutative=False,
)

invert = elementwise_op(
    "Invert",
    "x: T in INTEGER -> y: T",
    kernel=Ufunc("invert"),
    samples=lambda rng: (sample(np.array([0, -1, 5], np.int8)), sample(np.array(5, np.uint64))),
    simplify=undoes_itself,
    loop=instruction("not"),
    doc="All bits flipped.",
)
