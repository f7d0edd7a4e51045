"""``tensorflow.examples.tutorials.mnist.mnist``: two hidden layers, their loss and training."""

from __future__ import annotations

import math
from typing import Any

from flowrt.dtypes import int32, int64
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import zeros
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.random.random_ops import truncated_normal
from flowrt.graph.ops.text.summaries import scalar
from flowrt.losses import sparse_softmax_cross_entropy
from flowrt.nn import in_top_k, relu
from flowrt.train import GradientDescentOptimizer
from flowrt.variables.graph_scopes import name_scope
from flowrt.variables.variable import Variable

NUM_CLASSES = 10
IMAGE_SIZE = 28
IMAGE_PIXELS = IMAGE_SIZE * IMAGE_SIZE


def inference(images: Any, hidden1_units: int, hidden2_units: int) -> Tensor:
    """The logits, [n, 10], of ``images``, [n, 784]."""
    hidden = relu(_affine("hidden1", images, IMAGE_PIXELS, hidden1_units))
    hidden = relu(_affine("hidden2", hidden, hidden1_units, hidden2_units))
    return _affine("softmax_linear", hidden, hidden2_units, NUM_CLASSES)


def _affine(name: str, x: Any, inputs: int, outputs: int) -> Tensor:
    with name_scope(name):
        start = truncated_normal([inputs, outputs], stddev=1 / math.sqrt(inputs))
        weights = Variable(start, name="weights")
        biases = Variable(zeros([outputs]), name="biases")
        return matmul(x, weights) + biases


def loss(logits: Any, labels: Any) -> Tensor:
    """The mean cross entropy of ``logits``, [n, 10], and ``labels``, [n] integers."""
    return sparse_softmax_cross_entropy(labels=cast(labels, int64), logits=logits)


def training(loss: Tensor, learning_rate: float) -> Operation:
    """One step of gradient descent, which counts ``global_step``; with a summary of the loss."""
    scalar("loss", loss)
    steps = Variable(0, name="global_step", trainable=False)
    return GradientDescentOptimizer(learning_rate).minimize(loss, global_step=steps)


def evaluation(logits: Any, labels: Any) -> Tensor:
    """The number of rows of which the largest logit is that of the label: an int32 scalar."""
    return reduce_sum(cast(in_top_k(logits, labels, 1), int32))
