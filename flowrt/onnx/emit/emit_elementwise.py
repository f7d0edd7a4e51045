"""Operations on one element at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.onnx.emit.call import Call, emits

SAME = {
    "Acos": "Acos", "Acosh": "Acosh", "Asin": "Asin", "Asinh": "Asinh", "Atan": "Atan", "Atanh": "Atanh",
    "Cos": "Cos", "Cosh": "Cosh", "Elu": "Elu", "Erf": "Erf", "Exp": "Exp", "Inv": "Reciprocal",
    "Invert": "BitwiseNot", "IsInf": "IsInf", "IsNan": "IsNaN", "Log": "Log", "LogicalNot": "Not",
    "Neg": "Neg", "Reciprocal": "Reciprocal", "Relu": "Relu", "Selu": "Selu", "Sigmoid": "Sigmoid",
    "Sign": "Sign", "Sin": "Sin", "Sinh": "Sinh", "Softplus": "Softplus", "Softsign": "Softsign",
    "Sqrt": "Sqrt", "Tan": "Tan", "Tanh": "Tanh",
    "Add": "Add", "AddV2": "Add", "Sub": "Sub", "Mul": "Mul", "RealDiv": "Div", "Less": "Less",
    "LessEqual": "LessOrEqual", "Greater": "Greater", "GreaterEqual": "GreaterOrEqual", "Equal": "Equal",
    "LogicalAnd": "And", "LogicalOr": "Or", "BitwiseAnd": "BitwiseAnd", "BitwiseOr": "BitwiseOr",
    "BitwiseXor": "BitwiseXor", "Maximum": "Max", "Minimum": "Min", "Pow": "Pow", "SelectV2": "Where",
}  # fmt: skip
"""The ops that ONNX has under some name."""


@emits(*SAME)
def same(c: Call, *inputs: str) -> str:
    return c.add(SAME[c.op], *inputs)


@emits("Identity", "StopGradient", "DeepCopy", "Relayout", "Redistribute", "PreventGradient", "EnsureShape",
       "CheckNumerics", "CheckedIndices", "ReadVariableOp", "PlaceholderWithDefault")  # fmt: skip
def unchanged(c: Call, x: str, *rest: str) -> str:
    return x


@emits("IdentityN")
def identities(c: Call, *inputs: str) -> list[str]:
    return list(inputs)


@emits("Floor", "Ceil", "Rint", "Round")
def rounded(c: Call, x: str) -> str:
    return x if c.dtype().kind in "iu" else c.add(c.op if c.op in ("Floor", "Ceil") else "Round", x)


@emits("Abs")
def absolute(c: Call, x: str) -> str:
    return c.add("Abs", x)


@emits("IsFinite")
def is_finite(c: Call, x: str) -> str:
    return c.add("Not", c.add("Or", c.add("IsNaN", x), c.add("IsInf", x)))


@emits("NotEqual")
def not_equal(c: Call, x: str, y: str) -> str:
    return c.add("Not", c.add("Equal", x, y))


@emits("ApproximateEqual")
def approximately_equal(c: Call, x: str, y: str) -> str:
    return c.add("Less", c.add("Abs", c.add("Sub", x, y)), c.number(c.attrs["tolerance"]))


@emits("AddN")
def sum_of_all(c: Call, *inputs: str) -> str:
    found = inputs[0]
    for each in inputs[1:]:
        found = c.add("Add", found, each)
    return found


@emits("Square")
def square(c: Call, x: str) -> str:
    return c.add("Mul", x, x)


@emits("Rsqrt")
def reciprocal_root(c: Call, x: str) -> str:
    return c.add("Reciprocal", c.add("Sqrt", x))


@emits("SquaredDifference")
def squared_difference(c: Call, x: str, y: str) -> str:
    return square(c, c.add("Sub", x, y))


@emits("Expm1")
def exp_minus_one(c: Call, x: str) -> str:
    """Near 0 by ``tanh(x / 2)``, where ``exp(x) - 1`` would lose its digits."""
    half = c.add("Tanh", c.add("Mul", x, c.number(0.5)))
    near = c.add("Div", c.add("Add", half, half), c.add("Sub", c.number(1), half))
    is_near = c.add("Less", c.add("Abs", x), c.number(1))
    return c.add("Where", is_near, near, c.add("Sub", c.add("Exp", x), c.number(1)))


@emits("Log1p")
def log_one_plus(c: Call, x: str) -> str:
    """Near 0 by ``2 atanh(x / (2 + x))``, where ``1 + x`` would lose digits."""
    quotient = c.add("Div", x, c.add("Add", x, c.number(2)))
    near = c.add("Mul", c.number(2), c.add("Atanh", quotient))
    is_near = c.add("Less", c.add("Abs", x), c.number(0.5))
    return c.add("Where", is_near, near, c.add("Log", c.add("Add", x, c.number(1))))


@emits("Erfc")
def complementary_error(c: Call, x: str) -> str:
    return c.add("Sub", c.number(1), c.add("Erf", x))


@emits("Atan2")
def angle(c: Call, y: str, x: str) -> str:
    """The arc tangent of the quotient, moved by half a turn left of the origin."""
    zero = c.number(0)
    turned = c.add("Where", c.add("Less", y, zero), c.number(-math.pi), c.number(math.pi))
    quotient = c.add("Atan", c.add("Div", y, x))
    moved = c.add("Where", c.add("Less", x, zero), c.add("Add", quotient, turned), quotient)
    is_origin = c.add("And", c.add("Equal", x, zero), c.add("Equal", y, zero))
    return c.add("Where", is_origin, zero, moved)


# --- division


@emits("Div")
def divided(c: Call, x: str, y: str) -> str:
    return c.add("Div", x, y) if c.dtype().kind not in "iu" else floor_divided(c, x, y)


@emits("TruncateDiv")
def truncated(c: Call, x: str, y: str) -> str:
    quotient = c.add("Div", x, y)
    if c.dtype().kind in "iu":
        return quotient
    return c.add("Mul", c.add("Sign", quotient), c.add("Floor", c.add("Abs", quotient)))


@emits("FloorDiv")
def floor_divided(c: Call, x: str, y: str) -> str:
    if c.dtype().kind not in "iu":
        return c.add("Floor", c.add("Div", x, y))
    quotient = c.add("Div", x, y)
    if c.dtype().kind == "u":
        return quotient
    rest = c.add("Sub", x, c.add("Mul", quotient, y))
    return c.add("Where", _is_below(c, rest, y), c.add("Sub", quotient, c.number(1)), quotient)


def _is_below(c: Call, rest: str, y: str) -> str:
    """The places where a rest that is not 0 has another sign than the divisor."""
    zero = c.number(0)
    differs = c.add("Xor", c.add("Less", rest, zero), c.add("Less", y, zero))
    return c.add("And", differs, c.add("Not", c.add("Equal", rest, zero)))


@emits("FloorMod")
def floor_rest(c: Call, x: str, y: str) -> str:
    if c.dtype().kind in "iu":
        return c.add("Mod", x, y)
    rest = c.add("Mod", x, y, fmod=1)
    return c.add("Where", _is_below(c, rest, y), c.add("Add", rest, y), rest)


@emits("TruncateMod")
def truncated_rest(c: Call, x: str, y: str) -> str:
    return c.add("Mod", x, y, fmod=1)


def _unless_zero(c: Call, by: str, value: str) -> str:
    """``value``, or 0 where ``by`` is 0."""
    return c.add("Where", c.add("Equal", by, c.number(0)), c.number(0), value)


@emits("Xlogy")
def x_log_y(c: Call, x: str, y: str) -> str:
    return _unless_zero(c, x, c.add("Mul", x, c.add("Log", y)))


@emits("Xlog1py")
def x_log_one_plus_y(c: Call, x: str, y: str) -> str:
    return _unless_zero(c, x, c.add("Mul", x, log_one_plus(c, y)))


@emits("Xdivy")
def x_over_y(c: Call, x: str, y: str) -> str:
    return _unless_zero(c, x, c.add("Div", x, y))


@emits("DivNoNan")
def divided_or_zero(c: Call, x: str, y: str) -> str:
    return _unless_zero(c, y, c.add("Div", x, y))


@emits("MulNoNan")
def multiplied_or_zero(c: Call, x: str, y: str) -> str:
    return _unless_zero(c, y, c.add("Mul", x, y))


# --- bits


@emits("LeftShift", "RightShift")
def shifted(c: Call, x: str, y: str) -> str:
    """A number with a sign is shifted to the left as one without; to the right by division."""
    direction = "LEFT" if c.op == "LeftShift" else "RIGHT"
    if c.dtype().kind == "u":
        return _shift(c, x, y, direction)
    plain = f"uint{c.dtype().itemsize * 8}"
    if direction == "LEFT":
        return c.cast(_shift(c, c.cast(x, plain), c.cast(y, plain), direction), c.dtype())
    is_negative = c.add("Less", x, c.number(0))  # floor(x / 2^y) is ~(~x >> y) there
    bits = c.add("Where", is_negative, c.add("BitwiseNot", x), x)
    found = c.cast(_shift(c, c.cast(bits, plain), c.cast(y, plain), direction), c.dtype())
    return c.add("Where", is_negative, c.add("BitwiseNot", found), found)


def _shift(c: Call, x: str, y: str, direction: str) -> str:
    return c.add("BitShift", x, y, direction=direction)


# --- activations and derivatives


@emits("Relu6")
def relu6(c: Call, x: str) -> str:
    return c.add("Clip", x, c.number(0), c.number(6))


@emits("LeakyRelu")
def leaky_relu(c: Call, x: str) -> str:
    return c.add("LeakyRelu", x, alpha=float(c.attrs["alpha"]))


@emits("TanhGrad")
def tanh_gradient(c: Call, y: str, dy: str) -> str:
    return c.add("Mul", dy, c.add("Sub", c.number(1), square(c, y)))


@emits("SigmoidGrad")
def sigmoid_gradient(c: Call, y: str, dy: str) -> str:
    return c.add("Mul", dy, c.add("Mul", y, c.add("Sub", c.number(1), y)))


@emits("SqrtGrad")
def root_gradient(c: Call, y: str, dy: str) -> str:
    return c.add("Div", c.add("Mul", dy, c.number(0.5)), y)


@emits("RsqrtGrad")
def reciprocal_root_gradient(c: Call, y: str, dy: str) -> str:
    return c.add("Mul", c.add("Mul", dy, c.number(-0.5)), c.add("Mul", y, square(c, y)))


@emits("ReciprocalGrad")
def reciprocal_gradient(c: Call, y: str, dy: str) -> str:
    return c.add("Mul", c.add("Neg", dy), square(c, y))


@emits("ReluGrad")
def relu_gradient(c: Call, dy: str, x: str) -> str:
    return c.add("Where", c.add("Greater", x, c.number(0)), dy, c.number(0))


@emits("Relu6Grad")
def relu6_gradient(c: Call, dy: str, x: str) -> str:
    inside = c.add("And", c.add("Greater", x, c.number(0)), c.add("Less", x, c.number(6)))
    return c.add("Where", inside, dy, c.number(0))


@emits("LeakyReluGrad")
def leaky_relu_gradient(c: Call, dy: str, x: str) -> str:
    smaller = c.add("Mul", dy, c.number(c.attrs["alpha"]))
    return c.add("Where", c.add("Greater", x, c.number(0)), dy, smaller)


@emits("EluGrad")
def elu_gradient(c: Call, dy: str, y: str) -> str:
    return c.add("Mul", dy, c.add("Add", c.add("Min", y, c.number(0)), c.number(1)))


SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


@emits("SeluGrad")
def selu_gradient(c: Call, dy: str, y: str) -> str:
    below = c.add("Mul", dy, c.add("Add", y, c.number(SELU_SCALE * SELU_ALPHA)))
    above = c.add("Mul", dy, c.number(SELU_SCALE))
    return c.add("Where", c.add("Less", y, c.number(0)), below, above)


@emits("SoftplusGrad")
def softplus_gradient(c: Call, dy: str, x: str) -> str:
    return c.add("Mul", dy, c.add("Sigmoid", x))


@emits("SoftsignGrad")
def softsign_gradient(c: Call, dy: str, x: str) -> str:
    return c.add("Div", dy, square(c, c.add("Add", c.add("Abs", x), c.number(1))))


# --- choices and conversion


@emits("Select")
def select(c: Call, condition: str, x: str, y: str) -> str:
    """A vector of conditions chooses among rows."""
    if c.rank(0) == 1 and c.rank(1) > 1:
        condition = c.unsqueeze(condition, list(range(1, c.rank(1))))
    return c.add("Where", condition, x, y)


@emits("Cast")
def cast(c: Call, x: str) -> str:
    return c.cast(x, c.attrs["DstT"].np)


ROUNDING_OPSET = 24
"""The first in which a Cast says how it rounds."""


@emits("CastNarrow")
def cast_narrow(c: Call, x: str) -> str:
    how: dict[str, Any] = {"saturate": int(c.attrs["saturate"])}
    if c.attrs["DstT"] is dtypes.float8_e8m0fnu:
        if c.writer.opset < ROUNDING_OPSET:
            c.refuse(f"a Cast to float8_e8m0fnu is of opset {ROUNDING_OPSET}: export to that or a later one")
        how["round_mode"] = c.attrs["round_mode"]
    return c.writer.cast(x, c.attrs["DstT"].np, **how)


# --- strings


@emits("StaticRegexFullMatch")
def full_match(c: Call, x: str) -> str:
    return c.add("RegexFullMatch", x, pattern=c.attrs["pattern"])


@emits("SplitStrings")
def split_strings(c: Call, x: str) -> list[str]:
    limit = {} if c.attrs["maxsplit"] < 0 else {"maxsplit": c.attrs["maxsplit"]}
    parts, counts = c.several("StringSplit", 2, x, delimiter=c.attrs["delimiter"], **limit)
    return [parts, c.writer.typed(counts, np.int64)]


@emits("DropWords")
def drop_words(c: Call, x: str) -> str:
    return c.add(
        "StringNormalizer", x, case_change_action=c.attrs["case"],
        is_case_sensitive=int(c.attrs["is_case_sensitive"]), stopwords=list(c.attrs["dropped"]),
        locale="C.UTF-8",
    )  # fmt: skip


@emits("CountNgrams")
def count_ngrams(c: Call, x: str) -> str:
    pool = "pool_strings" if c.attrs["pool_strings"] else "pool_int64s"
    names = ("mode", "min_gram_length", "max_gram_length", "max_skip_count", "ngram_counts", "ngram_indexes")
    weights = {"weights": list(c.attrs["weights"])} if c.attrs["weights"] else {}
    given = {name: c.attrs[name] for name in (*names, pool)}
    lists = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
    return c.add("TfIdfVectorizer", x, dtype=np.float32, **lists, **weights)


@emits("StringJoin")
def joined(c: Call, *inputs: str) -> str:
    found = inputs[0]
    separator = c.constant(np.array(c.attrs["separator"].encode(), object))
    for each in inputs[1:]:
        between = c.add("StringConcat", found, separator) if c.attrs["separator"] else found
        found = c.add("StringConcat", between, each)
    return found


@emits("AsString")
def as_string(c: Call, x: str) -> str:
    plain = all(c.attrs[name] in (-1, False, "") for name in ("precision", "scientific", "width", "fill"))
    if c.dtype().kind not in "iu" or not plain:
        c.refuse("ONNX writes whole numbers only, without a format: compute it behind the model")
    return c.cast(x, object)


@emits("StringToNumber")
def to_number(c: Call, x: str) -> str:
    return c.cast(x, c.attrs["out_type"].np)
