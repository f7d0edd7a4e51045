"""``flowrt.debugging``: TensorFlow's names of this namespace."""

from flowrt.graph.ops.elementwise.math import is_finite, is_inf, is_nan
from flowrt.graph.ops.text.assertions import *
from flowrt.graph.ops.text.numerics import *
from flowrt.tf1.aliases import is_non_decreasing, is_strictly_increasing
from flowrt.tf1.aliases import verify_tensor_all_finite as assert_all_finite
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("debugging")
