"""``flowrt.bitwise``: TensorFlow's names of this namespace."""

from flowrt.base.missing_names import missing_from
from flowrt.graph.ops.elementwise.bitwise import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    invert,
    left_shift,
    right_shift,
)

__getattr__ = missing_from("bitwise")
