"""``flowrt.bitwise``: TensorFlow's names of this namespace."""

from flowrt.graph.ops.bitwise import bitwise_and, bitwise_or, bitwise_xor, invert, left_shift, right_shift
