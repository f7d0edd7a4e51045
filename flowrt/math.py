"""``flowrt.math``: TensorFlow's names of this namespace."""

from flowrt.aliases import is_non_decreasing, is_strictly_increasing
from flowrt.graph.ops.activations import softplus, softsign
from flowrt.graph.ops.arithmetic import (
    accumulate_n,
    add,
    add_n,
    maximum,
    minimum,
    multiply,
    pow,
    scalar_mul,
    squared_difference,
    subtract,
)
from flowrt.graph.ops.comparison import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
)
from flowrt.graph.ops.complex_parts import abs, angle, conj, imag, real
from flowrt.graph.ops.counting import bincount, confusion_matrix
from flowrt.graph.ops.division import atan2, divide, floordiv, floormod, mod, truediv, xdivy, xlog1py, xlogy
from flowrt.graph.ops.division import div_no_nan as divide_no_nan
from flowrt.graph.ops.division import mul_no_nan as multiply_no_nan
from flowrt.graph.ops.losses import in_top_k
from flowrt.graph.ops.math import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    ceil,
    cos,
    cosh,
    exp,
    expm1,
    floor,
    is_finite,
    is_inf,
    is_nan,
    log,
    log1p,
    negative,
    polyval,
    reciprocal,
    rint,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    tanh,
)
from flowrt.graph.ops.moments import l2_normalize, zero_fraction
from flowrt.graph.ops.ordering import top_k
from flowrt.graph.ops.reductions import (
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from flowrt.graph.ops.scans import cumprod, cumsum, cumulative_logsumexp
from flowrt.graph.ops.segments import (
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_sum,
    unsorted_segment_max,
    unsorted_segment_mean,
    unsorted_segment_min,
    unsorted_segment_prod,
    unsorted_segment_sqrt_n,
    unsorted_segment_sum,
)
from flowrt.graph.ops.shaping import invert_permutation
from flowrt.graph.ops.softmax import log_softmax, softmax
from flowrt.graph.ops.special import digamma, erf, erfc, erfinv, lgamma, polygamma
from flowrt.graph.ops.statistics import (
    argmax,
    argmin,
    count_nonzero,
    reduce_euclidean_norm,
    reduce_logsumexp,
    reduce_std,
    reduce_variance,
)
from flowrt.nn.activations import log_sigmoid
