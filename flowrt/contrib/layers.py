"""``flowrt.contrib.layers``: layers with variables from `get_variable`, called weights and biases.

Every function opens a variable scope (``scope``, or a default name made unique), applies ``normalizer_fn``
instead of biases if there is one, then ``activation_fn``, and takes defaults from `arg_scope`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flowrt.contrib.feature_columns import (
    bucketized_column,
    create_feature_spec_for_parsing,
    crossed_column,
    embedding_column,
    infer_real_valued_columns,
    input_from_feature_columns,
    one_hot_column,
    real_valued_column,
    sparse_column_with_hash_bucket,
    sparse_column_with_integerized_feature,
    sparse_column_with_keys,
    sparse_column_with_vocabulary_file,
    weighted_sparse_column,
)
from flowrt.contrib.framework import add_arg_scope
from flowrt.contrib.named_outputs import collect_named_outputs, get_variable_collections
from flowrt.contrib.optimize_loss import (
    OPTIMIZER_CLS_NAMES,
    OPTIMIZER_SUMMARIES,
    adaptive_clipping_fn,
    optimize_loss,
)
from flowrt.contrib.rarer_layers import dense_to_sparse, group_norm, maxout, unit_norm
from flowrt.contrib.summarize import (
    summarize_activation,
    summarize_activations,
    summarize_collection,
    summarize_tensor,
    summarize_tensors,
)
from flowrt.dtypes import DTypeLike, float32
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.ranges import one_hot
from flowrt.graph.ops.array.selection import embedding_lookup
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.elementwise.arithmetic import add_n, multiply
from flowrt.graph.ops.elementwise.comparison import where
from flowrt.graph.ops.linalg.matmul import matmul, tensordot
from flowrt.graph.ops.nn import activations, bias, pooling
from flowrt.graph.ops.nn.conv_functions import conv2d_transpose as deconvolve
from flowrt.graph.ops.nn.conv_functions import convolution, depthwise_conv2d
from flowrt.graph.ops.nn.moments import batch_normalization as normalize
from flowrt.graph.ops.nn.moments import moments
from flowrt.graph.ops.nn.softmax import softmax as soft_maximum
from flowrt.graph.source import misuse
from flowrt.graph.typing import Ints, NumericLike, PaddingName, ShapeTensorLike
from flowrt.initializers import TRUNCATED_STDDEV, Ones, VarianceScaling, Zeros
from flowrt.layers.core import Flatten, is_symbolic
from flowrt.layers.normalization import BatchNormalization
from flowrt.layers.regularizers import l1_l2_regularizer, l1_regularizer, l2_regularizer
from flowrt.tf1.missing_names import missing_from
from flowrt.variables.get_variable import get_variable
from flowrt.variables.variable import GraphKeys, Variable
from flowrt.variables.variable_scope import variable_scope

__all__ = [
    "OPTIMIZER_CLS_NAMES", "OPTIMIZER_SUMMARIES", "adaptive_clipping_fn", "apply_regularization",
    "avg_pool2d", "batch_norm", "bias_add", "conv2d", "conv2d_transpose", "convolution2d",
    "convolution2d_transpose", "dropout", "elu", "embed_sequence", "flatten", "fully_connected",
    "dense_to_sparse", "group_norm", "instance_norm", "l1_l2_regularizer",
    "l1_regularizer", "l2_regularizer", "layer_norm", "linear", "max_pool2d", "maxout",
    "one_hot_encoding", "optimize_loss", "relu", "relu6", "repeat", "unit_norm",
    "separable_conv2d", "separable_convolution2d", "softmax", "stack",
    "sum_regularizer", "summarize_activation", "summarize_activations", "summarize_collection",
    "summarize_tensor", "summarize_tensors",
    "variance_scaling_initializer", "xavier_initializer", "xavier_initializer_conv2d",
    "bucketized_column", "create_feature_spec_for_parsing", "crossed_column", "embedding_column",
    "infer_real_valued_columns", "input_from_feature_columns", "one_hot_column", "real_valued_column",
    "sparse_column_with_hash_bucket", "sparse_column_with_integerized_feature", "sparse_column_with_keys",
    "sparse_column_with_vocabulary_file", "weighted_sparse_column",
]  # fmt: skip


def variance_scaling_initializer(
    factor: float = 2.0,
    mode: str = "FAN_IN",
    uniform: bool = False,
    seed: int | None = None,
    dtype: DTypeLike = float32,
) -> VarianceScaling:
    """Uniform of variance ``factor / n``, or ``sqrt(1.3 factor / n)`` times a unit normal that is truncated
    at 2; n: FAN_IN, FAN_OUT, FAN_AVG of the shape.
    """
    if uniform:
        return VarianceScaling(factor, mode.lower(), "uniform", seed, dtype)
    return VarianceScaling(factor * ROUNDED, mode.lower(), "truncated_normal", seed, dtype)


ROUNDED = 1.3 * TRUNCATED_STDDEV**2
"""The variance of contrib's draws: it divides by a rounded variance of the truncated normal, 1 / 1.3."""


def xavier_initializer(
    uniform: bool = True, seed: int | None = None, dtype: DTypeLike = float32
) -> VarianceScaling:
    """Glorot's initializer, with `variance_scaling_initializer`'s truncated normal unless ``uniform``.

    Args:
        uniform: Whether draws are uniform.
        seed: An integer, for the same draws in each session.
        dtype: A floating dtype.

    Returns:
        An initializer, for ``tf.get_variable``.

    Example:
        >>> initializer = tf.contrib.layers.xavier_initializer()
        >>> tf.get_variable('w', [2, 3], initializer=initializer).shape.as_list()
        [2, 3]
    """
    return variance_scaling_initializer(1.0, "FAN_AVG", uniform, seed, dtype)


xavier_initializer_conv2d = xavier_initializer
XAVIER = xavier_initializer()


Maker = Callable[[str, Sequence[int], Any, Any], Variable]


def _maker(inputs: Tensor, trainable: bool, collections: Any) -> Maker:
    """A function that creates a layer's (model) variables from name, shape, initializer and regularizer.

    ``collections`` are more collections for them, or a dict of those by name.
    """

    def make(name: str, sizes: Sequence[int], initializer: Any, regularizer: Any) -> Variable:
        keys = [
            GraphKeys.GLOBAL_VARIABLES,
            GraphKeys.MODEL_VARIABLES,
            *get_variable_collections(collections, name),
        ]
        return get_variable(name, sizes, inputs.dtype, initializer, regularizer, trainable, keys)

    return make


def _finish(
    outputs: Tensor, make: Maker, channels: int, biases: tuple[Any, Any], normalizer: tuple[Any, Any],
    activation_fn: Any, collections: Any, data_format: str | None = None,
) -> Tensor:  # fmt: skip
    """``normalizer`` (function, arguments) or ``biases`` (initializer, regularizer); then activation."""
    normalizer_fn, normalizer_params = normalizer
    if normalizer_fn is not None:
        outputs = normalizer_fn(outputs, **(normalizer_params or {}))
    elif biases[0] is not None:
        outputs = bias.bias_add(outputs, make("biases", [channels], *biases), data_format=data_format)
    if activation_fn is not None:
        outputs = activation_fn(outputs)
    return _collected(outputs, collections)


def _collected(outputs: Tensor, collections: Any, alias: str | None = None) -> Tensor:
    """``outputs`` in ``collections`` under the name of the layer's scope, by default the current one."""
    return collect_named_outputs(collections, alias or get_default_graph().get_name_scope(), outputs)


def _depth(inputs: Tensor, axis: int, what: str) -> int:
    dims = inputs.spec.shape
    size = None if dims is None or not -len(dims) <= axis < len(dims) else dims[axis]
    if size is None:
        raise misuse(f"{what}: expected inputs with a known axis {axis}; got {inputs!r}")
    return int(size)


def _pair(size: Any) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


# --- layers


@add_arg_scope
def fully_connected(
    inputs: Any, num_outputs: int, activation_fn: Any = activations.relu, normalizer_fn: Any = None,
    normalizer_params: Any = None, weights_initializer: Any = XAVIER, weights_regularizer: Any = None,
    biases_initializer: Any = Zeros(), biases_regularizer: Any = None, reuse: Any = None,  # noqa: B008
    variables_collections: Any = None, outputs_collections: Any = None, trainable: bool = True,
    scope: Any = None,
) -> Tensor:  # fmt: skip
    """``activation(inputs @ weights + biases)`` over the last axis: ``[..., n] -> [..., num_outputs]``."""
    inputs = convert_to_tensor(inputs)
    with variable_scope(scope, "fully_connected", [inputs], reuse=reuse):
        sizes = [_depth(inputs, -1, "fully_connected"), num_outputs]
        make = _maker(inputs, trainable, variables_collections)
        weights = make("weights", sizes, weights_initializer, weights_regularizer)
        flat = inputs.shape.rank == 2
        outputs = (
            matmul(inputs, weights) if flat else tensordot(inputs, weights, [[inputs.shape.rank - 1], [0]])
        )
        return _finish(
            outputs, make, num_outputs, (biases_initializer, biases_regularizer),
            (normalizer_fn, normalizer_params), activation_fn, outputs_collections,
        )  # fmt: skip


@add_arg_scope
def conv2d(
    inputs: NumericLike, num_outputs: int, kernel_size: Ints, stride: Ints = 1, padding: PaddingName = "SAME",
    data_format: str | None = None, rate: NumericLike = 1, activation_fn: Any = activations.relu,
    normalizer_fn: Any = None, normalizer_params: Any = None, weights_initializer: Any = XAVIER,
    weights_regularizer: Any = None,
    biases_initializer: Any = Zeros(), biases_regularizer: Any = None, reuse: Any = None,  # noqa: B008
    variables_collections: Any = None, outputs_collections: Any = None, trainable: bool = True,
    scope: Any = None,
) -> Tensor:  # fmt: skip
    """A convolution of ``num_outputs`` filters over images; ``rate`` is the dilation."""
    inputs = convert_to_tensor(inputs)
    with variable_scope(scope, "Conv", [inputs], reuse=reuse):
        depth = _depth(inputs, 1 if data_format == "NCHW" else -1, "conv2d")
        sizes = [*_pair(kernel_size), depth, num_outputs]
        make = _maker(inputs, trainable, variables_collections)
        weights = make("weights", sizes, weights_initializer, weights_regularizer)
        outputs = convolution(
            inputs,
            weights,
            padding,
            strides=_pair(stride),
            dilation_rate=_pair(rate),
            data_format=data_format,
        )
        return _finish(
            outputs, make, num_outputs, (biases_initializer, biases_regularizer),
            (normalizer_fn, normalizer_params), activation_fn, outputs_collections, data_format,
        )  # fmt: skip


@add_arg_scope
def separable_conv2d(
    inputs: NumericLike, num_outputs: int | None, kernel_size: Ints, depth_multiplier: int = 1,
    stride: Ints = 1, padding: PaddingName = "SAME", data_format: str = "NHWC", rate: NumericLike = 1,
    activation_fn: Any = activations.relu, normalizer_fn: Any = None, normalizer_params: Any = None,
    weights_initializer: Any = XAVIER, pointwise_initializer: Any = None, weights_regularizer: Any = None,
    biases_initializer: Any = Zeros(), biases_regularizer: Any = None, reuse: Any = None,  # noqa: B008
    variables_collections: Any = None, outputs_collections: Any = None, trainable: bool = True,
    scope: Any = None,
) -> Tensor:  # fmt: skip
    """A convolution of each channel by ``depth_multiplier`` filters, then one of 1 x 1 that mixes what comes
    out into ``num_outputs`` channels; None leaves that out.
    """
    inputs = convert_to_tensor(inputs)
    with variable_scope(scope, "SeparableConv2d", [inputs], reuse=reuse):
        depth = _depth(inputs, 1 if data_format == "NCHW" else -1, "separable_conv2d")
        make = _maker(inputs, trainable, variables_collections)
        wide, regularizer = depth * depth_multiplier, weights_regularizer
        depthwise = make(
            "depthwise_weights", [*_pair(kernel_size), depth, depth_multiplier], weights_initializer,
            regularizer,
        )  # fmt: skip
        steps, rates = _pair(stride), _pair(rate)
        strides = [1, 1, *steps] if data_format == "NCHW" else [1, *steps, 1]
        outputs = depthwise_conv2d(inputs, depthwise, strides, padding, rates, data_format=data_format)
        if num_outputs is not None:
            mixing = make(
                "pointwise_weights", [1, 1, wide, num_outputs], pointwise_initializer or weights_initializer,
                regularizer,
            )  # fmt: skip
            outputs = convolution(outputs, mixing, "VALID", data_format=data_format)
        return _finish(
            outputs, make, num_outputs or wide, (biases_initializer, biases_regularizer),
            (normalizer_fn, normalizer_params), activation_fn, outputs_collections, data_format,
        )  # fmt: skip


@add_arg_scope
def conv2d_transpose(
    inputs: NumericLike, num_outputs: int, kernel_size: Ints, stride: Ints = 1, padding: PaddingName = "SAME",
    data_format: str = "NHWC", activation_fn: Any = activations.relu, normalizer_fn: Any = None,
    normalizer_params: Any = None, weights_initializer: Any = XAVIER, weights_regularizer: Any = None,
    biases_initializer: Any = Zeros(), biases_regularizer: Any = None, reuse: Any = None,  # noqa: B008
    variables_collections: Any = None, outputs_collections: Any = None, trainable: bool = True,
    scope: Any = None,
) -> Tensor:  # fmt: skip
    """The gradient of `conv2d` as a layer: images grow by ``stride``. Only NHWC."""
    if data_format != "NHWC":
        raise misuse(f"conv2d_transpose: expected data_format NHWC; got {data_format!r}")
    inputs = convert_to_tensor(inputs)
    with variable_scope(scope, "Conv2d_transpose", [inputs], reuse=reuse):
        if inputs.shape.rank != 4:
            raise misuse(f"conv2d_transpose: expected inputs of rank 4; got {inputs!r}")
        kernel, strides = _pair(kernel_size), _pair(stride)
        sizes = [*kernel, num_outputs, _depth(inputs, -1, "conv2d_transpose")]
        make = _maker(inputs, trainable, variables_collections)
        weights = make("weights", sizes, weights_initializer, weights_regularizer)
        grown = _grown(inputs, kernel, strides, padding)
        outputs = deconvolve(inputs, weights, [*grown, num_outputs], [1, *strides, 1], padding)
        return _finish(
            outputs, make, num_outputs, (biases_initializer, biases_regularizer),
            (normalizer_fn, normalizer_params), activation_fn, outputs_collections,
        )  # fmt: skip


def _grown(inputs: Tensor, kernel: list[int], strides: list[int], padding: str) -> list[Any]:
    """Batch size, height and width of a transposed convolution's output, as numbers where they are known."""
    dynamic: Any = shape(inputs)
    static: list[Any] = inputs.shape.as_list()
    batch, height, width = [dynamic[i] if static[i] is None else static[i] for i in range(3)]
    beyond = [
        max(k - s, 0) if padding.upper() == "VALID" else 0 for k, s in zip(kernel, strides, strict=True)
    ]
    return [batch, height * strides[0] + beyond[0], width * strides[1] + beyond[1]]


def _pooling(name: str, pool: Callable[..., Tensor], default_scope: str) -> Callable[..., Tensor]:
    def pooled(
        inputs: Any, kernel_size: Any, stride: Any = 2, padding: PaddingName = "VALID",
        data_format: str = "NHWC", outputs_collections: Any = None, scope: str | None = None,
    ) -> Tensor:  # fmt: skip
        first = data_format == "NCHW"
        window, steps = ([1, 1, *_pair(v)] if first else [1, *_pair(v), 1] for v in (kernel_size, stride))
        outputs = pool(inputs, window, steps, padding, data_format=data_format, name=scope or default_scope)
        return _collected(outputs, outputs_collections, outputs.op.name)

    pooled.__name__ = pooled.__qualname__ = name
    pooled.__doc__ = f"See `nn.{pool.__name__}`."
    return add_arg_scope(pooled)


max_pool2d = _pooling("max_pool2d", pooling.max_pool, "MaxPool2D")
avg_pool2d = _pooling("avg_pool2d", pooling.avg_pool, "AvgPool2D")


def _collect_variables(layer: BatchNormalization, collections: Any) -> None:
    """Add the variables of ``layer`` to the model's, as they are made, and to the ``collections`` for them,
    those that move first, as TensorFlow does.
    """
    moving = ("moving_mean", "moving_variance")
    made = (*layer.parameters, *moving)
    for name in made:
        _collect(getattr(layer, name), GraphKeys.MODEL_VARIABLES)
    for name in made if isinstance(layer, _BetaFirst) else (*moving, "beta", "gamma"):
        for key in get_variable_collections(collections, name):
            _collect(getattr(layer, name), key)


def _collect(variable: Variable | None, key: str) -> None:
    """Add ``variable`` to a collection, unless it is there, as when it is reused."""
    graph = get_default_graph()
    if variable is not None and not any(each is variable for each in graph.get_collection(key)):
        graph.add_to_collection(key, variable)


class _BetaFirst(BatchNormalization):
    """The order of variables of contrib's own normalization, which takes what the core layer did not, and
    moves the averages of a layer that is not trainable, too.
    """

    parameters, stateful = ("beta", "gamma"), True


@add_arg_scope
def batch_norm(
    inputs: NumericLike, decay: float = 0.999, center: bool = True, scale: bool = False,
    epsilon: float = 0.001, activation_fn: Any = None, param_initializers: Any = None,
    param_regularizers: Any = None,
    updates_collections: Any = GraphKeys.UPDATE_OPS, is_training: Any = True, reuse: Any = None,
    variables_collections: Any = None, outputs_collections: Any = None, trainable: bool = True,
    batch_weights: Any = None, fused: bool | None = None, data_format: str = "NHWC",
    zero_debias_moving_mean: bool = False, scope: Any = None,
) -> Tensor:  # fmt: skip
    """See `layers.batch_normalization`. With ``updates_collections=None`` the output waits for the updates.
    Inputs of rank 2 are normalized as images of one pixel, unless ``fused`` is False: so their moving
    variance is over n - 1, too.

    Raises `InvalidArgumentError` for ``batch_weights`` and ``zero_debias_moving_mean``, which are not
    supported.
    """
    if batch_weights is not None or zero_debias_moving_mean:
        raise misuse("batch_norm: expected no batch_weights and no zero_debias_moving_mean")
    if data_format not in ("NHWC", "NCHW"):
        raise misuse(f"batch_norm: expected data_format NHWC or NCHW; got {data_format!r}")
    inputs = convert_to_tensor(inputs)
    if not inputs.dtype.is_floating:
        raise misuse(f"batch_norm: expected inputs of a floating dtype; got {inputs!r}", DTypeError)
    _depth(inputs, 1 if data_format == "NCHW" else -1, "batch_norm")
    graph = get_default_graph()
    initializers, regularizers = param_initializers or {}, param_regularizers or {}
    is_flat = inputs.shape.ndims == 2 and fused is not False
    is_core = updates_collections == GraphKeys.UPDATE_OPS and not is_flat
    with variable_scope(scope, "BatchNorm", [inputs], reuse=reuse) as captured:
        layer = (BatchNormalization if is_core else _BetaFirst)(
            1 if data_format == "NCHW" else -1, decay, epsilon, center, scale,
            **{f"{name}_initializer": made for name, made in initializers.items()},
            **{f"{name}_regularizer": made for name, made in regularizers.items()},
            fused=fused, trainable=trainable, _scope=captured, _reuse=reuse,
        )  # fmt: skip
        updates = graph.get_collection_ref(GraphKeys.UPDATE_OPS)
        before = len(updates)
        if is_flat:
            width = inputs.shape[1]
            pixels = reshape(inputs, [-1, width, 1, 1] if data_format == "NCHW" else [-1, 1, 1, width])
            outputs = reshape(layer(pixels, training=is_training), shape(inputs))
        else:
            outputs = layer(inputs, training=is_training)
        _collect_variables(layer, variables_collections)
        made, updates[before:] = updates[before:], []
        if updates_collections is None:
            with graph.control_dependencies(made):
                outputs = multiply(outputs, 1)
        for update in made:
            graph.add_to_collections(updates_collections, update)
        outputs = outputs if activation_fn is None else activation_fn(outputs)
        return _collected(outputs, outputs_collections)


@add_arg_scope
def layer_norm(
    inputs: Any, center: bool = True, scale: bool = True, activation_fn: Any = None, reuse: Any = None,
    variables_collections: Any = None, outputs_collections: Any = None, trainable: bool = True,
    begin_norm_axis: int = 1, begin_params_axis: int = -1, scope: Any = None,
) -> Tensor:  # fmt: skip
    """Each example normalized by its mean and standard deviation (along the axes from ``begin_norm_axis``
    on), times ``gamma``, plus ``beta``, which have the axes from ``begin_params_axis`` on.

    Raises `InvalidArgumentError` for axes that the inputs do not have or axes of unknown size.
    """
    inputs = convert_to_tensor(inputs)
    rank = inputs.shape.rank
    if rank is None or not -rank <= begin_norm_axis < rank or not -rank <= begin_params_axis < rank:
        expected = f"inputs with the axes {begin_norm_axis} and {begin_params_axis}"
        raise misuse(f"layer_norm: expected {expected}; got {inputs!r}")
    with variable_scope(scope, "LayerNorm", [inputs], reuse=reuse):
        sizes = [_depth(inputs, axis, "layer_norm") for axis in range(begin_params_axis % rank, rank)]
        make = _maker(inputs, trainable, variables_collections)
        beta = make("beta", sizes, Zeros(), None) if center else None
        gamma = make("gamma", sizes, Ones(), None) if scale else None
        mean, variance = moments(inputs, list(range(begin_norm_axis % rank, rank)), keepdims=True)
        epsilon = 1e-3 if inputs.dtype.name == "float16" else 1e-12
        outputs = normalize(inputs, mean, variance, beta, gamma, epsilon)
        return _collected(outputs if activation_fn is None else activation_fn(outputs), outputs_collections)


@add_arg_scope
def instance_norm(
    inputs: Any, center: bool = True, scale: bool = True, epsilon: float = 1e-6, activation_fn: Any = None,
    param_initializers: Any = None, reuse: Any = None, variables_collections: Any = None,
    outputs_collections: Any = None, trainable: bool = True, data_format: str = "NHWC", scope: Any = None,
) -> Tensor:  # fmt: skip
    """Each channel of each image normalized by its mean and deviation, times ``gamma``, plus ``beta``.

    D. Ulyanov et al., Instance Normalization (2016).
    """
    inputs = convert_to_tensor(inputs)
    at = 1 if data_format.startswith("NC") else inputs.shape.rank - 1
    with variable_scope(scope, "InstanceNorm", [inputs], reuse=reuse):
        channels = _depth(inputs, at, "instance_norm")
        initializers = {"beta": Zeros(), "gamma": Ones(), **(param_initializers or {})}
        make = _maker(inputs, trainable, variables_collections)
        beta, gamma = (
            make(name, [channels], initializers[name], None) if is_there else None
            for name, is_there in (("beta", center), ("gamma", scale))
        )
        axes = [axis for axis in range(1, inputs.shape.rank) if axis != at]
        sizes = [-1 if axis == at else 1 for axis in range(inputs.shape.rank)]
        offset, factor = (each if each is None else reshape(each, sizes) for each in (beta, gamma))
        outputs = normalize(inputs, *moments(inputs, axes, keepdims=True), offset, factor, epsilon)
        return _collected(outputs if activation_fn is None else activation_fn(outputs), outputs_collections)


@add_arg_scope
def dropout(
    inputs: NumericLike, keep_prob: NumericLike = 0.5, noise_shape: ShapeTensorLike = None,
    is_training: Any = True, outputs_collections: Any = None, scope: str | None = None,
    seed: int | None = None,
) -> Tensor:  # fmt: skip
    """`nn.dropout` while ``is_training`` is true; otherwise the inputs."""
    inputs = convert_to_tensor(inputs)
    if is_symbolic(is_training):
        outputs = where(is_training, bias.dropout(inputs, keep_prob, noise_shape, seed, scope), inputs)
    else:
        outputs = bias.dropout(inputs, keep_prob, noise_shape, seed, scope) if is_training else inputs
    return _collected(outputs, outputs_collections)


@add_arg_scope
def flatten(inputs: NumericLike, outputs_collections: Any = None, scope: str | None = None) -> Tensor:
    """``[n, ...] -> [n, product of the rest]``.

    Example:
        >>> tf.contrib.layers.flatten(tf.zeros([2, 3, 4])).shape.as_list()
        [2, 12]
    """
    return _collected(Flatten(name=scope)(inputs), outputs_collections)


@add_arg_scope
def bias_add(
    inputs: NumericLike, activation_fn: Any = None, initializer: Any = Zeros(),  # noqa: B008
    regularizer: Any = None, reuse: Any = None, variables_collections: Any = None,
    outputs_collections: Any = None, trainable: bool = True, data_format: str = "NHWC", scope: Any = None,
) -> Tensor:  # fmt: skip
    """Add a variable ``biases`` along the channels."""
    inputs = convert_to_tensor(inputs)
    with variable_scope(scope, "BiasAdd", [inputs], reuse=reuse):
        sizes = [_depth(inputs, 1 if data_format == "NCHW" else -1, "bias_add")]
        make = _maker(inputs, trainable, variables_collections)
        biases = make("biases", sizes, initializer, regularizer)
        outputs = bias.bias_add(inputs, biases, data_format=data_format)
        return _collected(outputs if activation_fn is None else activation_fn(outputs), outputs_collections)


@add_arg_scope
def softmax(logits: NumericLike, scope: str | None = None) -> Tensor:
    """See `nn.softmax`, over the last axis."""
    return soft_maximum(logits, name=scope or "softmax")


@add_arg_scope
def one_hot_encoding(
    labels: NumericLike, num_classes: int, on_value: float = 1.0, off_value: float = 0.0,
    outputs_collections: Any = None, scope: str | None = None,
) -> Tensor:  # fmt: skip
    """See `one_hot`."""
    return _collected(one_hot(labels, num_classes, on_value, off_value, name=scope), outputs_collections)


def embed_sequence(
    ids: NumericLike, vocab_size: int, embed_dim: int, unique: bool = False, initializer: Any = None,
    regularizer: Any = None, trainable: bool = True, scope: Any = None, reuse: Any = None,
) -> Tensor:  # fmt: skip
    """Look up ``ids`` in a variable ``embeddings`` of shape ``[vocab_size, embed_dim]``."""
    with variable_scope(scope, "EmbedSequence", reuse=reuse):
        table = get_variable("embeddings", [vocab_size, embed_dim], None, initializer, regularizer, trainable)
        return embedding_lookup(table, ids)


linear = partial(fully_connected, activation_fn=None)
relu = partial(fully_connected, activation_fn=activations.relu)
relu6 = partial(fully_connected, activation_fn=activations.relu6)
elu = partial(fully_connected, activation_fn=activations.elu)


# --- several layers in one call


def repeat(
    inputs: NumericLike, repetitions: int, layer: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Apply ``layer`` in a row, in the scopes ``name/name_1``, ``name/name_2``, ...; ``scope``: the name."""
    scope = kwargs.pop("scope", None)
    name = _name_of(layer, "repeat")
    with variable_scope(scope, "Repeat", [inputs]):
        outputs = inputs
        for i in range(repetitions):
            outputs = layer(outputs, *args, **{**kwargs, "scope": f"{scope or name}_{i + 1}"})
        return outputs


def stack(inputs: NumericLike, layer: Callable[..., Any], stack_args: Sequence[Any], **kwargs: Any) -> Any:
    """Apply ``layer`` in a row with the arguments ``stack_args[0]``, ``stack_args[1]``, ..."""
    scope = kwargs.pop("scope", None)
    name = _name_of(layer, "stack")
    with variable_scope(scope, "Stack", [inputs]):
        outputs = inputs
        for i, given in enumerate(stack_args):
            arguments = given if isinstance(given, (list, tuple)) else [given]
            outputs = layer(outputs, *arguments, **{**kwargs, "scope": f"{scope or name}_{i + 1}"})
        return outputs


def _name_of(layer: Any, default: str) -> str:
    """The name of a layer's function, also of a `partial` such as `linear`."""
    name: str = getattr(getattr(layer, "func", layer), "__name__", default)
    return name


# --- regularizers


def sum_regularizer(
    regularizer_list: Sequence[Any], scope: str | None = None
) -> Callable[[Any], Tensor | None]:
    """The sum of several regularizers."""

    def regularize(weights: Any) -> Tensor | None:
        losses = [
            loss for loss in (r(weights) for r in regularizer_list if r is not None) if loss is not None
        ]
        return add_n(losses, name=scope) if losses else None

    return regularize


def apply_regularization(regularizer: Any, weights_list: Sequence[Any] | None = None) -> Tensor:
    """The regularizer's losses of all weights (collection WEIGHTS if None), summed and collected."""
    graph = get_default_graph()
    weights = graph.get_collection(GraphKeys.WEIGHTS) if weights_list is None else weights_list
    losses = [loss for loss in map(regularizer, weights) if loss is not None]
    total: Tensor = add_n(losses) if losses else convert_to_tensor(0.0)
    graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, total)
    return total


convolution2d, convolution2d_transpose = conv2d, conv2d_transpose
separable_convolution2d = separable_conv2d


__getattr__ = missing_from("contrib.layers")
