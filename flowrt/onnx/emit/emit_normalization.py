"""Normalizations, softmax, cross-entropies, biases."""

from __future__ import annotations

import numpy as np

from flowrt.onnx.emit.call import Call, emits
from flowrt.onnx.emit.emit_convolution import channels_as_before, channels_first


@emits("Softmax", "LogSoftmax")
def softmax(c: Call, x: str) -> str:
    return c.add(c.op, x, axis=-1)


@emits("SoftmaxCrossEntropyWithLogits")
def cross_entropy(c: Call, logits: str, labels: str) -> list[str]:
    whole = c.add("Add", logits, c.add("Mul", labels, c.number(0)))  # of the shape of both
    logs = c.add("LogSoftmax", whole, axis=-1)
    loss = c.add("Neg", c.reduce("ReduceSum", c.add("Mul", labels, logs), [1]))
    return [loss, c.add("Sub", c.add("Softmax", whole, axis=-1), labels)]


@emits("SparseSoftmaxCrossEntropyWithLogits")
def sparse_cross_entropy(c: Call, logits: str, labels: str) -> list[str]:
    classes = c.dims(0)[-1]
    if classes is None:
        c.refuse("expected a known number of classes: give the inputs sizes")
    column = c.unsqueeze(c.cast(labels, np.int64), [-1])
    chosen = c.cast(c.add("Equal", column, c.ints(range(classes))), c.dtype())
    logs = c.add("LogSoftmax", logits, axis=-1)
    picked = c.add("GatherElements", logs, column, axis=-1)
    loss = c.add("Neg", c.squeeze(picked, [-1]))
    return [loss, c.add("Sub", c.add("Softmax", logits, axis=-1), chosen)]


@emits("BiasAdd")
def bias_add(c: Call, x: str, bias: str) -> str:
    if c.attrs["data_format"].startswith("NC"):
        bias = c.reshape(bias, [-1, *[1] * (c.rank() - 2)])
    return c.add("Add", x, bias)


@emits("BiasAddGrad")
def bias_gradient(c: Call, dy: str) -> str:
    channel = 1 if c.attrs["data_format"].startswith("NC") else c.rank() - 1
    return c.reduce("ReduceSum", dy, [i for i in range(c.rank()) if i != channel])


@emits("LayerNorm")
def layer_norm(c: Call, x: str, scale: str, offset: str) -> str:
    return c.add("LayerNormalization", x, scale, offset, axis=-1, epsilon=float(c.attrs["epsilon"]))


@emits("LayerNormGrad")
def layer_norm_gradient(c: Call, dy: str, x: str, scale: str) -> list[str]:
    centred, factor = _centred(c, x, [c.rank() - 1])
    normal = c.add("Mul", centred, factor)
    scaled = c.add("Mul", dy, scale)
    rest = c.reduce("ReduceMean", scaled, [-1], keep=True)
    along = c.reduce("ReduceMean", c.add("Mul", scaled, normal), [-1], keep=True)
    inner = c.add("Sub", c.add("Sub", scaled, rest), c.add("Mul", normal, along))
    batch = list(range(c.rank() - 1))
    return [
        c.add("Mul", factor, inner),
        c.reduce("ReduceSum", c.add("Mul", dy, normal), batch),
        c.reduce("ReduceSum", dy, batch),
    ]


def _centred(c: Call, x: str, axes: list[int]) -> tuple[str, str]:
    """``x`` without its mean over ``axes``, and one over its deviation."""
    centred = c.add("Sub", x, c.reduce("ReduceMean", x, axes, keep=True))
    variance = c.reduce("ReduceMean", c.add("Mul", centred, centred), axes, keep=True)
    wide = c.add("Add", variance, c.number(c.attrs["epsilon"]))
    return centred, c.add("Reciprocal", c.add("Sqrt", wide))


@emits("LRN")
def local_response(c: Call, x: str) -> str:
    """ONNX divides alpha by the number of channels in a window."""
    width = 2 * c.attrs["depth_radius"] + 1
    found = c.add(
        "LRN", c.transpose(x, [0, 3, 1, 2]), size=width, alpha=float(c.attrs["alpha"] * width),
        beta=float(c.attrs["beta"]), bias=float(c.attrs["bias"]),
    )  # fmt: skip
    return c.transpose(found, [0, 2, 3, 1])


@emits("FusedBatchNormV3")
def batch_norm(c: Call, x: str, scale: str, offset: str, mean: str, variance: str) -> list[str]:
    """Outside of training by ONNX's operation; in training the mean and variance of the batch."""
    rank, epsilon = c.rank(), float(c.attrs["epsilon"])
    first = channels_first(c, x, rank)
    if not c.attrs["is_training"]:
        given = (scale, offset, mean, variance)
        found = c.add("BatchNormalization", first, *given, epsilon=epsilon)
        return [channels_as_before(c, found, rank), mean, variance, mean, variance, c.number(0, c.dtype(1))]
    axes = [0, *range(2, rank)]
    wide = c.cast(first, c.dtype(1))
    average = c.reduce("ReduceMean", wide, axes)
    column = [1, -1, *[1] * (rank - 2)]
    centred = c.add("Sub", wide, c.reshape(average, column))
    spread = c.reduce("ReduceMean", c.add("Mul", centred, centred), axes)
    factor = c.add("Div", scale, c.add("Sqrt", c.add("Add", spread, c.number(epsilon, c.dtype(1)))))
    scaled = c.add("Mul", centred, c.reshape(factor, column))
    found = c.add("Add", scaled, c.reshape(offset, column))
    result = channels_as_before(c, c.cast(found, c.dtype()), rank)
    return [result, *_running(c, average, spread, mean, variance), average, spread, c.number(0, c.dtype(1))]


def _running(c: Call, average: str, spread: str, mean: str, variance: str) -> list[str]:
    """The new running mean and variance (of a sample: one element less)."""
    shape = c.shape()
    channel = 1 if str(c.attrs["data_format"]).startswith("NC") else len(shape) - 1
    count = int(np.prod(shape)) // max(1, shape[channel])
    unbiased = c.add("Mul", spread, c.number(count / max(1, count - 1), c.dtype(1)))
    part = float(c.attrs["exponential_avg_factor"])
    if part == 1:
        return [average, unbiased]

    def mixed(old: str, new: str) -> str:
        kept = c.add("Mul", old, c.number(1 - part, c.dtype(1)))
        return c.add("Add", kept, c.add("Mul", new, c.number(part, c.dtype(1))))

    return [mixed(mean, average), mixed(variance, unbiased)]


@emits("FusedBatchNormGradV3")
def batch_norm_gradient(
    c: Call, dy: str, x: str, scale: str, mean: str, variance: str, rest: str
) -> list[str]:
    """The reserve spaces are the mean and variance of the batch, or those that were given."""
    rank, kind = c.rank(), c.dtype(2)
    first, slope = (channels_first(c, c.cast(each, kind), rank) for each in (x, dy))
    axes, column = [0, *range(2, rank)], [1, -1, *[1] * (rank - 2)]
    centred = c.add("Sub", first, c.reshape(mean, column))
    wide = c.add("Add", variance, c.number(c.attrs["epsilon"], kind))
    factor = c.reshape(c.add("Reciprocal", c.add("Sqrt", wide)), column)
    normal = c.add("Mul", centred, factor)
    offsets = c.reduce("ReduceSum", slope, axes)
    scales = c.reduce("ReduceSum", c.add("Mul", slope, normal), axes)
    inner = slope
    if c.attrs["is_training"]:
        total = c.reduce("ReduceMean", slope, axes, keep=True)
        along = c.reduce("ReduceMean", c.add("Mul", slope, normal), axes, keep=True)
        inner = c.add("Sub", c.add("Sub", slope, total), c.add("Mul", normal, along))
    found = c.add("Mul", inner, c.add("Mul", factor, c.reshape(scale, column)))
    result = channels_as_before(c, c.cast(found, c.dtype()), rank)
    nothing = c.constant(np.zeros(0, kind))
    return [result, scales, offsets, nothing, nothing]
