"""Functions of networks under Keras's names: convolutions, pooling, normalization, losses, padding, resizing,
connectionist temporal classification. They are names of ``flowrt.keras.backend``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt import nn
from flowrt.functions.sparse_functions import sparse_tensor_to_dense
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.array.gather_scatter import gather_nd
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.ranges import sequence_mask
from flowrt.graph.ops.base.filling import fill
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, transpose
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.elementwise.arithmetic import add
from flowrt.graph.ops.elementwise.comparison import where
from flowrt.graph.ops.elementwise.math import log
from flowrt.graph.ops.nn import conv_functions, pooling
from flowrt.graph.ops.nn import moments as statistics_of
from flowrt.graph.ops.nn.bias import bias_add as nn_bias_add
from flowrt.graph.ops.nn.bias import dropout as nn_dropout
from flowrt.graph.typing import DataFormat, PaddingName
from flowrt.image.resizing import resize_bilinear, resize_nearest_neighbor
from flowrt.keras import losses
from flowrt.keras.state.seeds import op_seed
from flowrt.keras.state.settings import epsilon as fuzz
from flowrt.keras.state.settings import image_data_format

__all__ = [
    "batch_normalization", "bias_add", "binary_crossentropy", "categorical_crossentropy", "conv1d",
    "conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose", "ctc_batch_cost", "ctc_decode",
    "ctc_label_dense_to_sparse", "depthwise_conv2d", "dropout", "in_top_k", "normalize_batch_in_training",
    "pool2d", "pool3d", "resize_images", "separable_conv2d",
    "sparse_categorical_crossentropy", "spatial_2d_padding", "spatial_3d_padding", "temporal_padding",
    "to_dense",
]  # fmt: skip


def dropout(x: Any, level: float, noise_shape: Any = None, seed: Any = None) -> Tensor:
    return nn_dropout(x, noise_shape=noise_shape, seed=op_seed(seed), rate=level)


def bias_add(x: Any, bias: Any, data_format: str | None = None) -> Tensor:
    first = (data_format or image_data_format()) == "channels_first"
    return nn_bias_add(x, bias, "NCHW" if first else "NHWC")


def batch_normalization(
    x: Any, mean: Any, var: Any, beta: Any, gamma: Any, axis: int = -1, epsilon: float = 1e-3
) -> Tensor:
    return statistics_of.batch_normalization(x, mean, var, beta, gamma, epsilon)


def normalize_batch_in_training(
    x: Any, gamma: Any, beta: Any, reduction_axes: Any, epsilon: float = 1e-3
) -> tuple[Tensor, Tensor, Tensor]:
    """``x`` normalized over ``reduction_axes``, their mean, and their variance: of images with their channels
    last that of all images, as `nn.fused_batch_norm` estimates it.
    """
    x = convert_to_tensor(x)
    rank, axes = len(x.shape.as_list()), list(reduction_axes)
    if rank == 4 and axes == [0, 1, 2]:
        channels = x.shape.as_list()[3]
        gamma, beta = (
            fill([channels], cast(default, x.dtype)) if given is None else given
            for given, default in ((gamma, 1.0), (beta, 0.0))
        )
        return nn.fused_batch_norm(x, gamma, beta, epsilon=epsilon)[:3]
    mean, variance = statistics_of.moments(x, axes)
    kept = [1 if axis in axes else shape(x)[axis] for axis in range(rank)]
    offset, scale = (None if p is None else reshape(p, kept) for p in (beta, gamma))
    found = statistics_of.batch_normalization(
        x, reshape(mean, kept), reshape(variance, kept), offset, scale, epsilon
    )
    return found, mean, variance


def categorical_crossentropy(target: Any, output: Any, from_logits: bool = False, axis: int = -1) -> Tensor:
    return losses.categorical_crossentropy(target, output, from_logits, axis=axis)


def sparse_categorical_crossentropy(
    target: Any, output: Any, from_logits: bool = False, axis: int = -1
) -> Tensor:
    return losses.sparse_categorical_crossentropy(target, output, from_logits, axis)


def binary_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Tensor:
    """The cross entropy of each element."""
    output = convert_to_tensor(output)
    return losses.elementwise_crossentropy(cast(target, output.dtype), output, from_logits)


def in_top_k(predictions: Any, targets: Any, k: int) -> Tensor:
    return nn.in_top_k(predictions, targets, k)


_MODES: dict[str, PaddingName] = {"valid": "VALID", "same": "SAME"}


def conv2d(
    x: Any, kernel: Any, strides: Any = (1, 1), padding: str = "valid", data_format: str | None = None,
    dilation_rate: Any = (1, 1),
) -> Tensor:  # fmt: skip
    return conv_functions.conv2d(
        x, kernel, list(strides), _MODES[padding], data_format=_layout(data_format),
        dilations=list(dilation_rate),
    )  # fmt: skip


def conv1d(
    x: Any, kernel: Any, strides: int = 1, padding: str = "valid", data_format: str | None = None,
    dilation_rate: int = 1,
) -> Tensor:  # fmt: skip
    first = (data_format or image_data_format()) == "channels_first"
    x, kernel = convert_to_tensor(x), convert_to_tensor(kernel)
    if padding == "causal":
        before = dilation_rate * ((kernel.shape.as_list()[0] or 1) - 1)
        x = pad(x, [[0, 0], [0, 0], [before, 0]] if first else [[0, 0], [before, 0], [0, 0]])
        padding = "valid"
    layout = "NCW" if first else "NWC"
    return conv_functions.conv1d(
        x, kernel, strides, _MODES[padding], data_format=layout, dilations=dilation_rate
    )


def conv2d_transpose(
    x: Any, kernel: Any, output_shape: Any, strides: Any = (1, 1), padding: str = "valid",
    data_format: str | None = None, dilation_rate: Any = (1, 1),
) -> Tensor:  # fmt: skip
    """Images of ``output_shape``; its first entry may be None."""
    sizes = output_shape
    if isinstance(sizes, (list, tuple)) and sizes[0] is None:
        sizes = [shape(x)[0], *sizes[1:]]
    return conv_functions.conv2d_transpose(
        x, kernel, sizes, list(strides), _MODES[padding], data_format=_layout(data_format),
        dilations=list(dilation_rate),
    )  # fmt: skip


def separable_conv2d(
    x: Any, depthwise_kernel: Any, pointwise_kernel: Any, strides: Any = (1, 1), padding: str = "valid",
    data_format: str | None = None, dilation_rate: Any = (1, 1),
) -> Tensor:  # fmt: skip
    layout = _layout(data_format)
    steps = (1, *strides, 1) if layout == "NHWC" else (1, 1, *strides)
    return conv_functions.separable_conv2d(
        x, depthwise_kernel, pointwise_kernel, steps, _MODES[padding], list(dilation_rate), data_format=layout
    )


def depthwise_conv2d(
    x: Any, depthwise_kernel: Any, strides: Any = (1, 1), padding: str = "valid",
    data_format: str | None = None, dilation_rate: Any = (1, 1),
) -> Tensor:  # fmt: skip
    layout = _layout(data_format)
    steps = (1, *strides, 1) if layout == "NHWC" else (1, 1, *strides)
    return conv_functions.depthwise_conv2d(
        x, depthwise_kernel, steps, _MODES[padding], list(dilation_rate), data_format=layout
    )


def conv3d(
    x: Any, kernel: Any, strides: Any = (1, 1, 1), padding: str = "valid", data_format: str | None = None,
    dilation_rate: Any = (1, 1, 1),
) -> Tensor:  # fmt: skip
    first = (data_format or image_data_format()) == "channels_first"
    before, after = ((1, 1), ()) if first else ((1,), (1,))
    steps, dilations = ((*before, *given, *after) for given in (strides, dilation_rate))
    layout = "NCDHW" if first else "NDHWC"
    return conv_functions.conv3d(x, kernel, steps, _MODES[padding], layout, dilations)


def conv3d_transpose(
    x: Any, kernel: Any, output_shape: Any, strides: Any = (1, 1, 1), padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:  # fmt: skip
    """Volumes of ``output_shape``; its first entry may be None."""
    first = (data_format or image_data_format()) == "channels_first"
    sizes = output_shape
    if isinstance(sizes, (list, tuple)) and sizes[0] is None:
        sizes = [shape(x)[0], *sizes[1:]]
    steps = (1, 1, *strides) if first else (1, *strides, 1)
    layout = "NCDHW" if first else "NDHWC"
    return conv_functions.conv3d_transpose(x, kernel, sizes, steps, _MODES[padding], layout)


def pool2d(
    x: Any, pool_size: Any, strides: Any = (1, 1), padding: str = "valid", data_format: str | None = None,
    pool_mode: str = "max",
) -> Tensor:  # fmt: skip
    pool = {"max": pooling.max_pool, "avg": pooling.avg_pool}[pool_mode]
    return pool(x, list(pool_size), list(strides), _MODES[padding], data_format=_layout(data_format))


def pool3d(
    x: Any, pool_size: Any, strides: Any = (1, 1, 1), padding: str = "valid", data_format: str | None = None,
    pool_mode: str = "max",
) -> Tensor:  # fmt: skip
    first = (data_format or image_data_format()) == "channels_first"
    pool = {"max": pooling.max_pool3d, "avg": pooling.avg_pool3d}[pool_mode]
    layout = "NCDHW" if first else "NDHWC"
    return pool(x, list(pool_size), list(strides), _MODES[padding], data_format=layout)


def _layout(data_format: str | None) -> DataFormat:
    return "NCHW" if (data_format or image_data_format()) == "channels_first" else "NHWC"


# --- sizes


def temporal_padding(x: Any, padding: tuple[int, int] = (1, 1)) -> Tensor:
    return _padded(x, [(0, 0), padding, (0, 0)])


def spatial_2d_padding(x: Any, padding: Any = ((1, 1), (1, 1)), data_format: str | None = None) -> Tensor:
    first = (data_format or image_data_format()) == "channels_first"
    return _padded(x, [(0, 0), (0, 0), *padding] if first else [(0, 0), *padding, (0, 0)])


def spatial_3d_padding(
    x: Any, padding: Any = ((1, 1), (1, 1), (1, 1)), data_format: str | None = None
) -> Tensor:
    first = (data_format or image_data_format()) == "channels_first"
    none = ((0, 0),)
    return _padded(x, (*none * 2, *padding) if first else (*none, *padding, *none))


def _padded(x: Any, amounts: Sequence[tuple[int, int]]) -> Tensor:
    """``x`` with zeros before and after, along each dimension."""
    return pad(x, [list(each) for each in amounts])


def resize_images(
    x: Any, height_factor: int, width_factor: int, data_format: str | None, interpolation: str = "nearest"
) -> Tensor:
    """Images times whole factors."""
    first = data_format == "channels_first"
    images = transpose(x, [0, 2, 3, 1]) if first else convert_to_tensor(x)
    dims, sizes = list[Any](images.shape.as_list()), shape(images)
    size = [
        (sizes[i] if dims[i] is None else dims[i]) * f for i, f in ((1, height_factor), (2, width_factor))
    ]
    resize = {"nearest": resize_nearest_neighbor, "bilinear": resize_bilinear}[interpolation]
    found = resize(images, stack(size), half_pixel_centers=interpolation == "bilinear")
    return transpose(found, [0, 3, 1, 2]) if first else found


# --- connectionist temporal classification


def ctc_label_dense_to_sparse(labels: Any, label_lengths: Any) -> SparseTensor:
    """``labels``, ``[batch, labels]``, without those from ``label_lengths``, ``[batch]``, on."""
    labels = convert_to_tensor(labels)
    at = where(sequence_mask(cast(label_lengths, "int32"), shape(labels)[1]))
    return SparseTensor(at, gather_nd(labels, at), cast(shape(labels), "int64"))


def ctc_batch_cost(y_true: Any, y_pred: Any, input_length: Any, label_length: Any) -> Tensor:
    """`nn.ctc_loss` of each sample, ``[batch, 1]``, of probabilities ``y_pred``, ``[batch, time, classes]``,
    the last of them the blank. ``y_true`` are labels, ``[batch, labels]``; lengths are ``[batch, 1]``.
    """
    times, counts = (reshape(cast(length, "int32"), [-1]) for length in (input_length, label_length))
    labels = ctc_label_dense_to_sparse(cast(y_true, "int32"), counts)
    return expand_dims(nn.ctc_loss(labels, _logits(y_pred), times), 1)


def ctc_decode(
    y_pred: Any, input_length: Any, greedy: bool = True, beam_width: int = 100, top_paths: int = 1
) -> tuple[list[Tensor], Tensor]:
    """The labels of the likeliest paths, ``[batch, labels]`` with -1 after the last, and their scores.

    ``greedy`` takes the likeliest class at each time, else a beam of ``beam_width`` finds ``top_paths``.
    """
    logits, times = _logits(y_pred), cast(input_length, "int32")
    if greedy:
        found, scores = nn.ctc_greedy_decoder(logits, times)
    else:
        found, scores = nn.ctc_beam_search_decoder(logits, times, beam_width, top_paths)
    return [sparse_tensor_to_dense(labels, default_value=-1) for labels in found], scores


def _logits(probabilities: Any) -> Tensor:
    return log(add(transpose(probabilities, [1, 0, 2]), fuzz()))


def to_dense(tensor: Any) -> Any:
    """``tensor``, with zeros in their places if it is sparse."""
    return sparse_tensor_to_dense(tensor) if isinstance(tensor, SparseTensor) else tensor
