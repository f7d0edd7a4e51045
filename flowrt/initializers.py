"""Initial values of variables: objects that create a tensor from a shape.

An initializer is called as ``initializer(shape, dtype=None, partition_info=None)`` when a variable is
created; ``dtype`` None means the initializer's own. Random ones take a ``seed`` (see
`flowrt.graph.ops.random.random_ops.set_random_seed`). The scaled ones use a weight's *fans*: the last
dimension is the outputs, the one before it the inputs, and the others (a convolution's taps) multiply both.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.array_values import as_array
from flowrt.graph.construction.build import constant_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base import filling
from flowrt.graph.ops.base.shape_manipulation import matrix_transpose, reshape
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.ops.elementwise.math import sign
from flowrt.graph.ops.linalg.decompositions import qr
from flowrt.graph.ops.linalg.matrix_parts import diag_part, eye
from flowrt.graph.ops.random import random_ops
from flowrt.graph.shapes import as_shape
from flowrt.graph.source import misuse, user_line
from flowrt.graph.typing import NumericLike
from flowrt.tf1.missing_names import missing_from
from flowrt.variables.variable import global_variables_initializer as global_variables
from flowrt.variables.variable import local_variables_initializer as local_variables
from flowrt.variables.variable import variables_initializer as variables

TRUNCATED_STDDEV = 0.87962566103423978
"""The standard deviation of a unit normal distribution truncated at 2."""


class Initializer:
    """Base of the initializers. ``dtype`` must be one of ``allowed``."""

    allowed: ClassVar[frozenset[DType]] = dtypes.FLOATING

    def __init__(self, dtype: DTypeLike = dtypes.float32) -> None:
        self.dtype = self._checked(dtype)

    def _checked(self, dtype: Any) -> DType:
        found = as_dtype(dtype)
        if found not in self.allowed:
            names = ", ".join(sorted(d.name for d in self.allowed))
            raise misuse(f"{type(self).__name__}: expected a dtype of {names}; got {found.name}", DTypeError)
        return found

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        """A tensor of ``shape``, which must be static. Raises `InvalidArgumentError` and `DTypeError`."""
        known = as_shape(shape)
        if known is None or None in known:
            raise misuse(f"{type(self).__name__}: expected a shape without unknown dimensions; got {shape}")
        return self._make([int(d or 0) for d in known], self.dtype if dtype is None else self._checked(dtype))

    def _make(self, shape: list[int], dtype: DType) -> Tensor:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        own = {k.lstrip("_"): v.name if isinstance(v, DType) else v for k, v in vars(self).items()}
        return {name: own[name] for name in inspect.signature(type(self)).parameters if name in own}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Initializer:
        return cls(**config)

    def __repr__(self) -> str:
        fields = ", ".join(f"{k.lstrip('_')}={v!r}" for k, v in vars(self).items())
        return f"{type(self).__name__}({fields})"


class Zeros(Initializer):
    """Zeros (False, empty strings).

    Args:
        dtype: The dtype where none is asked for.

    Example:
        >>> tf.zeros_initializer()([2]).eval()
        array([0., 0.], dtype=float32)
    """

    allowed = dtypes.ANY

    def _make(self, shape: list[int], dtype: DType) -> Tensor:
        return filling.zeros(shape, dtype)


class Ones(Initializer):
    """Ones (True).

    Example:
        >>> tf.ones_initializer()([2]).eval()
        array([1., 1.], dtype=float32)
    """

    allowed = dtypes.NUMERIC | {dtypes.bool_}

    def _make(self, shape: list[int], dtype: DType) -> Tensor:
        return filling.ones(shape, dtype)


class Constant(Initializer):
    """A constant.

    Args:
        value: A number, or one per element of the shape, in row-major order; fewer are padded with the last
            one.
        dtype: The dtype where none is asked for.
        verify_shape: Whether ``value`` must have exactly the shape.

    Raises:
        InvalidArgumentError: There are more numbers than elements, or with ``verify_shape`` the shapes
            differ.

    Example:
        >>> tf.constant_initializer(3.0)([2]).eval()
        array([3., 3.], dtype=float32)
    """

    allowed = dtypes.ANY

    def __init__(
        self, value: NumericLike = 0, dtype: DTypeLike = dtypes.float32, verify_shape: bool = False
    ) -> None:
        super().__init__(dtype)
        self.value, self.verify_shape = value, verify_shape

    def _make(self, shape: list[int], dtype: DType) -> Tensor:
        given = as_array(self.value, dtype)
        size = math.prod(shape)
        if (
            (self.verify_shape and list(given.shape) != shape)
            or given.size > max(size, 1)
            or (size and not given.size)
        ):
            raise misuse(f"Constant: expected a value for shape {shape}; got shape {list(given.shape)}")
        flat = given.reshape(-1)
        if flat.size < size:
            flat = np.concatenate([flat, np.broadcast_to(flat[-1:], size - flat.size)])
        return constant_tensor(np.array(flat[:size]).reshape(shape))


class RandomUniform(Initializer):
    """Uniform in ``[minval, maxval)``; ``maxval`` None means 1."""

    allowed = dtypes.FLOATING | dtypes.INDEX

    def __init__(
        self,
        minval: NumericLike = 0.0,
        maxval: NumericLike | None = None,
        seed: int | None = None,
        dtype: DTypeLike = dtypes.float32,
    ) -> None:
        super().__init__(dtype)
        self.minval, self.maxval, self.seed = minval, maxval, seed

    def _make(self, shape: list[int], dtype: DType) -> Tensor:
        low: Any = self.minval
        if dtype.is_integer and isinstance(low, float):
            low = int(low)
        return random_ops.random_uniform(shape, low, self.maxval, dtype, self.seed)


class RandomNormal(Initializer):
    """Normal with ``mean`` and ``stddev``.

    Args:
        mean: The mean.
        stddev: The standard deviation.
        seed: The seed of the draw.
        dtype: The dtype where none is asked for.

    Example:
        >>> tf.random_normal_initializer(stddev=0.1)([2, 3]).shape.as_list()
        [2, 3]
    """

    def __init__(
        self,
        mean: NumericLike = 0.0,
        stddev: NumericLike = 1.0,
        seed: int | None = None,
        dtype: DTypeLike = dtypes.float32,
    ) -> None:
        super().__init__(dtype)
        self.mean, self.stddev, self.seed = mean, stddev, seed

    def _make(self, shape: list[int], dtype: DType) -> Tensor:
        return random_ops.random_normal(shape, self.mean, self.stddev, dtype, self.seed)


class TruncatedNormal(RandomNormal):
    """`RandomNormal` with values beyond two ``stddev`` redrawn.

    Args:
        mean: The mean.
        stddev: The standard deviation before values are redrawn.
        seed: The seed of the draw.
        dtype: The dtype where none is asked for.

    Example:
        >>> initializer = tf.truncated_normal_initializer(stddev=0.1)
        >>> weights = tf.get_variable('w', [1000], initializer=initializer)
        >>> session.run(weights.initializer)
        >>> bool(abs(weights.eval()).max() <= 0.2)
        True
    """

    def _make(self, shape: list[int], dtype: DType) -> Tensor:
        return random_ops.truncated_normal(shape, self.mean, self.stddev, dtype, self.seed)


def fans(shape: Sequence[int]) -> tuple[float, float]:
    """The number of inputs per output of a weight of ``shape``, and of outputs per input."""
    if len(shape) < 2:
        return (float(shape[0]),) * 2 if shape else (1.0, 1.0)
    taps = math.prod(shape[:-2])
    return float(taps * shape[-2]), float(taps * shape[-1])


class VarianceScaling(Initializer):
    """Values of mean 0 and variance ``scale / n``, where n is the weight's fan in, fan out or their mean
    (``mode``).

    ``distribution`` is "truncated_normal" (or "normal"), "untruncated_normal" or "uniform" (in +-sqrt(3 scale
    / n)).
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
        dtype: DTypeLike = dtypes.float32,
    ) -> None:
        super().__init__(dtype)
        distribution = distribution.lower()
        distribution = "truncated_normal" if distribution == "normal" else distribution
        if scale <= 0:
            raise misuse(f"VarianceScaling: expected a positive scale; got {scale}")
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise misuse(f"VarianceScaling: expected mode fan_in, fan_out or fan_avg; got {mode!r}")
        if distribution not in ("truncated_normal", "untruncated_normal", "uniform"):
            expected = "truncated_normal, untruncated_normal or uniform"
            raise misuse(f"VarianceScaling: expected distribution {expected}; got {distribution!r}")
        self.scale, self.mode, self.distribution, self.seed = scale, mode, distribution, seed

    def _make(self, shape: list[int], dtype: DType) -> Tensor:
        fan_in, fan_out = fans(shape)
        n = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, n)
        if self.distribution == "uniform":
            limit = math.sqrt(3 * variance)
            return random_ops.random_uniform(shape, -limit, limit, dtype, self.seed)
        if self.distribution == "untruncated_normal":
            return random_ops.random_normal(shape, 0.0, math.sqrt(variance), dtype, self.seed)
        return random_ops.truncated_normal(
            shape, 0.0, math.sqrt(variance) / TRUNCATED_STDDEV, dtype, self.seed
        )


class GlorotUniform(VarianceScaling):
    """Uniform in +-sqrt(6 / (fan in + fan out)) (Glorot and Bengio 2010): the default of `get_variable`."""

    def __init__(self, seed: int | None = None, dtype: DTypeLike = dtypes.float32) -> None:
        super().__init__(1.0, "fan_avg", "uniform", seed, dtype)


class GlorotNormal(VarianceScaling):
    """Truncated normal of variance 2 / (fan in + fan out) (Glorot and Bengio 2010)."""

    def __init__(self, seed: int | None = None, dtype: DTypeLike = dtypes.float32) -> None:
        super().__init__(1.0, "fan_avg", "truncated_normal", seed, dtype)


def he_normal(seed: int | None = None) -> VarianceScaling:
    """Truncated normal of variance 2 / fan in (He et al. 2015)."""
    return VarianceScaling(2.0, "fan_in", "truncated_normal", seed)


def he_uniform(seed: int | None = None) -> VarianceScaling:
    """Uniform in +-sqrt(6 / fan in) (He et al. 2015)."""
    return VarianceScaling(2.0, "fan_in", "uniform", seed)


def lecun_normal(seed: int | None = None) -> VarianceScaling:
    """Truncated normal of variance 1 / fan in (LeCun et al. 1998)."""
    return VarianceScaling(1.0, "fan_in", "truncated_normal", seed)


def lecun_uniform(seed: int | None = None) -> VarianceScaling:
    """Uniform in +-sqrt(3 / fan in) (LeCun et al. 1998)."""
    return VarianceScaling(1.0, "fan_in", "uniform", seed)


class UniformUnitScaling(Initializer):
    """Uniform in +-``factor`` * sqrt(3 / n), n the product of all dimensions but the last: keeps the input's
    scale.
    """

    def __init__(
        self, factor: float = 1.0, seed: int | None = None, dtype: DTypeLike = dtypes.float32
    ) -> None:
        super().__init__(dtype)
        self.factor, self.seed = factor, seed

    def _make(self, shape: list[int], dtype: DType) -> Tensor:
        limit = math.sqrt(3 / max(1, math.prod(shape[:-1]))) * self.factor
        return random_ops.random_uniform(shape, -limit, limit, dtype, self.seed)


class Orthogonal(Initializer):
    """A matrix with orthonormal columns, or rows if there are more columns, times ``gain`` (Saxe et al.
    2014).

    All dimensions but the last count as rows. The QR decomposition of a normal matrix, with the signs that
    make R's diagonal positive, so that every orthogonal matrix is equally likely (Mezzadri 2007). Raises
    `InvalidArgumentError` for fewer than two dimensions.
    """

    allowed = frozenset((dtypes.float32, dtypes.float64))

    def __init__(self, gain: float = 1.0, seed: int | None = None, dtype: DTypeLike = dtypes.float32) -> None:
        super().__init__(dtype)
        self.gain, self.seed = gain, seed

    def _make(self, shape: list[int], dtype: DType) -> Tensor:
        if len(shape) < 2:
            raise misuse(f"Orthogonal: expected a shape of at least two dimensions; got {shape}")
        rows, columns = math.prod(shape[:-1]), shape[-1]
        drawn = random_ops.random_normal(
            [max(rows, columns), min(rows, columns)], dtype=dtype, seed=self.seed
        )
        q, r = qr(drawn, full_matrices=False)
        q = multiply(q, sign(diag_part(r)))
        matrix = matrix_transpose(q) if rows < columns else q
        return multiply(reshape(matrix, shape), self.gain)


class Identity(Initializer):
    """``gain`` on the main diagonal of a matrix. Raises `InvalidArgumentError` for other shapes."""

    def __init__(self, gain: float = 1.0, dtype: DTypeLike = dtypes.float32) -> None:
        super().__init__(dtype)
        self.gain = gain

    def _make(self, shape: list[int], dtype: DType) -> Tensor:
        if len(shape) != 2:
            raise misuse(f"Identity: expected a shape of two dimensions; got {shape}")
        return multiply(eye(shape[0], shape[1], dtype=dtype), self.gain)


# --- TensorFlow 1's names: of ``tf.initializers``, then of ``tf`` itself

zeros, ones, constant, identity, orthogonal = Zeros, Ones, Constant, Identity, Orthogonal
random_uniform, random_normal, truncated_normal = RandomUniform, RandomNormal, TruncatedNormal
uniform_unit_scaling, variance_scaling = UniformUnitScaling, VarianceScaling
glorot_uniform, glorot_normal = GlorotUniform, GlorotNormal

zeros_initializer = Zeros
ones_initializer = Ones
constant_initializer = Constant
random_uniform_initializer = RandomUniform
random_normal_initializer = RandomNormal
truncated_normal_initializer = TruncatedNormal
uniform_unit_scaling_initializer = UniformUnitScaling
variance_scaling_initializer = VarianceScaling
orthogonal_initializer = Orthogonal
identity_initializer = Identity
glorot_uniform_initializer = GlorotUniform
glorot_normal_initializer = GlorotNormal


def xavier_initializer(
    uniform: bool = True, seed: int | None = None, dtype: DTypeLike = dtypes.float32
) -> VarianceScaling:
    """Glorot's initializer under the name of ``contrib.layers``.

    Args:
        uniform: Whether values are drawn uniformly instead of from a normal distribution.
        seed: The seed of the draw.
        dtype: The dtype where none is asked for.

    Returns:
        An initializer.

    Example:
        >>> initializer = tf.contrib.layers.xavier_initializer()
        >>> tf.get_variable('w', [2, 3], initializer=initializer).shape.as_list()
        [2, 3]
    """
    return GlorotUniform(seed, dtype) if uniform else GlorotNormal(seed, dtype)


xavier_initializer_conv2d = xavier_initializer

__all__ = [
    "Constant", "GlorotNormal", "GlorotUniform", "Identity", "Initializer", "Ones", "Orthogonal",
    "RandomNormal", "RandomUniform", "TRUNCATED_STDDEV", "TruncatedNormal", "UniformUnitScaling",
    "VarianceScaling", "Zeros", "constant", "constant_initializer", "fans", "global_variables",
    "glorot_normal", "glorot_normal_initializer", "glorot_uniform", "glorot_uniform_initializer", "he_normal",
    "he_uniform", "identity", "identity_initializer", "lecun_normal", "lecun_uniform", "local_variables",
    "ones", "ones_initializer", "orthogonal", "orthogonal_initializer", "random_normal",
    "random_normal_initializer", "random_uniform", "random_uniform_initializer", "truncated_normal",
    "truncated_normal_initializer", "uniform_unit_scaling", "uniform_unit_scaling_initializer", "variables",
    "variance_scaling", "variance_scaling_initializer", "xavier_initializer", "xavier_initializer_conv2d",
    "zeros", "zeros_initializer",
]  # fmt: skip


__getattr__ = missing_from("initializers")
