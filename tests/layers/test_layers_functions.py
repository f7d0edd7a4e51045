"""``tf.layers``: values against NumPy, names, sharing, losses and updates, and how they train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.layers.regularizers import l1_l2_regularizer, l1_regularizer, l2_regularizer

RNG = np.random.default_rng(0)


def initialized() -> Any:
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


def images(*shape: int) -> Any:
    return RNG.standard_normal(shape)


def names() -> list[str]:
    return [v.op.name for v in tf.global_variables()]


# --- dense


def test_dense_is_a_matrix_product_a_bias_and_an_activation() -> None:
    x = images(4, 3)
    y = tf.layers.dense(x, 5, tf.nn.relu, bias_initializer=tf.ones_initializer())
    kernel, bias = tf.global_variables()
    assert y.op.name == "dense/Relu"
    with initialized() as session:
        value, w, b = session.run([y, kernel, bias])
    np.testing.assert_allclose(value, np.maximum(x @ w + b, 0))
    assert b.tolist() == [1.0] * 5


def test_dense_works_along_the_last_dimension() -> None:
    x = images(2, 3, 4)
    y = tf.layers.dense(tf.constant(x), 5, use_bias=False)
    assert y.shape.as_list() == [2, 3, 5]
    with initialized() as session:
        value, w = session.run([y, tf.global_variables()[0]])
    np.testing.assert_allclose(value, x @ w)


def test_dense_needs_a_known_last_dimension_and_floats() -> None:
    with pytest.raises(InvalidArgumentError, match=r"layer 'dense': expected dimension -1 .* to be known"):
        tf.layers.dense(tf.placeholder(tf.float32, [2, None]), 3)
    with pytest.raises(DTypeError, match="floating dtype; got int32"):
        tf.layers.dense(tf.placeholder(tf.int32, [2, 2]), 3)


# --- names and sharing


def test_names_are_tensorflows() -> None:
    x = tf.placeholder(tf.float32, [None, 8, 8, 3])
    h = tf.layers.conv2d(x, 4, 3)
    h = tf.layers.max_pooling2d(h, 2, 2)
    assert h.op.name == "max_pooling2d/MaxPool"
    h = tf.layers.batch_normalization(h, training=True)
    h = tf.layers.flatten(h)
    h = tf.layers.dense(h, 5, name="fc")
    tf.layers.dense(tf.layers.dense(h, 2), 2)
    assert names() == [
        "conv2d/kernel", "conv2d/bias", "batch_normalization/gamma", "batch_normalization/beta",
        "batch_normalization/moving_mean", "batch_normalization/moving_variance", "fc/kernel", "fc/bias",
        "dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias",
    ]  # fmt: skip
    assert [op.name for op in tf.get_collection(tf.GraphKeys.UPDATE_OPS)] == [
        "batch_normalization/AssignMovingAvg/AssignSubVariableOp",
        "batch_normalization/AssignMovingAvg_1/AssignSubVariableOp",
    ]


def test_a_layer_object_shares_its_variables_between_calls() -> None:
    layer, x = tf.layers.Dense(3), tf.ones([2, 4])
    a, b = layer(x), layer.apply(x)
    other = tf.layers.Dense(3, name="mine")(x)
    again = tf.layers.Dense(3, name="mine")(x)
    assert [t.op.name for t in (a, b, other, again)] == [
        "dense/BiasAdd", "dense/BiasAdd_1", "mine/BiasAdd", "mine_1/BiasAdd",
    ]  # fmt: skip
    assert [w.op.name for w in layer.weights] == ["dense/kernel", "dense/bias"]
    assert layer.kernel is layer.weights[0]
    assert layer.bias is layer.weights[1]
    assert layer.scope_name == "dense"
    assert layer.count_params() == 15
    with initialized() as session:
        first, second = session.run([a, b])
    assert first.tolist() == second.tolist()


def test_a_name_is_taken_once_unless_reused() -> None:
    x = tf.ones([2, 4])
    tf.layers.dense(x, 3, name="d")
    with pytest.raises(ValueError, match="variable 'd/kernel': expected a new name"):
        tf.layers.dense(x, 3, name="d")
    tf.layers.dense(x, 3, name="d", reuse=True)
    assert names() == ["d/kernel", "d/bias"]


def test_enclosing_scopes_share_layers() -> None:
    def net(x: Any) -> Any:
        return tf.layers.dense(tf.layers.dense(x, 4), 4)

    x = tf.ones([2, 4])
    with tf.variable_scope("net"):
        a = net(x)
    with tf.variable_scope("net", reuse=True):
        b = net(x)
    assert names() == ["net/dense/kernel", "net/dense/bias", "net/dense_1/kernel", "net/dense_1/bias"]
    assert [t.op.name for t in (a, b)] == ["net/dense_1/BiasAdd", "net_1/dense_1/BiasAdd"]


def test_a_frozen_layer_is_not_trained() -> None:
    layer = tf.layers.Dense(3, trainable=False)
    layer(tf.ones([2, 4]))
    assert not tf.trainable_variables()
    assert not layer.trainable_weights
    assert len(layer.non_trainable_weights) == 2


# --- convolutions: against loops over windows


def convolved(x: Any, kernel: Any, stride: int, dilation: int) -> Any:
    """A valid convolution of images [n, h, w, c]."""
    kh, kw, _, filters = kernel.shape
    spans = (kh - 1) * dilation + 1, (kw - 1) * dilation + 1
    height, width = ((n - s) // stride + 1 for n, s in zip(x.shape[1:3], spans, strict=True))
    y = np.empty((len(x), height, width, filters))
    for i in range(height):
        for j in range(width):
            a, b = i * stride, j * stride
            window = x[:, a : a + spans[0] : dilation, b : b + spans[1] : dilation]
            y[:, i, j] = np.tensordot(window, kernel, 3)
    return y


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_conv2d_sums_over_windows(data_format: str, stride: int, dilation: int) -> None:
    x = images(2, 7, 6, 3)
    first = data_format == "channels_first"
    given = np.moveaxis(x, -1, 1) if first else x
    y = tf.layers.conv2d(given, 4, (3, 2), stride, dilation_rate=dilation, data_format=data_format)
    with initialized() as session:
        value, kernel = session.run([y, tf.global_variables()[0]])
    expected = convolved(x, kernel, stride, dilation)
    np.testing.assert_allclose(np.moveaxis(value, 1, -1) if first else value, expected, rtol=1e-10)
    assert y.shape.as_list() == list(value.shape)


def test_conv1d_is_conv2d_of_one_row_and_may_be_causal() -> None:
    x = images(2, 6, 3)
    y = tf.layers.conv1d(x, 4, 3, padding="causal", use_bias=False)
    with initialized() as session:
        value, kernel = session.run([y, tf.global_variables()[0]])
    padded = np.pad(x, [(0, 0), (2, 0), (0, 0)])[:, None]
    np.testing.assert_allclose(value, convolved(padded, kernel[None], 1, 1)[:, 0], rtol=1e-10)


@pytest.mark.parametrize(
    "options", [{"strides": 2, "padding": "same"}, {"dilation_rate": 2}], ids=["steps", "rate"]
)
def test_separable_conv1d_is_separable_conv2d_of_one_row(options: dict[str, Any]) -> None:
    x = np.random.default_rng(0).normal(size=(2, 9, 3)).astype(np.float32)
    y = tf.layers.separable_conv1d(x, 4, 3, depth_multiplier=2, activation=tf.sin, name="one", **options)
    rate = options.get("dilation_rate", 1)
    rows = {**options, "dilation_rate": (1, rate)}
    z = tf.layers.separable_conv2d(
        x[:, None], 4, (1, 3), depth_multiplier=2, activation=tf.sin, name="two", **rows
    )
    one, two = (tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope) for scope in ("one", "two"))
    assert [v.shape.as_list() for v in one] == [[3, 3, 2], [1, 6, 4], [4]]
    shared = [tf.assign(w, tf.reshape(v, w.shape)) for v, w in zip(one, two, strict=True)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(shared)
        found, expected = session.run([y, z])
    np.testing.assert_allclose(found, expected[:, 0], rtol=1e-5, atol=1e-6)


def test_conv3d_sums_over_windows() -> None:
    x = images(1, 3, 3, 3, 2)
    y = tf.layers.conv3d(x, 4, 3, use_bias=False)
    with initialized() as session:
        value, kernel = session.run([y, tf.global_variables()[0]])
    np.testing.assert_allclose(value[0, 0, 0, 0], np.tensordot(x[0], kernel, 4), rtol=1e-10)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_conv2d_transpose_is_the_gradient_of_conv2d(padding: str) -> None:
    small = images(2, 4, 3, 5)
    layer = tf.layers.Conv2DTranspose(2, 3, 2, padding, use_bias=False)
    large = layer(tf.constant(small))
    assert large.shape.as_list() == [2, *((8, 6) if padding == "same" else (9, 7)), 2]
    x = tf.zeros_like(large)
    y = tf.nn.conv2d(x, layer.kernel, [1, 2, 2, 1], padding.upper())
    (gradient,) = tf.gradients(y, x, grad_ys=tf.constant(small))
    with initialized() as session:
        value, expected = session.run([large, gradient])
    np.testing.assert_allclose(value, expected, rtol=1e-10)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_dilated_conv2d_transpose_is_the_gradient_of_the_dilated_conv2d(padding: str) -> None:
    small = images(2, 4, 3, 5)
    layer = tf.keras.layers.Conv2DTranspose(2, 3, padding=padding, dilation_rate=2, use_bias=False)
    large = layer(tf.constant(small))
    assert large.shape.as_list() == [2, *((4, 3) if padding == "same" else (8, 7)), 2]
    x = tf.zeros_like(large)
    y = tf.nn.conv2d(x, layer.kernel, [1] * 4, padding.upper(), dilations=[1, 2, 2, 1])
    (gradient,) = tf.gradients(y, x, grad_ys=tf.constant(small))
    with initialized() as session:
        value, expected = session.run([large, gradient])
    np.testing.assert_allclose(value, expected, rtol=1e-10)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("end", [0, 1])
def test_output_padding_sets_the_lengths_of_conv2d_transpose(padding: str, end: int) -> None:
    layer = tf.keras.layers.Conv2DTranspose(2, 3, 2, padding, end)
    y = layer(tf.placeholder(tf.float32, [1, None, 4, 5]))
    length = {"same": 7, "valid": 9}[padding] + end  # (4 - 1) * 2 + 3, less 2 with "same"
    assert y.shape.as_list() == [1, None, length, 2]
    config = layer.get_config()
    assert type(layer).from_config(config).output_padding == (end, end)


def test_output_padding_of_a_whole_stride_is_an_error() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"less than the strides \(2, 2\); got 2"):
        tf.keras.layers.Conv2DTranspose(2, 3, 2, output_padding=2)


def test_conv2d_transpose_follows_shapes_known_at_run_time() -> None:
    x = tf.placeholder(tf.float32, [None, None, 3, 2])
    y = tf.layers.conv2d_transpose(x, 4, 3, 2)
    assert y.shape.as_list() == [None, None, 7, 4]
    with initialized() as session:
        assert session.run(y, {x: np.ones((2, 5, 3, 2))}).shape == (2, 11, 7, 4)


def test_separable_conv2d_convolves_channels_apart_then_mixes_them() -> None:
    x = images(2, 5, 5, 3)
    y = tf.layers.separable_conv2d(x, 4, 3, depth_multiplier=2, use_bias=False)
    assert names() == ["separable_conv2d/depthwise_kernel", "separable_conv2d/pointwise_kernel"]
    with initialized() as session:
        value, depthwise, pointwise = session.run([y, *tf.global_variables()])
    parts = [convolved(x[..., c : c + 1], depthwise[:, :, c : c + 1], 1, 1) for c in range(3)]
    np.testing.assert_allclose(value, np.concatenate(parts, -1) @ pointwise[0, 0], rtol=1e-10)


# --- pooling, flatten


def test_pooling_takes_windows() -> None:
    x = images(2, 6, 4, 3)
    cells = x.reshape(2, 3, 2, 2, 2, 3)
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(tf.layers.max_pooling2d(x, 2, 2)), cells.max((2, 4)))
        np.testing.assert_allclose(session.run(tf.layers.average_pooling2d(x, 2, 2)), cells.mean((2, 4)))
        rows = x[:, :, 0].reshape(2, 3, 2, 3)
        np.testing.assert_allclose(session.run(tf.layers.max_pooling1d(x[:, :, 0], 2, 2)), rows.max(2))
        np.testing.assert_allclose(session.run(tf.layers.average_pooling1d(x[:, :, 0], 2, 2)), rows.mean(2))


def test_flatten_keeps_the_batch() -> None:
    known = tf.placeholder(tf.float32, [None, 2, 3])
    partly = tf.placeholder(tf.float32, [2, None, 3])
    unknown = tf.placeholder(tf.float32, [None, None, 3])
    flat = [tf.layers.flatten(x) for x in (known, partly, unknown, tf.placeholder(tf.float32, [None]))]
    assert [f.shape.as_list() for f in flat] == [[None, 6], [2, None], [None, None], [None, 1]]
    value = images(2, 4, 3).astype(np.float32)
    with tf.Session() as session:
        for x, y in ((partly, flat[1]), (unknown, flat[2])):
            assert session.run(y, {x: value}).tolist() == value.reshape(2, 12).tolist()
        first = tf.layers.flatten(value, data_format="channels_first")
        assert session.run(first).tolist() == np.moveaxis(value, 1, -1).reshape(2, 12).tolist()
        assert session.run(flat[0], {known: np.zeros((0, 2, 3))}).shape == (0, 6)


# --- dropout


def test_dropout_acts_in_training_only() -> None:
    x = tf.ones([100, 100])
    training = tf.placeholder(tf.bool, [])
    off, on = tf.layers.dropout(x, 0.25), tf.layers.dropout(x, 0.25, training=True)
    switched = tf.layers.dropout(x, 0.25, training=training)
    with tf.Session() as session:
        assert session.run(off).all()
        for value in (session.run(on), session.run(switched, {training: True})):
            assert set(np.unique(value)) == {np.float32(0), np.float32(1 / 0.75)}
            assert 0.22 < np.mean(value == 0) < 0.28
        assert (session.run(switched, {training: False}) == 1).all()
        assert (session.run(on) != session.run(on)).any()


# --- batch normalization


def normalized(x: Any, axes: Any) -> tuple[Any, Any, Any]:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-3), mean.squeeze(), variance.squeeze()


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "options"),
    [((8, 3), -1, {}), ((4, 5, 3, 2), -1, {}), ((4, 2, 5, 3), 1, {}), ((4, 5, 3, 2), 3, {"fused": False})],
)
def test_batch_normalization_learns_the_batchs_statistics(
    shape: Any, axis: int, options: Any, fed: bool
) -> None:
    x = images(*shape) * 3 + 1
    training = tf.placeholder(tf.bool, []) if fed else True
    feeds = {training: True} if fed else {}
    y = tf.layers.batch_normalization(x, axis, 0.75, training=training, **options)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    axes = tuple(i for i in range(len(shape)) if i != axis % len(shape))
    expected, mean, variance = normalized(x, axes)
    if len(shape) == 4 and not options:
        n = x.size / mean.size
        variance = variance * n / (n - 1)
    with initialized() as session:
        np.testing.assert_allclose(session.run(y, feeds), expected, rtol=1e-6, atol=1e-7)
        session.run(updates, feeds)
        _, _, moving_mean, moving_variance = session.run(tf.global_variables())
    np.testing.assert_allclose(moving_mean, 0.25 * mean, rtol=1e-6)
    np.testing.assert_allclose(moving_variance, 0.75 + 0.25 * variance, rtol=1e-6)


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("shape", [(8, 3), (4, 5, 3, 2)])
def test_batch_normalization_uses_what_it_learned_otherwise(shape: Any, fed: bool) -> None:
    x = images(*shape)
    training = tf.placeholder(tf.bool, []) if fed else False
    feeds = {training: False} if fed else {}
    layer = tf.layers.BatchNormalization()
    y = layer(tf.constant(x), training=training)
    with initialized() as session:
        for k, variable in enumerate(layer.weights):
            variable.load(np.arange(1.0, shape[-1] + 1) + k, session)
        gamma, beta, mean, variance = session.run(layer.weights)
        expected = (x - mean) / np.sqrt(variance + 1e-3) * gamma + beta
        np.testing.assert_allclose(session.run(y, feeds), expected, rtol=1e-6)
        session.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS), feeds)
        assert session.run(layer.moving_mean).tolist() == mean.tolist()


def test_batch_normalization_without_scale_and_center_has_the_statistics_only() -> None:
    tf.layers.batch_normalization(tf.ones([2, 3]), scale=False, center=False)
    assert [n.rpartition("/")[2] for n in names()] == ["moving_mean", "moving_variance"]
    assert not tf.trainable_variables()


def test_batch_normalization_that_is_not_trainable_keeps_its_averages() -> None:
    """As in TensorFlow, where the batch's statistics are used none the less."""
    y = tf.layers.batch_normalization(tf.constant([[1.0], [3.0]]), training=True, trainable=False)
    assert not tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(session.run(y), [[-1], [1]], atol=1e-3)


def test_batch_normalization_refuses_what_it_cannot_do() -> None:
    with pytest.raises(UnimplementedError, match="expected no renorm"):
        tf.layers.batch_normalization(tf.ones([2, 3]), renorm=True)
    with pytest.raises(InvalidArgumentError, match="expected inputs of rank 4 and axis 1 or 3"):
        tf.layers.batch_normalization(tf.ones([2, 3]), fused=True)


# --- losses, constraints, errors


def test_regularizers_add_losses_of_new_variables() -> None:
    x = tf.ones([2, 3])
    options = {
        "kernel_initializer": tf.constant_initializer(2.0),
        "bias_initializer": tf.constant_initializer(1.0),
    }
    layer = tf.layers.Dense(
        4, kernel_regularizer=l2_regularizer(0.5), bias_regularizer=l1_regularizer(0.25), **options
    )
    layer(x)
    layer(x)
    losses = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    assert losses == layer.losses
    with initialized() as session:
        assert session.run(losses) == [0.5 * 12 * 4 / 2, 0.25 * 4]


def test_an_activity_regularizer_adds_a_loss_an_example() -> None:
    layer = tf.layers.Dense(
        1, activity_regularizer=tf.nn.l2_loss, kernel_initializer=tf.ones_initializer(), use_bias=False
    )
    layer(tf.ones([4, 2]))
    with initialized() as session:
        assert session.run(layer.losses) == [2.0]


def test_regularizers_of_nothing_are_none() -> None:
    w = tf.Variable([3.0, -4.0])
    assert l1_regularizer(0.0)(w) is None
    assert l1_l2_regularizer(0.0, 0.0)(w) is None
    both, one = l1_l2_regularizer(1.0, 2.0)(w), l1_l2_regularizer(0.0, 2.0)(w)
    with initialized() as session:
        assert session.run([both, one]) == [32.0, 25.0]
    with pytest.raises(InvalidArgumentError, match="a number >= 0; got -1"):
        l2_regularizer(-1)


def test_constraints_reach_the_variables() -> None:
    layer = tf.layers.Dense(
        1, kernel_constraint=tf.abs, use_bias=False, kernel_initializer=tf.ones_initializer()
    )
    loss = tf.reduce_sum(layer(tf.ones([1, 2])))
    step = tf.train.GradientDescentOptimizer(3.0).minimize(loss)
    with initialized() as session:
        session.run(step)
        assert session.run(layer.kernel).tolist() == [[2.0], [2.0]]


def test_wrong_arguments_are_refused() -> None:
    x = tf.ones([2, 5, 5, 3])
    with pytest.raises(InvalidArgumentError, match="padding: expected valid or same; got 'full'"):
        tf.layers.conv2d(x, 4, 3, padding="full")
    with pytest.raises(InvalidArgumentError, match="kernel_size: expected a positive number or 2 of them"):
        tf.layers.conv2d(x, 4, (3, 3, 3))
    with pytest.raises(InvalidArgumentError, match="expected channels_last or channels_first; got 'NHWC'"):
        tf.layers.conv2d(x, 4, 3, data_format="NHWC")
    with pytest.raises(InvalidArgumentError, match="layer 'conv2d': expected inputs of rank 4; got"):
        tf.layers.conv2d(tf.ones([2, 3]), 4, 3)
    with pytest.raises(TypeError):
        tf.layers.dense(x)
    assert not tf.global_variables()


def test_a_subclass_builds_and_calls() -> None:
    class Scale(tf.layers.Layer):  # type: ignore[misc]
        def build(self, input_shape: Any) -> None:
            self.factor = self.add_variable(
                "factor", [input_shape[-1]], initializer=tf.constant_initializer(2.0)
            )

        def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return inputs * self.factor

    y = Scale()(tf.ones([2, 3]))
    assert names() == ["scale/factor"]
    with initialized() as session:
        assert session.run(y).tolist() == [[2.0] * 3] * 2


def test_variables_made_while_calling_are_shared_too() -> None:
    class Shift(tf.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return inputs + tf.get_variable("offset", [])

    layer = Shift()
    layer(layer(tf.ones([2])))
    assert names() == ["shift/offset"]


def test_a_small_network_learns_to_separate() -> None:
    tf.set_random_seed(1)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((200, 8, 8, 1)).astype(np.float32)
    labels = (x[:, 2:6, 2:6].mean((1, 2, 3)) > 0).astype(np.int32)
    training = tf.placeholder_with_default(True, [])
    h = tf.layers.conv2d(x, 8, 3, activation=tf.nn.relu)
    h = tf.layers.batch_normalization(h, momentum=0.9, training=training)
    h = tf.layers.flatten(tf.layers.average_pooling2d(h, 2, 2))
    logits = tf.layers.dense(h, 2)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        step = tf.train.AdamOptimizer(0.01).minimize(loss)
    right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), tf.cast(labels, tf.int64)), tf.float32))
    with initialized() as session:
        for _ in range(120):
            session.run(step)
        assert session.run(right, {training: False}) > 0.95
