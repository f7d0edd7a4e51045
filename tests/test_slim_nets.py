"""Networks of slim: sizes, names, and the same features at any resolution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import slim
from flowrt.contrib.slim.nets import resnet_utils, resnet_v1, resnet_v2, vgg
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


def test_a_network_that_is_missing_names_those_there_are() -> None:
    with pytest.raises(
        AttributeError, match=r"slim\.nets\.inception: .* Instead: contrib\.slim\.nets\.resnet_v1"
    ):
        slim.nets.inception.inception_v3  # noqa: B018
