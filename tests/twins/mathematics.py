"""Functions of elements, reductions, segments and statistics."""

import numpy as np

EVERYWHERE = """
    abs asinh atan ceil cos cosh erf erfc exp expm1 floor negative rint round sigmoid log_sigmoid
    sign sin sinh square tan tanh softplus softsign digamma lgamma is_finite is_inf is_nan
    reduce_euclidean_norm reduce_logsumexp reduce_std reduce_variance cumulative_logsumexp
    l2_normalize
""".split()  # noqa: SIM905 - so they stay few lines
NOT_FAR = ("erf",)
"""TensorFlow 2.21 gives NaN for an infinite argument."""
POSITIVE = """
    log log1p reciprocal rsqrt sqrt acosh digamma lgamma
""".split()  # noqa: SIM905 - so they stay few lines
BELOW_ONE = """
    acos asin atanh erfinv
""".split()  # noqa: SIM905 - so they stay few lines
PAIRS = """
    add subtract multiply divide truediv floordiv mod pow maximum minimum squared_difference atan2
    divide_no_nan multiply_no_nan xdivy xlogy xlog1py equal not_equal less less_equal greater
    greater_equal
""".split()  # noqa: SIM905 - so they stay few lines
TOP_PAIRS = """
    div realdiv floor_div truncatediv truncatemod div_no_nan
""".split()  # noqa: SIM905 - so they stay few lines
REDUCTIONS = """
    sum mean max min prod logsumexp
""".split()  # noqa: SIM905 - so they stay few lines


def calls(tf):  # noqa: C901 - a table, written by loops
    rng = np.random.default_rng(12)
    x, y = 2 * rng.normal(size=(2, 3, 4))
    cube, row = rng.normal(size=(2, 3, 4)), rng.normal(size=6)
    whole, other = rng.integers(-9, 10, (2, 3, 4)).astype(np.int32)
    other[other == 0] = 4
    ties = np.round(x)
    edges = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, np.inf, -np.inf, np.nan, 1e-300, 1e300])
    complex_ = x + 1j * y
    rows = np.int32([0, 0, 2])
    found = {}
    for name in EVERYWHERE:
        found[name] = (getattr(tf.math, name), x)
    for name in EVERYWHERE[:-6]:
        at = edges[np.abs(edges) < 9] if name in NOT_FAR else edges
        found[f"{name}_edges_value"] = (getattr(tf.math, name), at)
        found[f"{name}_float32"] = (getattr(tf.math, name), np.float32(x))
    for name in POSITIVE:
        found[name] = (getattr(tf.math, name), np.abs(x) + 1)
        found[f"{name}_edges_value"] = (getattr(tf.math, name), edges)
    for name in BELOW_ONE:
        found[name] = (getattr(tf.math, name), np.tanh(x))
        found[f"{name}_edges_value"] = (getattr(tf.math, name), edges)
    for name in PAIRS:
        function = getattr(tf.math, name)
        found[name] = (function, np.abs(x) if name == "pow" else x, y[:1])
        found[f"{name}_edges_value"] = (function, np.repeat(edges, len(edges)), np.tile(edges, len(edges)))
        if name not in ("atan2", "divide_no_nan", "multiply_no_nan", "xdivy", "xlogy", "xlog1py"):
            found[f"{name}_whole"] = (function, whole, np.abs(other) if name == "pow" else other)
    for name in TOP_PAIRS:
        found[f"{name}_value" if name == "truncatemod" else name] = (getattr(tf, name), x, y[:1])
        if name not in ("realdiv", "div_no_nan"):
            found[f"{name}_whole"] = (getattr(tf, name), whole, other)
    for name in (
        "exp",
        "log",
        "sqrt",
        "square",
        "sin",
        "tanh",
        "sigmoid",
        "reciprocal",
        "abs",
        "real",
        "imag",
        "angle",
        "conj",
    ):
        found[f"{name}_complex"] = (getattr(tf.math, name), complex_)
    for name in REDUCTIONS:
        function = getattr(tf, f"reduce_{name}")
        found[f"reduce_{name}"] = (function, cube)
        found[f"reduce_{name}_ties"] = (lambda t, f=function: f(t, 1), ties)
        found[f"reduce_{name}_axes"] = (lambda t, f=function: f(t, [0, -1], keepdims=True), cube)
        found[f"reduce_{name}_empty"] = (lambda t, f=function: f(t[:0], 0), x)
        if name != "logsumexp":
            found[f"reduce_{name}_whole"] = (lambda t, f=function: f(t, 1), whole)
    found["reduce_prod_zeros"] = (lambda t: tf.reduce_prod(t, 1), np.where(np.abs(x) < 1, 0, x))
    for name in ("all", "any"):
        found[f"reduce_{name}"] = (lambda t, n=name: getattr(tf, f"reduce_{n}")(t, 1), x > 0)
    for name in REDUCTIONS[:-1]:
        found[f"segment_{name}"] = (getattr(tf, f"segment_{name}"), x, rows)
        function = getattr(tf, f"unsorted_segment_{name}")
        found[f"unsorted_{name}"] = (lambda t, i, f=function: f(t, i, 5), x, np.int32([3, 0, 3]))
        found[f"unsorted_{name}_dropped"] = (lambda t, i, f=function: f(t, i, 2), x, np.int32([-1, 0, 0]))
        found[f"unsorted_{name}_ties"] = (
            lambda t, i, f=function: f(t, i, 2),
            ties[:, :3],
            np.int32(whole[:, :3] > 0),
        )
    found["unsorted_sqrt_n"] = (lambda t, i: tf.unsorted_segment_sqrt_n(t, i, 5), x, np.int32([3, 0, 3]))
    booleans = (x > 0, y > 0)
    for name in ("logical_and", "logical_or", "logical_xor"):
        found[name] = (getattr(tf.math, name), *booleans)
    for name in ("invert", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"):
        given = (whole,) if name == "invert" else (whole, np.abs(other) % 5)
        found[name] = (getattr(tf.bitwise, name), *given)
    found.update(
        {
            "logical_not": (tf.logical_not, booleans[0]),
            "accumulate_n": (lambda t, u: tf.accumulate_n([t, u, t]), x, y),
            "add_n": (lambda t, u: tf.add_n([t, u, t]), x, y),
            "scalar_mul": (lambda t: tf.scalar_mul(2.5, t), x),
            "argmax": (lambda t: tf.argmax(t, 1), ties),
            "argmin": (lambda t: tf.argmin(t, 0, output_type=tf.int32), ties),
            "arg_max": (lambda t: tf.arg_max(t, 1), ties),
            "arg_min": (lambda t: tf.arg_min(t, 1), ties),
            "bincount": (tf.bincount, np.abs(whole)),
            "bincount_weights_value": (
                lambda t, w: tf.bincount(t, w, minlength=3, maxlength=7),
                np.abs(whole),
                x,
            ),
            "cumsum": (lambda t: tf.cumsum(t, 1), x),
            "cumprod": (lambda t: tf.cumprod(t, 1), x),
            "cumsum_back": (lambda t: tf.cumsum(t, 0, exclusive=True, reverse=True), x),
            "cumprod_back": (lambda t: tf.cumprod(t, -1, exclusive=True, reverse=True), x),
            "cumulative_back": (
                lambda t: tf.math.cumulative_logsumexp(t, 1, exclusive=True, reverse=True),
                x,
            ),
            "logsumexp_far": (lambda t: tf.reduce_logsumexp(t * 1000, 1), x),
            "reduce_std_axes": (lambda t: tf.math.reduce_std(t, [0, 2], True), cube),
            "reduce_variance_axes": (lambda t: tf.math.reduce_variance(t, 1), cube),
            "reduce_join": (
                lambda t: tf.reduce_join(t, 1, separator="-"),
                np.array([[b"a", b"b"], [b"", b"c"]]),
            ),
            "monotone": (lambda t: (tf.is_non_decreasing(t), tf.is_strictly_increasing(t)), np.sort(row)),
            "polygamma": (tf.polygamma, np.float64([1, 2, 0, 3]), np.abs(x) + 0.3),
            "polyval": (lambda a, t: tf.math.polyval([a, 2 * a, a * a], t), np.float64(0.7), x),
            "in_top_k": (lambda t, i: tf.nn.in_top_k(t, i, 2), np.float32(x), rows),
            "top_k": (lambda t: tf.math.top_k(t, 2), x),
            "top_k_ties": (lambda t: tf.nn.top_k(t, 3), ties),
            "zero_fraction": (tf.math.zero_fraction, np.float32(ties)),
            "softmax_axis": (lambda t: tf.math.softmax(t, 1), cube),
            "log_softmax_axis": (lambda t: tf.math.log_softmax(t, 0), cube),
            "softmax_far": (lambda t: tf.math.softmax(t * 1000), x),
            "l2_normalize_axes": (lambda t: tf.math.l2_normalize(t, [0, 1]), cube),
            "l2_normalize_zero": (lambda t: tf.math.l2_normalize(t * 0, 1), x),
            "operators": (lambda t, u: (t + 1, 2 - t, t / u, t // u, t % u, -t, abs(t), t * t), x, y),
            "operators_whole": (
                lambda t, u: (t + 1, 2 - t, t / u, t // u, t % u, -t, abs(t), t * t),
                whole,
                other,
            ),
            "round_whole": (tf.round, whole),
        }
    )
    return found
