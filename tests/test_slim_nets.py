"""Networks of slim: sizes, names, and the same features at any resolution."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import slim
from flowrt.contrib.slim.nets import alexnet, inception, overfeat, resnet_utils, resnet_v1, resnet_v2, vgg
from flowrt.errors import InvalidArgumentError


def parameters() -> int:
    return sum(math.prod(v.shape.as_list()) for v in tf.trainable_variables())


def test_networks_have_the_published_sizes_and_names() -> None:
    with slim.arg_scope(resnet_v1.resnet_arg_scope()):
        net, ends = resnet_v1.resnet_v1_50(tf.placeholder(tf.float32, [None, 224, 224, 3]), 1000)
    assert net.shape.as_list() == [None, 1, 1, 1000]
    assert parameters() == 25_557_032
    assert {"resnet_v1_50/conv1", "resnet_v1_50/block4", "resnet_v1_50/logits", "predictions"} <= set(ends)
    assert ends["resnet_v1_50/block3/unit_6/bottleneck_v1"].shape.as_list() == [None, 7, 7, 1024]
    names = {v.name for v in tf.global_variables()}
    assert "resnet_v1_50/block2/unit_4/bottleneck_v1/conv2/BatchNorm/moving_variance:0" in names
    with tf.Graph().as_default(), slim.arg_scope(vgg.vgg_arg_scope()):
        net, ends = vgg.vgg_16(tf.placeholder(tf.float32, [2, 224, 224, 3]))
        assert net.shape.as_list() == [2, 1000]
        assert parameters() == 138_357_544
        assert ends["vgg_16/pool5"].shape.as_list() == [2, 7, 7, 512]
        assert ends["vgg_16/fc8"] is net


@pytest.mark.parametrize("module", [resnet_v1, resnet_v2], ids=["v1", "v2"])
def test_features_at_a_finer_stride_are_the_same_where_both_are(module: Any) -> None:
    images = np.random.default_rng(0).normal(size=(1, 33, 33, 3)).astype(np.float32)
    blocks = [
        resnet_utils.bottlenecks(module.bottleneck, f"block{i}", 2, 2, stride)
        for i, stride in enumerate((2, 2, 1))
    ]
    network = getattr(module, module.__name__.rpartition(".")[2])
    with slim.arg_scope(module.resnet_arg_scope()):
        options = {"is_training": False, "global_pool": False, "scope": "net"}
        coarse, _ = network(images, blocks, **options)
        fine, ends = network(images, blocks, output_stride=4, reuse=True, **options)
        with pytest.raises(InvalidArgumentError, match="expected a product of the first strides; got 16"):
            network(images, blocks, output_stride=64, reuse=True, **options)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        expected, found = session.run((coarse, resnet_utils.subsample(fine, 4)))
    assert fine.shape.as_list() == [1, 9, 9, 8]
    assert "net/block0/unit_2/bottleneck_" + module.__name__[-2:] in {n.replace("net_1", "net") for n in ends}
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


# parameters, variables, layers and the output before the logits, as TensorFlow 1.15 builds them
@pytest.mark.parametrize(
    ("network", "size", "expected"),
    [
        (inception.inception_v1, 224, (5_599_799, 230, 18, ("Mixed_5c", [2, 7, 7, 1024]))),
        (inception.inception_v2, 224, (10_160_511, 277, 17, ("Mixed_5a", [2, 7, 7, 1024]))),
        (inception.inception_v3, 299, (24_344_878, 388, 22, ("PreLogits", [2, 1, 1, 2048]))),
        (alexnet.alexnet_v2, 224, (46_235_591, 16, 11, ("alexnet_v2/fc7", [2, 1, 1, 4096]))),
        (overfeat.overfeat, 231, (141_636_103, 16, 11, ("overfeat/pool5", [2, 6, 6, 1024]))),
    ],
    ids=["inception_v1", "inception_v2", "inception_v3", "alexnet_v2", "overfeat"],
)
def test_sizes_are_those_of_tensorflow(network: Any, size: int, expected: tuple[Any, ...]) -> None:
    scope = getattr(sys.modules[network.__module__], f"{network.__name__}_arg_scope")
    with slim.arg_scope(scope()):
        net, ends = network(tf.placeholder(tf.float32, [2, size, size, 3]), 7)
    count, variables, layers, (name, shape) = expected
    assert net.shape.as_list() == [2, 7]
    assert (parameters(), len(tf.global_variables()), len(ends)) == (count, variables, layers)
    assert ends[name].shape.as_list() == shape
    assert network.default_image_size == size


def test_an_inception_network_ends_where_it_is_told_to_and_is_as_deep() -> None:
    images = tf.placeholder(tf.float32, [1, 75, 75, 3])
    net, ends = inception.inception_v3_base(images, "Mixed_5c", depth_multiplier=0.5)
    assert net is ends["Mixed_5c"]
    assert list(ends)[-2:] == ["Mixed_5b", "Mixed_5c"]
    assert net.shape.as_list() == [1, 7, 7, 144]
    names = {v.op.name for v in tf.global_variables()}
    assert "InceptionV3/Mixed_5c/Branch_1/Conv_1_0c_5x5/weights" in names  # as in public checkpoints
    with pytest.raises(
        InvalidArgumentError, match=r"final_endpoint: expected one of Conv2d_1a_3x3, .*'Mixed_9'"
    ):
        inception.inception_v3_base(images, "Mixed_9")
    with pytest.raises(InvalidArgumentError, match="depth_multiplier: expected a positive number; got 0"):
        inception.inception_v2(images, depth_multiplier=0)
