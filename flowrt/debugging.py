"""``flowrt.debugging``: TensorFlow's names of this namespace."""

from flowrt.base.missing_names import missing_from
from flowrt.graph.ops.elementwise.math import is_finite, is_inf, is_nan
from flowrt.graph.ops.text.assertions import (
    Assert,
    assert_equal,
    assert_greater,
    assert_greater_equal,
    assert_integer,
    assert_less,
    assert_less_equal,
    assert_near,
    assert_negative,
    assert_non_negative,
    assert_non_positive,
    assert_none_equal,
    assert_positive,
    assert_rank,
    assert_rank_at_least,
    assert_rank_in,
    assert_same_float_dtype,
    assert_scalar,
    assert_type,
    check_numerics,
    is_numeric_tensor,
)
from flowrt.tf1.aliases import is_non_decreasing, is_strictly_increasing
from flowrt.tf1.aliases import verify_tensor_all_finite as assert_all_finite

__getattr__ = missing_from("debugging")
