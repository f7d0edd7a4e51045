"""Convolutions with their epilogues: what is fused, and that results and gradients are those of the steps one
by one, whatever the layout, padding, groups and batch.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import flowrt as tf
from flowrt.device.onednn import onednn
from flowrt.errors import InvalidArgumentError
from flowrt.graph.ops.nn.windows import join_layout
from tests.executor.fused_sessions import plans_of

pytestmark = pytest.mark.skipif(not onednn.is_available(), reason=str(onednn.why_unavailable()))

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_JIT", "eager")


def epilogues_of(session: Any) -> list[list[str]]:
    """The operations that follow each fused convolution of a session's plans."""
    return [
        [step.node.op.name for step in node.attrs["epilogue"].steps]
        for plan in plans_of(session)
        for part in plan.partitions.values()
        for node in part.subgraph
        if "epilogue" in node.attrs
    ]


def run(fetches: Any, feeds: Any = None) -> tuple[Any, list[list[str]]]:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feeds), epilogues_of(session)


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def images(batch: int | None = 2) -> Any:
    return tf.placeholder(tf.float32, [batch, 6, 6, 4])


def convolved(x: Any, filters: int = 4, **options: Any) -> Any:
    kernel = tf.Variable(floats(3, 3, int(x.shape[-1]), filters))
    return tf.nn.conv2d(x, kernel, strides=[1] * 4, padding="SAME", **options)


def vectors(count: int, size: int = 4) -> list[Any]:
    return [tf.Variable(0.5 + abs(floats(size, seed=i))) for i in range(count)]


@st.composite
def nets(draw: st.DrawFn) -> tuple[str, dict[str, Any], list[Any], list[str]]:
    """(operation, attributes, [x, filter, residual, four vectors], steps)."""
    kind = draw(st.sampled_from(["Conv2D", "Conv2D", "DepthwiseConv2dNative", "Conv3D"]))
    spatial = 3 if kind == "Conv3D" else 2
    last, first = ("NDHWC", "NCDHW") if spatial == 3 else ("NHWC", "NCHW")
    layout = draw(st.sampled_from([last, last, first]))
    groups, per_group, filters = (draw(st.integers(1, n)) for n in (3, 9, 9))
    if kind == "DepthwiseConv2dNative":
        inner = (groups, filters)
        channels, outer = groups, groups * filters
    else:
        inner = (per_group, groups * filters)
        channels, outer = groups * per_group, groups * filters
    size, taps, stride = draw(st.integers(4, 9)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    padding = draw(st.sampled_from(["SAME", "VALID"]))
    out = -(-size // stride) if padding == "SAME" else (size - taps) // stride + 1
    batch, seed = draw(st.integers(1, 3)), draw(st.integers(0, 2**32))
    arrays = [
        floats(*join_layout(batch, [size] * spatial, channels, layout), seed=seed),
        floats(*[taps] * spatial, *inner, seed=seed + 1),
        floats(*join_layout(batch, [out] * spatial, outer, layout), seed=seed + 2),
        *[0.5 + abs(floats(outer, seed=seed + i)) for i in range(3, 7)],
    ]
    attrs = {"strides": join_layout(1, [stride] * spatial, 1, layout), "padding": padding}
    kinds = ["relu", "add", "added", "bias", "norm", "vector", "hard_swish", "swish", "linear", "relu6"]
    steps = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))
    return kind, {**attrs, "data_format": layout}, arrays, steps


def net(kind: str, attrs: dict[str, Any], arrays: list[Any], steps: list[str]) -> Any:
    x, filter, residual, *given_vectors = arrays
    make = {"Conv2D": tf.nn.conv2d, "Conv3D": tf.nn.conv3d}.get(kind, tf.nn.depthwise_conv2d)
    y = make(x, filter, **attrs)
    layout = "NCHW" if attrs["data_format"].startswith("NC") else "NHWC"
    scale, offset, mean, variance = given_vectors
    for step in steps:
        if step == "relu":
            y = tf.nn.relu(y)
        elif step == "relu6":
            y = tf.nn.relu6(y)
        elif step == "hard_swish":
            y = tf.minimum(tf.maximum(y + 3.0, 0.0), 6.0) * y / 6.0
        elif step == "swish":
            y = y * tf.sigmoid(1.5 * y)
        elif step == "linear":
            y = (y - 0.5) * 0.75
        elif step == "add":
            y = y + residual
        elif step == "added":
            y = tf.add(residual, y)
        elif step == "bias":
            y = tf.nn.bias_add(y, offset, data_format=layout)
        elif step == "vector":
            y = y + (offset if layout == "NHWC" else offset[:, *[None] * (len(y.shape) - 2)])
        elif len(y.shape) == 4:
            statistics = dict(mean=mean, variance=variance, is_training=False, data_format=layout)
            y = tf.nn.fused_batch_norm(y, scale, offset, **statistics)[0]
    return y


@settings(max_examples=settings.default.max_examples // 2)
@given(nets(), st.booleans(), st.booleans())
def test_random_epilogues(case: Any, is_static: bool, is_fed: bool) -> None:
    """Against the operations one by one in float64."""
    kind, attrs, arrays, steps = case

    def found(dtype: Any, fetch: Any) -> Any:
        with tf.Graph().as_default():
            x = tf.placeholder(dtype, arrays[0].shape if is_static else [None, *arrays[0].shape[1:]])
            others = [tf.constant(a.astype(dtype.as_numpy_dtype)) for a in arrays[1:]]
            if not is_fed:
                others = [tf.Variable(other) for other in others]
            y = net(kind, attrs, [x, *others], steps)
            return run(fetch(y, x, others), {x: arrays[0]})

    exact, _ = found(tf.float64, lambda y, x, others: y)
    result, epilogues = found(tf.float32, lambda y, x, others: y)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, exact, rtol=2e-4, atol=2e-4)
    assert len(epilogues) <= 1
    if attrs["data_format"].startswith("N") and attrs["data_format"].endswith("C") and is_static:
        assert epilogues or (steps[0] == "norm" and kind == "Conv3D")

    def all_gradients(y: Any, x: Any, others: Any) -> Any:
        sum_of = tf.reduce_sum(tf.square(y))
        return [g for g in tf.gradients(sum_of, [x, others[0]]) if g is not None]

    exact, _ = found(tf.float64, all_gradients)
    for mine, theirs in zip(found(tf.float32, all_gradients)[0], exact, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3 * (1 + abs(theirs).max()))


def hard_swish(x: Any) -> Any:
    return x * tf.minimum(tf.maximum(x + 3.0, 0.0), 6.0) / 6.0


@pytest.mark.parametrize(
    ("function", "steps"),
    [
        pytest.param(hard_swish, ["Mul", "RealDiv"], id="hard swish"),
        pytest.param(
            lambda x: tf.maximum(tf.minimum(0.2 * x + 0.5, 1.0), 0.0) * x, ["Mul"], id="other order"
        ),
        pytest.param(lambda x: x * tf.nn.relu6(x + 3.0) / 6.0, ["Mul", "RealDiv"], id="by relu6"),
        pytest.param(lambda x: tf.minimum(tf.maximum(x, 0.0), 0.5), ["Minimum"], id="clip"),
        pytest.param(
            lambda x: tf.maximum(tf.minimum(x, 0.5), 0.0) + 1.0, ["Maximum", "AddV2"], id="from below"
        ),
        pytest.param(lambda x: tf.maximum(tf.minimum(x, 0.5), -1.0), None, id="no clip from zero"),
        pytest.param(lambda x: tf.maximum(tf.minimum(x, -0.5), 0.0), None, id="nothing between"),
        pytest.param(lambda x: 2.0 * hard_swish(x) - 1.0, ["Mul", "RealDiv", "Mul", "Sub"], id="and a line"),
        pytest.param(lambda x: x * tf.minimum(tf.maximum(x, -1.0), 6.0), None, id="not from zero"),
        pytest.param(lambda x: x * tf.minimum(tf.maximum(x + 3.0, 0.0), x), None, id="no number"),
        pytest.param(lambda x: x + tf.minimum(tf.maximum(x + 3.0, 0.0), 6.0), None, id="no product"),
        pytest.param(lambda x: x * tf.tanh(tf.sin(x)), None, id="no bounds"),
        pytest.param(lambda x: tf.sigmoid(x) * x, ["Mul"], id="swish"),
        pytest.param(lambda x: x * tf.sigmoid(x / 2.0) + 1.0, ["Mul", "AddV2"], id="narrower swish"),
        pytest.param(lambda x: x * tf.sigmoid(x + 1.0), None, id="a swish beside zero"),
        pytest.param(lambda x: 1.0 / x, None, id="a quotient the other way round"),
    ],
)
def test_functions_of_the_result_alone(function: Any, steps: list[str] | None) -> None:
    """They are what their operations are, of numbers that are none and infinite ones too."""
    value = floats(2, 6, 6, 4)
    value[0, 0, 0], value[1, 5, 5] = [np.nan, 1, 1, 1], [np.inf, 1, 1, -np.inf]
    x, kernel = images(), floats(1, 1, 4, 4)
    found, epilogues = run(function(tf.nn.conv2d(x, kernel, 1, "SAME")), {x: value})
    assert epilogues == ([] if steps is None else [steps])
    with tf.Graph().as_default():
        with np.errstate(invalid="ignore"):
            product = value.astype(np.float64) @ kernel[0, 0]
        exact = tf.constant(product.astype(np.float32))
        expected, _ = run(function(exact))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_function_that_is_read_inside_stays_as_it_is() -> None:
    x = images()
    y = convolved(x)
    gate = tf.minimum(tf.maximum(y + 3.0, 0.0), 6.0)
    (found, inside), epilogues = run([y * gate, gate], {x: floats(2, 6, 6, 4)})
    assert found.shape == inside.shape
    assert epilogues == []


def test_a_residual_block_is_two_operations() -> None:
    x = images()
    parameters = vectors(4)

    def normalized(y: Any) -> Any:
        scale, offset, mean, variance = parameters
        return tf.nn.fused_batch_norm(y, scale, offset, mean, variance, is_training=False)[0]

    h = tf.nn.relu(normalized(convolved(x)))
    y = tf.nn.relu(x + normalized(convolved(h)))
    _, epilogues = run(y, {x: floats(2, 6, 6, 4)})
    assert epilogues == [["FusedBatchNormV3", "Relu"], ["FusedBatchNormV3", "AddV2", "Relu"]]


def test_a_tensor_that_something_else_reads_stays() -> None:
    """A fetch, another operation, a gradient, a target and a control edge."""
    x = images()
    y = convolved(x)
    z = tf.nn.relu(tf.nn.bias_add(y, vectors(1)[0]))
    feed = {x: floats(2, 6, 6, 4)}
    (found, inner), epilogues = run([z, y], feed)
    assert not epilogues
    np.testing.assert_allclose(found, np.maximum(inner + 0.5 + abs(floats(4)), 0), 1e-5)
    assert not run(z + tf.reduce_sum(y), feed)[1]
    assert not run([z, y.op], feed)[1]
    with tf.control_dependencies([y]):
        after = tf.identity(x)
    assert not run([z, after], feed)[1]
    norm = tf.nn.fused_batch_norm(y, *vectors(4), is_training=False)
    assert run(norm[0], feed)[1] == [["FusedBatchNormV3"]]
    assert not run([norm[0], norm[1]], feed)[1]
    scale, offset = vectors(2)
    w = tf.nn.fused_batch_norm(convolved(x), scale, offset, *vectors(2), is_training=False)[0]
    assert not run(tf.gradients(tf.reduce_sum(w), [scale, x]), feed)[1]


def test_what_is_no_epilogue() -> None:
    x = images()
    feed = {x: floats(2, 6, 6, 4)}
    y = convolved(x)
    training = tf.nn.fused_batch_norm(y, *vectors(2))[0]
    wider = y + tf.zeros([3, 1, 6, 6, 4])
    for other in (training, wider, tf.nn.tanh(y), y + y, y + tf.zeros([6, 1]), tf.cast(y, tf.float64)):
        assert not run(other, feed)[1], other.op.type
    double = tf.nn.conv2d(tf.cast(x, tf.float64), tf.ones([1, 1, 4, 4], tf.float64), [1] * 4, "SAME")
    assert not run(tf.nn.relu(double), feed)[1]


def test_an_inner_tensor_may_be_fetched_later() -> None:
    """By the plan that grows from the one that has fused it."""
    x = images()
    y = convolved(x)
    z = tf.nn.relu(y)
    feed = {x: floats(2, 6, 6, 4)}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        first = session.run(z, feed)
        again, inner = session.run([z, y], feed)
        np.testing.assert_allclose(again, first, 1e-6)
        np.testing.assert_array_equal(again, np.maximum(inner, 0))


@pytest.mark.parametrize(("activation", "largest"), [(tf.nn.relu, np.inf), (tf.nn.relu6, 6)], ids=["", "6"])
def test_nan_and_infinity_pass_a_relu(activation: Any, largest: float) -> None:
    """A relu that made 0 of NaN would hide it from all that follows."""
    x = images()
    y = activation(tf.nn.conv2d(x, tf.ones([1, 1, 4, 1]), strides=[1] * 4, padding="SAME"))
    value = np.ones([2, 6, 6, 4], np.float32)
    value[0, 0, 0, 0], value[0, 1, 0, 0], value[0, 2, 0, 0], value[0, 3, 0, 0] = np.nan, np.inf, -9, -np.inf
    found, epilogues = run(y, {x: value})
    assert epilogues == [[y.op.type]]
    assert np.isnan(found[0, 0, 0, 0])
    assert found[0, 1, 0, 0] == largest
    assert found[0, 2, 0, 0] == 0
    assert not np.signbit(found[0, 2, 0, 0])
    assert np.isnan(found[0, 3, 0, 0])  # 0 from the operation itself
    assert np.isfinite(found).sum() == found.size - 3 + np.isfinite(largest)


def test_shapes_that_broadcast_when_they_are_known() -> None:
    """The batch of the residual is 1, or more than that of the images."""
    for batch, other in ((3, 1), (1, 3)):
        with tf.Graph().as_default():
            all_x, all_h, counts = images(3), images(3), tf.placeholder(tf.int32, [2])
            x, h = (v[: counts[i]] for i, v in enumerate((all_x, all_h)))
            feed = {all_x: floats(3, 6, 6, 4), all_h: floats(3, 6, 6, 4, seed=1), counts: [batch, other]}
            y = convolved(x)
            (found, epilogues), (inner, _) = run(tf.nn.relu(y + h), feed), run(y, feed)
            assert epilogues == [["AddV2", "Relu"]]
            np.testing.assert_allclose(found, np.maximum(inner + feed[all_h][:other], 0), 1e-5, 1e-5)


def test_a_mistake_names_the_operation_that_has_it() -> None:
    x = tf.placeholder(tf.float32, [None, None, None, None])
    y = tf.nn.conv2d(x, tf.ones([3, 3, 4, 4]), strides=[1] * 4, padding="SAME", name="images")
    z = tf.nn.relu(tf.nn.bias_add(y, tf.ones([4])))
    with tf.Session() as session, pytest.raises(InvalidArgumentError, match="images"):
        session.run(z, {x: np.ones([1, 5, 5, 3])})


def test_the_step_of_a_loop() -> None:
    x = images()
    kernel = tf.constant(floats(3, 3, 4, 4) / 9)

    def body(i: Any, h: Any) -> Any:
        return i + 1, tf.nn.relu(tf.nn.conv2d(h, kernel, strides=[1] * 4, padding="SAME") + h)

    _, y = tf.while_loop(lambda i, h: i < 3, body, [tf.constant(0), x])
    feed = {x: floats(2, 6, 6, 4)}
    found, _ = run(y, feed)
    h: Any = feed[x]
    for _ in range(3):
        h, _ = run(tf.nn.relu(tf.nn.conv2d(h, kernel, strides=[1] * 4, padding="SAME") + h))
    np.testing.assert_allclose(found, h, 1e-4, 1e-4)


def test_what_another_device_waits_for_is_sent_beside_an_epilogue(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    with tf.device("/cpu:0"):
        x = tf.placeholder(tf.float32, [2, 8, 8, 16])
        y = tf.nn.relu(tf.nn.conv2d(x, tf.constant(1.0, shape=[3, 3, 16, 16]), [1, 1, 1, 1], "SAME") * 0.5)
        shifted = x + 1.0
    with tf.device("/cpu:1"):
        total = tf.reduce_sum(shifted) + tf.reduce_sum(y)
    options = tf.RunOptions(timeout_in_ms=30_000)
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        for _ in range(4):
            found = session.run(total, {x: np.ones([2, 8, 8, 16])}, options=options)
    assert found == 2 * 2 * 1024 + 2 * 16 * 8 * 22 * 22
