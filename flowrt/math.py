"""``flowrt.math``: TensorFlow's names of this namespace."""

from flowrt.graph.ops.array.reductions import *
from flowrt.graph.ops.array.scans import cumprod, cumsum, cumulative_logsumexp
from flowrt.graph.ops.array.segments import *
from flowrt.graph.ops.array.sorting import top_k
from flowrt.graph.ops.array.statistics import (
    argmax,
    argmin,
    bincount,
    confusion_matrix,
    count_nonzero,
    reduce_euclidean_norm,
    reduce_logsumexp,
    reduce_std,
    reduce_variance,
)
from flowrt.graph.ops.base.shape_manipulation import invert_permutation
from flowrt.graph.ops.elementwise.arithmetic import (
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
from flowrt.graph.ops.elementwise.comparison import (
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
from flowrt.graph.ops.elementwise.complex_parts import abs, angle, conj, imag, real
from flowrt.graph.ops.elementwise.division import (
    atan2,
    divide,
    floordiv,
    floormod,
    mod,
    truediv,
    xdivy,
    xlog1py,
    xlogy,
)
from flowrt.graph.ops.elementwise.division import div_no_nan as divide_no_nan
from flowrt.graph.ops.elementwise.division import mul_no_nan as multiply_no_nan
from flowrt.graph.ops.elementwise.incomplete import betainc, igamma, igammac
from flowrt.graph.ops.elementwise.math import *
from flowrt.graph.ops.elementwise.math import polyval
from flowrt.graph.ops.elementwise.special import digamma, erf, erfc, erfinv, lgamma, polygamma, zeta
from flowrt.graph.ops.nn.activations import log_sigmoid, softplus, softsign
from flowrt.graph.ops.nn.losses import in_top_k
from flowrt.graph.ops.nn.moments import l2_normalize, zero_fraction
from flowrt.graph.ops.nn.softmax import log_softmax, softmax
from flowrt.tf1.aliases import is_non_decreasing, is_strictly_increasing
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("math")
