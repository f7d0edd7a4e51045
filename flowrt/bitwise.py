"""``flowrt.bitwise``: TensorFlow's names of this namespace."""

from flowrt.graph.ops.elementwise.bitwise import *
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("bitwise")
