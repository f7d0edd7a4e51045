"""Activations, softmax, bias and dropout: values at the edges, names, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt.dtypes import FLOATING, DType
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.nn.activations import (
    crelu,
    elu,
    gelu,
    leaky_relu,
    relu,
    relu6,
    selu,
    silu,
    softplus,
    softsign,
    swish,
)
from flowrt.graph.ops.nn.bias import bias_add, dropout, relu_layer, xw_plus_b
from flowrt.graph.ops.nn.softmax import log_softmax, softmax
from tests.graph.evaluation import value_of

X = np.array([-1000.0, -20, -1, 0, 0.5, 7, 1000])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


def normal_probability(x: Any) -> Any:
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])


FUNCTIONS: dict[str, tuple[Any, Any, Any]] = {
    # name: (function, value, derivative)
    "relu": (relu, np.maximum(X, 0), X > 0),
    "relu6": (relu6, np.clip(X, 0, 6), (X > 0) & (X < 6)),
    "leaky_relu": (leaky_relu, np.where(X > 0, X, 0.2 * X), np.where(X > 0, 1, 0.2)),
    "elu": (
        elu,
        np.where(X > 0, X, np.expm1(np.minimum(X, 0))),
        np.where(X > 0, 1, np.exp(np.minimum(X, 0))),
    ),
    "selu": (
        selu,
        1.0507009873554805 * np.where(X > 0, X, 1.6732632423543772 * np.expm1(np.minimum(X, 0))),
        1.0507009873554805 * np.where(X >= 0, 1, 1.6732632423543772 * np.exp(np.minimum(X, 0))),
    ),
    "softplus": (softplus, np.logaddexp(X, 0), sigmoid(X)),
    "softsign": (softsign, X / (1 + np.abs(X)), 1 / (1 + np.abs(X)) ** 2),
    "swish": (swish, X * sigmoid(X), sigmoid(X) * (1 + X * (1 - sigmoid(X)))),
    "gelu": (
        gelu,
        X * normal_probability(X),
        normal_probability(X) + X * np.exp(-(X**2) / 2) / np.sqrt(2 * np.pi),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_right_far_out_too(name: str) -> None:
    function, value, derivative = FUNCTIONS[name]
    with Graph():
        x = constant(X)
        y = function(x)
        np.testing.assert_allclose(value_of(y), value, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(value_of(gradients(y, x)[0]), derivative, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", sorted(FLOATING, key=lambda d: d.name))
def test_every_floating_dtype_is_kept(name: str, dtype: DType) -> None:
    with Graph():
        x = constant(np.array([-1, 0.5], dtype.np))
        y = FUNCTIONS[name][0](x)
        (dx,) = gradients(y, x)
        assert value_of(y).dtype == value_of(dx).dtype == dtype.np


def test_the_gradient_of_each_activation_is_one_operation() -> None:
    for function, kind in [
        (relu, "ReluGrad"),
        (elu, "EluGrad"),
        (softplus, "SoftplusGrad"),
        (relu6, "Relu6Grad"),
    ]:
        with Graph():
            x = placeholder("float32", [3])
            assert gradients(function(x), x)[0].op.type == kind


@pytest.mark.parametrize("function", [relu, relu6, elu, selu])
def test_nobody_keeps_the_input_for_a_gradient_that_the_output_gives(function: Any) -> None:
    with Graph().as_default():
        x = placeholder("float32", [3])
        y = function(x)
        assert gradients(y, x)[0].op.inputs[1] is y


def test_leaky_relu_takes_any_slope_and_integers() -> None:
    with Graph():
        x = np.array([-2, 0, 3])
        for alpha in (0.0, 0.3, 1.5, -0.5):
            expected = np.where(x > 0, x, alpha * x)
            np.testing.assert_allclose(value_of(leaky_relu(constant(x * 1.0), alpha)), expected)
        assert leaky_relu(constant(x)).dtype.name == "float32"


def test_composites_are_what_they_are_made_of() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    with Graph():
        np.testing.assert_array_equal(
            value_of(crelu(constant(x))), np.maximum(np.concatenate([x, -x], -1), 0)
        )
        np.testing.assert_array_equal(
            value_of(crelu(constant(x), axis=0)), np.maximum(np.concatenate([x, -x]), 0)
        )
        np.testing.assert_allclose(value_of(swish(constant(x), 2.0)), x * sigmoid(2 * x))
        np.testing.assert_allclose(value_of(silu(constant(x))), x * sigmoid(x))
        approximate = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        np.testing.assert_allclose(value_of(gelu(constant(x), approximate=True)), approximate)
        with pytest.raises(DTypeError, match="gelu: expected a floating dtype"):
            gelu(constant(3))


def test_names_are_tensorflows() -> None:
    with Graph():
        x = placeholder("float32", [2, 3])
        assert relu(x).op.name == "Relu"
        assert softmax(x, name="probabilities").op.name == "probabilities"
        assert softmax(x, axis=0).op.name == "Softmax"
        assert bias_add(x, [1.0, 2, 3]).op.name == "BiasAdd"
        assert xw_plus_b(x, np.zeros((3, 1), np.float32), [0.0], name="logits").op.name == "logits"


# --- softmax


@pytest.mark.parametrize("axis", [None, -1, 0, 1, -3])
def test_softmax_is_a_distribution_along_its_axis(axis: int | None) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5)) * 300
    along = -1 if axis is None else axis
    exact = np.exp(x - x.max(along, keepdims=True))
    exact /= exact.sum(along, keepdims=True)
    with Graph():
        y = softmax(constant(x), axis)
        assert y.shape.as_list() == [3, 4, 5]
        np.testing.assert_allclose(value_of(y), exact, atol=1e-14)
        logarithm = value_of(log_softmax(constant(x), axis))
        assert np.isfinite(logarithm).all()
        np.testing.assert_allclose(np.exp(logarithm), exact, atol=1e-12)


def test_log_softmax_keeps_what_softmax_loses() -> None:
    with Graph():
        np.testing.assert_array_equal(value_of(log_softmax(constant([[1000.0, 0.0]]))), [[0, -1000]])
        np.testing.assert_array_equal(value_of(softmax(constant([[-np.inf, 0.0]]))), [[0, 1]])


def test_a_wrong_axis_is_an_error() -> None:
    with Graph():
        with pytest.raises(InvalidArgumentError, match=r"axis in \[-2, 2\); got 2"):
            softmax(constant([[1.0]]), 2)
        with pytest.raises(InvalidArgumentError, match="rank 1 or more"):
            softmax(constant(1.0))
        with pytest.raises(InvalidArgumentError, match="unknown rank"):
            softmax(placeholder("float32"), 1)
        assert softmax(placeholder("float32"), dim=-1).shape.rank is None


# --- bias


@pytest.mark.parametrize(
    ("layout", "shape", "axis"),
    [(None, (2, 3), 1), ("NHWC", (2, 4, 5, 3), 3), ("NCHW", (2, 3, 4, 5), 1), ("NCDHW", (2, 3, 1, 2, 2), 1)],
)
def test_bias_is_added_along_the_channels(layout: str | None, shape: tuple[int, ...], axis: int) -> None:
    x, b = np.random.default_rng(0).standard_normal(shape), np.array([1.0, 2, 3])
    with Graph():
        value, bias = constant(x), constant(b)
        y = bias_add(value, bias, layout)
        np.testing.assert_array_equal(value_of(y), np.moveaxis(np.moveaxis(x, axis, -1) + b, -1, axis))
        dvalue, dbias = gradients(y, [value, bias], [constant(x)])
        np.testing.assert_allclose(value_of(dbias), np.moveaxis(x, axis, -1).reshape(-1, 3).sum(0))
        np.testing.assert_array_equal(value_of(dvalue), x)


def test_a_bias_that_does_not_fit_is_an_error_when_built_and_when_run() -> None:
    with Graph():
        with pytest.raises(InvalidArgumentError, match="for each of the 3 channels; got 2"):
            bias_add(constant(np.zeros((2, 3))), constant(np.zeros(2)))
        with pytest.raises(InvalidArgumentError, match="rank 2 or more"):
            bias_add(constant(np.zeros(3)), constant(np.zeros(3)))
        with pytest.raises(InvalidArgumentError, match="data format"):
            bias_add(constant(np.zeros((2, 3))), constant(np.zeros(3)), "HWC")
        x = placeholder("float32")
        with pytest.raises(InvalidArgumentError, match=r"a bias for each channel of \[2, 4\]; got 1"):
            value_of(bias_add(x, [1.0]), {x: np.zeros((2, 4))})


def test_layers_of_a_matrix_and_a_bias() -> None:
    x, w, b = (np.random.default_rng(0).standard_normal(s) for s in ((2, 3), (3, 4), (4,)))
    with Graph():
        np.testing.assert_allclose(value_of(xw_plus_b(constant(x), constant(w), constant(b))), x @ w + b)
        np.testing.assert_allclose(
            value_of(relu_layer(constant(x), constant(w), constant(b))), np.maximum(x @ w + b, 0)
        )


# --- dropout


def dropped(x: Any, **arguments: Any) -> Any:
    with Graph():
        return value_of(dropout(constant(x), seed=7, **arguments))


@pytest.mark.parametrize("arguments", [dict(rate=0.3), dict(keep_prob=0.7)])
@pytest.mark.parametrize("dtype", sorted(FLOATING, key=lambda d: d.name))
def test_dropout_zeroes_its_rate_and_scales_the_rest(arguments: dict[str, float], dtype: DType) -> None:
    y = dropped(np.ones((100, 100), dtype.np), **arguments)
    assert y.dtype == dtype.np
    kept = y != 0
    assert abs(kept.mean() - 0.7) < 0.02  # 4 standard deviations
    np.testing.assert_allclose(y[kept].astype(float), 1 / 0.7, rtol=1e-2)


def test_dropout_takes_its_rate_from_a_tensor() -> None:
    for key, expected in [("rate", 0.75), ("keep_prob", 0.25)]:
        with Graph():
            p = placeholder("float32", [])
            y = value_of(dropout(constant(np.ones(4000, np.float32)), seed=1, **{key: p}), {p: 0.25})
            assert abs((y != 0).mean() - expected) < 0.04


def test_dropout_shares_a_fate_along_the_ones_of_the_noise_shape() -> None:
    y = dropped(np.ones((50, 4, 3)), rate=0.5, noise_shape=[None, 1, 3])
    assert (y == y[:, :1]).all()
    assert 0 < (y[:, 0] == 0).mean() < 1


def test_dropout_of_nothing_is_the_input_itself() -> None:
    with Graph():
        x = constant(np.ones(3))
        assert dropout(x, rate=0) is x
        assert dropout(x, keep_prob=1.0) is x


def test_the_gradient_of_dropout_is_zero_where_the_value_is() -> None:
    with Graph():
        x = placeholder("float64", [None, 8])
        y = dropout(x, rate=0.5, seed=3)
        pair: Tensor = y + 1000 * gradients(y, x)[0]  # one run, so that both see one draw
        value = value_of(pair, {x: np.ones((5, 8))})
        assert set(np.unique(value)) == {0.0, 2002.0}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(rate=1.0), InvalidArgumentError, r"rate in \[0, 1\)"),
        (dict(keep_prob=0.0), InvalidArgumentError, r"keep_prob in \(0, 1\]; got 0\.0"),
        (
            dict(keep_prob=1.5),
            InvalidArgumentError,
            r"\.py:\d+\): dropout: .* keep_prob in \(0, 1\]; got 1\.5",
        ),
        (dict(), InvalidArgumentError, "either keep_prob or rate"),
        (dict(rate=0.5, keep_prob=0.5), InvalidArgumentError, "either keep_prob or rate"),
    ],
)
def test_wrong_rates_are_errors(arguments: dict[str, float], error: type[Exception], message: str) -> None:
    with Graph(), pytest.raises(error, match=message):
        dropout(constant([1.0]), **arguments)


def test_dropout_of_integers_is_an_error() -> None:
    with Graph(), pytest.raises(DTypeError, match="floating"):
        dropout(constant([1]), rate=0.5)
