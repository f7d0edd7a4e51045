"""``flowrt.bitwise``: TensorFlow's names of this namespace."""

from flowrt.base.missing_names import missing_from
from flowrt.graph.ops.elementwise.bitwise import *

__getattr__ = missing_from("bitwise")
