"""flowrt.contrib: layers are nn functions on variables of contrib's names; arg_scope gives defaults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import framework, layers, slim
from flowrt.errors import InvalidArgumentError


@pytest.fixture
def images() -> Any:
    return np.random.default_rng(0).normal(size=(2, 6, 6, 3)).astype(np.float32)


def run(fetches: Any) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches)


def test_conv2d_is_a_convolution_with_biases_and_relu(images: Any) -> None:
    out = layers.conv2d(images, 4, [3, 3], stride=2, biases_initializer=tf.ones_initializer(), scope="c")
    weights, biases = tf.trainable_variables()
    assert [v.op.name for v in (weights, biases)] == ["c/weights", "c/biases"]
    same = tf.nn.relu(tf.nn.conv2d(images, weights, [1, 2, 2, 1], "SAME") + biases)
    found, expected = run([out, same])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert set(tf.get_collection(tf.GraphKeys.MODEL_VARIABLES)) == {weights, biases}


def test_fully_connected_works_on_the_last_axis(images: Any) -> None:
    out = layers.fully_connected(images, 5, activation_fn=None)
    weights = tf.trainable_variables("fully_connected/weights")[0]
    found, expected = run([out, tf.einsum("nhwc,cd->nhwd", images, weights)])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("padding", "size"), [("SAME", 12), ("VALID", 13)])
def test_conv2d_transpose_grows_the_image(images: Any, padding: str, size: int) -> None:
    out = layers.conv2d_transpose(images, 4, 3, 2, padding, activation_fn=None)
    assert out.shape.as_list() == [2, size, size, 4]
    assert run(out).shape == (2, size, size, 4)


def test_layers_share_variables_by_reuse(images: Any) -> None:
    one = layers.conv2d(images, 4, 3, scope="shared")
    other = layers.conv2d(images, 4, 3, scope="shared", reuse=True)
    assert len(tf.trainable_variables()) == 2
    np.testing.assert_array_equal(*run([one, other]))


def test_batch_norm_normalizes_and_collects_its_updates(images: Any) -> None:
    out = layers.batch_norm(images, decay=0.9, is_training=True, scope="bn")
    assert [v.op.name for v in tf.trainable_variables()] == ["bn/beta"]  # contrib's default is not to scale
    assert len(tf.get_collection(tf.GraphKeys.UPDATE_OPS)) == 2
    np.testing.assert_allclose(run(out).mean((0, 1, 2)), 0, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "options", "count"),  # as in TensorFlow 1.15
    [([6, 4], {}, 2), ([6, 4], {"fused": False}, 0), ([6, 2, 2, 4], {}, 0)],
    ids=["rows", "plain rows", "images"],
)
def test_averages_of_a_batch_norm_that_is_not_trainable(size: Any, options: Any, count: int) -> None:
    layers.batch_norm(tf.ones(size), trainable=False, **options)
    assert len(tf.get_collection(tf.GraphKeys.UPDATE_OPS)) == count


def test_batch_norm_says_what_it_does_not_take() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="data_format NHWC or NCHW; got 'NHW'"):
        layers.batch_norm(tf.ones([2, 3]), data_format="NHW")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="batch_norm: expected inputs with a known axis -1"
    ):
        layers.batch_norm(tf.placeholder(tf.float32, [2, None]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="batch_norm: expected inputs of a floating dtype"
    ):
        layers.batch_norm(tf.zeros([2, 3], tf.int32))


def test_batch_norm_without_a_collection_updates_in_place(images: Any) -> None:
    out = layers.batch_norm(images, decay=0.9, updates_collections=None, scope="bn")
    assert tf.get_collection(tf.GraphKeys.UPDATE_OPS) == []
    (mean,) = (v for v in tf.global_variables() if v.op.name == "bn/moving_mean")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(out)
        np.testing.assert_allclose(session.run(mean), 0.1 * images.mean((0, 1, 2)), rtol=1e-4)


def test_a_normalizer_takes_the_place_of_the_biases(images: Any) -> None:
    layers.conv2d(images, 4, 3, normalizer_fn=layers.batch_norm, normalizer_params={"scale": True}, scope="c")
    names = [v.op.name for v in tf.trainable_variables()]
    assert names == ["c/weights", "c/BatchNorm/gamma", "c/BatchNorm/beta"]


def test_dropout_follows_a_placeholder(images: Any) -> None:
    training = tf.placeholder(tf.bool, [])
    out = slim.dropout(images, 0.5, is_training=training)
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(out, {training: False}), images)
        assert (session.run(out, {training: True}) == 0).mean() > 0.3


@pytest.mark.parametrize(
    "layer", [slim.dropout, slim.batch_norm, tf.layers.dropout, tf.layers.batch_normalization]
)
@pytest.mark.parametrize("shape", [[None, 8], [5, 4, 4, 3]])
def test_a_training_flag_of_unknown_shape_leaves_the_static_shape(layer: Any, shape: list[Any]) -> None:
    flag = "is_training" if layer in (slim.dropout, slim.batch_norm) else "training"
    out = layer(tf.placeholder(tf.float32, shape), **{flag: tf.placeholder(tf.bool)})
    assert out.shape.as_list() == shape


def test_arg_scope_gives_defaults_that_calls_override(images: Any) -> None:
    regularizer = slim.l2_regularizer(0.1)
    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected], weights_regularizer=regularizer, activation_fn=None
    ):
        with slim.arg_scope([slim.conv2d], padding="VALID", stride=2) as scope:
            narrow = slim.conv2d(images, 4, 3)
        wide = slim.conv2d(images, 4, 3)
        plain = slim.conv2d(images, 4, 3, weights_regularizer=None)
    assert (narrow.shape.as_list(), wide.shape.as_list()) == ([2, 2, 2, 4], [2, 6, 6, 4])
    assert plain.shape.as_list() == [2, 6, 6, 4]
    assert len(tf.losses.get_regularization_losses()) == 2
    with slim.arg_scope(scope):
        assert slim.conv2d(images, 4, 3).shape.as_list() == [2, 2, 2, 4]
    assert slim.conv2d(images, 4, 3).shape.as_list() == [2, 6, 6, 4]


def test_arg_scope_refuses_a_function_that_takes_no_defaults() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="functions decorated with add_arg_scope"):
        with framework.arg_scope([tf.nn.relu], name="x"):
            pass


def test_stack_and_repeat_name_their_layers(images: Any) -> None:
    slim.stack(slim.flatten(images), slim.fully_connected, [8, 4], scope="fc")
    slim.repeat(images, 2, slim.conv2d, 3, [3, 3], scope="conv")
    weights = [v.op.name for v in tf.trainable_variables() if v.op.name.endswith("weights")]
    assert weights == ["fc/fc_1/weights", "fc/fc_2/weights", "conv/conv_1/weights", "conv/conv_2/weights"]


def test_relu_and_its_relatives_are_layers(images: Any) -> None:
    flat = layers.flatten(images)
    for layer, least, most in ((layers.relu, 0, np.inf), (layers.relu6, 0, 6), (layers.elu, -1, np.inf)):
        value = run(layer(flat * 100, 8))
        assert value.shape[-1] == 8
        assert value.min() == least
        assert value.max() <= most
    assert run(layers.linear(flat, 8)).min() < -1e-3
    layers.stack(flat, layers.relu, [8, 4])
    names = [v.op.name for v in tf.trainable_variables() if v.op.name.endswith("weights")]
    assert names[-2:] == ["Stack/fully_connected_1/weights", "Stack/fully_connected_2/weights"]


def test_apply_regularization_sums_and_collects() -> None:
    weights = [tf.constant([3.0, 4.0]), tf.constant([1.0])]
    total = layers.apply_regularization(layers.l2_regularizer(2.0), weights)
    assert tf.losses.get_regularization_losses() == [total]
    assert run(total) == 26.0


def test_variables_to_restore_leave_out_the_excluded_scopes() -> None:
    for name in ("base/w", "base/b", "head/w"):
        tf.get_variable(name, [])
    found = slim.get_variables_to_restore(exclude=["head"])
    assert [v.op.name for v in found] == ["base/w", "base/b"]
    assert [v.op.name for v in slim.get_variables("base", suffix="b")] == ["base/b"]


@pytest.mark.parametrize(
    ("arguments", "devices"),
    [
        ({"num_gpus": 2}, ("/device:GPU:0", "/device:GPU:1")),
        ({"num_gpus_per_worker": 0}, ("/device:CPU:0",)),
        ({"devices": ["/cpu:1"]}, ("/device:CPU:1",)),
    ],
)
def test_a_mirrored_strategy_may_be_told_its_number_of_gpus(arguments: Any, devices: tuple[str, ...]) -> None:
    assert tf.contrib.distribute.MirroredStrategy(**arguments).extended.worker_devices == devices


@pytest.mark.parametrize("arguments", ({"num_gpus": -1}, {"num_gpus": 1, "devices": ["/cpu:0"]}))
def test_a_number_of_gpus_that_cannot_be_is_refused(arguments: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="got"):
        tf.contrib.distribute.MirroredStrategy(**arguments)


def test_a_separable_convolution_is_one_of_each_channel_and_one_of_points() -> None:
    images = tf.constant(np.random.default_rng(0).normal(size=(2, 6, 6, 3)))
    out = slim.separable_conv2d(images, 4, 3, 2, stride=2, activation_fn=None, scope="sep")
    alone = slim.separable_conv2d(images, None, 3, 2, stride=2, scope="sep", reuse=True, activation_fn=None,
                                  biases_initializer=None)  # fmt: skip
    depthwise, pointwise, biases = tf.trainable_variables()
    assert [v.name for v in (depthwise, pointwise, biases)] == [
        "sep/depthwise_weights:0", "sep/pointwise_weights:0", "sep/biases:0"
    ]  # fmt: skip
    assert depthwise.shape.as_list() == [3, 3, 3, 2]
    same = tf.nn.separable_conv2d(images, depthwise, pointwise, [1, 2, 2, 1], "SAME")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found, expected, each = session.run((out, same, alone))
    np.testing.assert_allclose(found, expected)
    assert each.shape == (2, 3, 3, 6)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_instances_are_normalized_by_channel(data_format: str) -> None:
    values = np.random.default_rng(0).normal(2, 3, (2, 5, 6, 7))
    out = layers.instance_norm(tf.constant(values), data_format=data_format)
    axes = (1, 2) if data_format == "NHWC" else (2, 3)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = session.run(out)
    deviation = np.sqrt(values.var(axes, keepdims=True) + 1e-6)
    np.testing.assert_allclose(found, (values - values.mean(axes, keepdims=True)) / deviation)
    assert [v.shape.as_list() for v in tf.trainable_variables()] == [
        [values.shape[1 if axes[0] == 2 else 3]]
    ] * 2


def test_streaming_metrics_take_predictions_first() -> None:
    metrics = tf.contrib.metrics
    values, updates = metrics.aggregate_metric_map({
        "precision": metrics.streaming_precision([1, 1, 1, 0], [1, 0, 0, 1]),
        "accuracy": metrics.streaming_accuracy([1, 2, 3, 0], [1, 0, 3, 1], weights=[1.0, 1.0, 2.0, 0.0]),
    })  # fmt: skip
    at_once = metrics.accuracy([1, 2], [1, 3], weights=[3.0, 1.0])
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        session.run(updates)
        found = session.run(values)
        assert session.run(at_once) == 0.75
    assert found["precision"] == pytest.approx(1 / 3)
    assert found["accuracy"] == pytest.approx(0.75)


def test_outputs_are_summarized_by_the_names_of_their_operations(images: Any) -> None:
    out = slim.conv2d(images, 2, 3, outputs_collections=tf.GraphKeys.ACTIVATIONS, scope="conv")
    layers.summarize_tensor(tf.reduce_sum(out, name="total"))
    assert len(layers.summarize_activations("conv")) == 1
    assert layers.summarize_activations("other") == []
    tags = [v.tag for v in tf.Summary.FromString(run(tf.summary.merge_all())).value]
    assert tags == ["total_summary", "conv/Relu/zeros", "conv/Relu/activation"]
    assert slim.utils.convert_collection_to_dict(tf.GraphKeys.ACTIVATIONS) == {"conv": out}


def test_a_variable_is_once_among_the_models_variables() -> None:
    v = tf.Variable(1.0)
    for _ in range(2):
        framework.add_model_variable(v)
    assert framework.get_model_variables() == [v]


def test_keras_is_there_under_contribs_name() -> None:
    assert tf.contrib.keras.layers is tf.keras.layers
    assert tf.contrib.keras.python.keras.backend is tf.keras.backend


def test_the_confusion_matrix_of_mean_iou_counts_beyond_what_float32_does() -> None:
    value, matrix = tf.metrics.mean_iou([0, 1, 1], [0, 0, 1], 2)
    (counted,) = tf.get_collection(tf.GraphKeys.METRIC_VARIABLES)
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        counted.load([[2**24, 0], [0, 2**24]], session)
        np.testing.assert_array_equal(session.run(matrix), [[2**24 + 1, 0], [1, 2**24 + 1]])
        assert session.run(value) == pytest.approx(1.0)
        assert (matrix.dtype, value.dtype) == (tf.float64, tf.float32)


@pytest.mark.parametrize(
    ("shape", "collection", "names", "variance"),
    [
        ([6, 3], None, ["beta", "gamma"], [0.793930, 0.843450, 0.885570]),
        ([6, 3], "update_ops", ["beta", "gamma"], [0.793930, 0.843450, 0.885570]),
        ([2, 3, 1, 3], None, ["beta", "gamma"], [0.793930, 0.843450, 0.885570]),
        ([2, 3, 1, 3], "update_ops", ["gamma", "beta"], [0.793930, 0.843450, 0.885570]),
    ],
    ids=["rows", "rows_collected", "images", "images_collected"],
)
def test_batch_norm_has_the_variables_and_the_moving_variance_of_tensorflow(
    shape: list[int], collection: str | None, names: list[str], variance: list[float]
) -> None:
    """TensorFlow 1.15's: over n - 1, for rows as well, and every variable among the model's."""
    x = tf.constant(np.random.RandomState(0).randn(18).astype(np.float32).reshape(shape))
    y = tf.contrib.layers.batch_norm(
        x, 0.5, scale=True, updates_collections=collection, variables_collections={"gamma": ["mine"]}
    )
    assert [v.op.name for v in tf.trainable_variables()] == [f"BatchNorm/{name}" for name in names]
    assert len(tf.model_variables()) == 4
    assert [v.op.name for v in tf.get_collection("mine")] == ["BatchNorm/gamma"]
    (moving,) = tf.contrib.framework.get_variables(suffix="moving_variance")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run([y, tf.get_collection("update_ops")])
        np.testing.assert_allclose(session.run(moving), variance, rtol=1e-5)


def test_batch_norm_of_rows_that_is_not_fused_divides_by_n() -> None:
    x = tf.constant([[1.0], [3.0]])
    y = tf.contrib.layers.batch_norm(x, 0.0, fused=False, updates_collections=None)
    (moving,) = tf.contrib.framework.get_variables(suffix="moving_variance")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(y)
        assert session.run(moving) == 1


def test_contribs_truncated_normals_have_its_rounded_variance() -> None:
    """2 sqrt(1.3 factor / n) is the largest value; that of `initializers.variance_scaling` is 0.3 % less."""
    layers = tf.contrib.layers
    for made, n in (
        (layers.variance_scaling_initializer(), 200 / 2.0),
        (layers.xavier_initializer(uniform=False), (200 + 1000) / 2),
    ):
        largest = 2 * np.sqrt(1.3 / n)
        found = abs(made([200, 1000], dtype=tf.float32, partition_info=None).eval(session=tf.Session())).max()
        assert 0.9995 * largest < found <= largest * (1 + 1e-6)


def test_the_models_variables_stand_as_they_are_made() -> None:
    images = tf.zeros([2, 8, 8, 3])
    tf.contrib.layers.batch_norm(images, scale=True, scope="a", variables_collections=["mine"])
    tf.contrib.layers.batch_norm(tf.zeros([2, 3]), scope="b")
    names = [v.op.name for v in tf.model_variables()]
    assert names == [v.op.name for v in tf.global_variables()]
    assert names == [
        "a/gamma", "a/beta", "a/moving_mean", "a/moving_variance",
        "b/beta", "b/moving_mean", "b/moving_variance",
    ]  # fmt: skip
    mine = [v.op.name for v in tf.get_collection("mine")]
    assert mine == ["a/moving_mean", "a/moving_variance", "a/beta", "a/gamma"]


def test_nccl_gives_every_device_the_same() -> None:
    from flowrt.contrib import nccl

    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        parts = []
        for i, value in enumerate(([1.0, 5.0], [3.0, -2.0])):
            with tf.device(f"/cpu:{i}"):
                parts.append(tf.constant(value))
        sums = nccl.all_sum(parts)
        assert [each.device for each in sums] == [each.device for each in parts]
        slopes = tf.gradients(sums[0] * [2.0, 3.0] + sums[1], parts)
        found = session.run([sums, nccl.all_prod(parts), nccl.all_min(parts), nccl.all_max(parts), slopes])
        assert [each[1].tolist() for each in found] == [[4, 3], [3, -10], [1, -2], [3, 5], [3, 4]]
        again = nccl.all_sum([nccl.broadcast(part) for part in parts])
        assert session.run(nccl.reduce_sum(again)).tolist() == [8, 6]
    with pytest.raises(InvalidArgumentError, match=r"nccl.all_sum: expected a tensor of each device"):
        nccl.all_sum([])


def test_groups_of_channels_are_normalized() -> None:
    values = np.random.default_rng(1).normal(3, 2, (2, 3, 4, 6)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        found = layers.group_norm(
            tf.constant(values), 2, param_initializers={"gamma": tf.constant_initializer(2)}
        )
        session.run(tf.global_variables_initializer())
        assert [v.op.name for v in tf.global_variables()] == ["GroupNorm/beta", "GroupNorm/gamma"]
        groups = session.run(found).reshape(2, 12, 2, 3)
        np.testing.assert_allclose(groups.mean((1, 3)), 0, atol=1e-5)
        np.testing.assert_allclose(groups.std((1, 3)), 2, atol=1e-4)
        with pytest.raises(InvalidArgumentError, match="expected a multiple of 4 channels; got 6"):
            layers.group_norm(tf.constant(values), 4)


def test_maxout_unit_norm_and_dense_to_sparse() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(layers.maxout([[1.0, 5, 2, 3]], 2)).tolist() == [[5, 3]]
        assert session.run(layers.unit_norm([[3.0, 4.0]], 1)) == pytest.approx(np.array([[0.6, 0.8]]))
        sparse = session.run(layers.dense_to_sparse([[1, 9], [9, 2]], eos_token=9))
        assert (sparse.indices.tolist(), sparse.values.tolist()) == ([[0, 0], [1, 1]], [1, 2])
        for axis in (-1, 8):
            message = rf"expected a multiple of 3 along axis {axis}; got inputs of shape \(1, 4\)"
            with pytest.raises(InvalidArgumentError, match=message):
                layers.maxout([[1.0, 5, 2, 3]], 3, axis)
