"""Normal distributions of vectors: `MultivariateNormalDiag`, `MultivariateNormalTriL` and their like.

A value is ``loc + scale @ z``, z of independent normal numbers, ``scale`` a diagonal or triangular matrix.
"""

from __future__ import annotations

import math
from typing import Any

from flowrt.distributions.distribution import FULLY_REPARAMETERIZED, Distribution, checked, floats
from flowrt.distributions.kullback_leibler import RegisterKL
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import (
    broadcast_dynamic_shape,
    broadcast_static_shape,
    broadcast_to,
    ones,
    zeros_like,
)
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, matrix_transpose, reshape, shape, squeeze
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.math import log, sqrt, square
from flowrt.graph.ops.linalg.decompositions import cholesky, matrix_triangular_solve
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.linalg.matrix_parts import matrix_band_part, matrix_diag, matrix_diag_part
from flowrt.graph.ops.nn.activations import softplus
from flowrt.graph.ops.random.random_ops import random_normal
from flowrt.graph.ops.text.assertions import assert_positive
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse

_LOG_2PI = math.log(2 * math.pi)


class _Vector(Distribution):
    """Base: a distribution of vectors, from its location and the diagonal of its scale."""

    def __init__(
        self,
        loc: Tensor,
        diagonal: Tensor,
        validate_args: bool,
        allow_nan_stats: bool,
        parameters: dict[str, Any],
        name: str,
    ) -> None:
        self._loc, self._diagonal = loc, checked(diagonal, validate_args, assert_positive)
        super().__init__(
            loc.dtype, FULLY_REPARAMETERIZED, validate_args, allow_nan_stats,
            {**parameters, "validate_args": validate_args, "allow_nan_stats": allow_nan_stats},
            [loc, diagonal], name,
        )  # fmt: skip

    @property
    def loc(self) -> Tensor:
        return self._loc

    def _both_shapes(self) -> TensorShape:
        return broadcast_static_shape(self._loc.shape, self._diagonal.shape)

    def _both_sizes(self) -> Any:
        return broadcast_dynamic_shape(shape(self._loc), shape(self._diagonal))

    def _batch_shape(self) -> TensorShape:
        return self._both_shapes()[:-1]

    def _batch_shape_tensor(self) -> Tensor:
        return self._both_sizes()[:-1]

    def _event_shape(self) -> TensorShape:
        return self._both_shapes()[-1:]

    def _event_shape_tensor(self) -> Tensor:
        return self._both_sizes()[-1:]

    def _times_scale(self, z: Tensor) -> Tensor:
        raise NotImplementedError

    def _over_scale(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _log_det(self) -> Tensor:
        return reduce_sum(log(absolute(self._diagonal)), -1)

    def _size(self) -> Tensor:
        return cast(self.event_shape_tensor()[0], self.dtype)

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        sizes = concat([reshape(n, [1]), self._both_sizes()], 0)
        return self._loc + self._times_scale(random_normal(sizes, dtype=self.dtype, seed=seed))

    def _log_prob(self, x: Any) -> Tensor:
        z = self._over_scale(x - self._loc)
        return -0.5 * (reduce_sum(square(z), -1) + self._size() * _LOG_2PI) - self._log_det()

    def _entropy(self) -> Tensor:
        found = 0.5 * self._size() * (1 + _LOG_2PI) + self._log_det()
        return broadcast_to(found, self.batch_shape_tensor())

    def _mean(self) -> Tensor:
        return broadcast_to(self._loc, self._both_sizes())

    _mode = _mean


class MultivariateNormalDiag(_Vector):
    """Independent normal numbers of means ``loc`` and standard deviations ``scale_diag`` plus
    ``scale_identity_multiplier``, each by default 0, 1 and 0.

        MultivariateNormalDiag([0.0, 0.0], [1.0, 2.0]).log_prob([0.5, 0.5])  # a scalar
    """

    def __init__(
        self,
        loc: Any = None,
        scale_diag: Any = None,
        scale_identity_multiplier: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalDiag",
    ) -> None:
        given = {
            "loc": loc, "scale_diag": scale_diag, "scale_identity_multiplier": scale_identity_multiplier
        }  # fmt: skip
        known = {key: value for key, value in given.items() if value is not None}
        if "loc" not in known and "scale_diag" not in known:
            raise misuse("MultivariateNormalDiag: expected loc or scale_diag; got neither")
        found = dict(zip(known, floats(**known), strict=True))
        vector: Any = found.get("scale_diag", found.get("loc"))
        diagonal: Any = found.get("scale_diag")
        if "scale_identity_multiplier" in found:
            more = expand_dims(found["scale_identity_multiplier"], -1)
            diagonal = (0.0 if diagonal is None else diagonal) + more * ones(shape(vector)[-1:], vector.dtype)
        elif diagonal is None:
            diagonal = ones(shape(vector)[-1:], vector.dtype)
        super().__init__(
            found.get("loc", zeros_like(diagonal)), diagonal, validate_args, allow_nan_stats, given, name
        )

    def _times_scale(self, z: Tensor) -> Tensor:
        return self._diagonal * z

    def _over_scale(self, x: Tensor) -> Tensor:
        return x / self._diagonal

    def _stddev(self) -> Tensor:
        return absolute(self._diagonal) + zeros_like(self._loc)

    def _covariance(self) -> Tensor:
        return matrix_diag(square(self._stddev()))


class MultivariateNormalDiagWithSoftplusScale(MultivariateNormalDiag):
    """`MultivariateNormalDiag` with the softplus of ``scale_diag``."""

    def __init__(
        self,
        loc: Any,
        scale_diag: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalDiagWithSoftplusScale",
    ) -> None:
        super().__init__(loc, softplus(scale_diag), None, validate_args, allow_nan_stats, name)
        self._parameters = {
            "loc": loc, "scale_diag": scale_diag, "validate_args": validate_args,
            "allow_nan_stats": allow_nan_stats,
        }  # fmt: skip


class MultivariateNormalTriL(_Vector):
    """A normal distribution with the lower triangle of ``scale_tril`` ``[..., k, k]``, which times its
    transpose is the covariance; what is above the diagonal is not read.
    """

    def __init__(
        self,
        loc: Any = None,
        scale_tril: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalTriL",
    ) -> None:
        if scale_tril is None:
            raise misuse(f"{type(self).__name__}: expected scale_tril; got None")
        tril = matrix_band_part(floats(scale_tril=scale_tril)[0], -1, 0)
        diagonal = matrix_diag_part(tril)
        self._tril = tril
        centre = zeros_like(diagonal) if loc is None else floats(scale=tril, loc=loc)[1]
        super().__init__(
            centre, diagonal, validate_args, allow_nan_stats, {"loc": loc, "scale_tril": scale_tril}, name
        )

    def _times_scale(self, z: Tensor) -> Tensor:
        return squeeze(matmul(self._whole(z), expand_dims(z, -1)), [-1])

    def _over_scale(self, x: Tensor) -> Tensor:
        both = broadcast_dynamic_shape(shape(x), shape(self._diagonal))
        wide = broadcast_to(x, both)
        return squeeze(matrix_triangular_solve(self._whole(wide), expand_dims(wide, -1)), [-1])

    def _whole(self, z: Tensor) -> Tensor:
        """The matrix for each row of ``z``."""
        return broadcast_to(self._tril, concat([shape(z), self.event_shape_tensor()], 0))

    def _covariance(self) -> Tensor:
        found = matmul(self._tril, matrix_transpose(self._tril))
        return broadcast_to(found, concat([self._both_sizes(), self.event_shape_tensor()], 0))

    def _variance(self) -> Tensor:
        return matrix_diag_part(self._covariance())

    def _stddev(self) -> Tensor:
        return sqrt(self._variance())


class MultivariateNormalFullCovariance(MultivariateNormalTriL):
    """A normal distribution with ``covariance_matrix`` ``[..., k, k]``; the lower triangle is read."""

    def __init__(
        self,
        loc: Any = None,
        covariance_matrix: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalFullCovariance",
    ) -> None:
        if covariance_matrix is None:
            raise misuse("MultivariateNormalFullCovariance: expected covariance_matrix; got None")
        tril = cholesky(floats(covariance_matrix=covariance_matrix)[0])
        super().__init__(loc, tril, validate_args, allow_nan_stats, name)
        self._parameters.pop("scale_tril")
        self._parameters["covariance_matrix"] = covariance_matrix


@RegisterKL(MultivariateNormalDiag, MultivariateNormalDiag)
def _kl_diag(a: MultivariateNormalDiag, b: MultivariateNormalDiag, name: str | None = None) -> Tensor:
    ratio = square(a._diagonal / b._diagonal)
    distance = square((a.loc - b.loc) / b._diagonal)
    return 0.5 * reduce_sum(distance + ratio - 1.0 - log(ratio), -1)


@RegisterKL(MultivariateNormalTriL, MultivariateNormalTriL)
def _kl_tril(a: MultivariateNormalTriL, b: MultivariateNormalTriL, name: str | None = None) -> Tensor:
    mixed = matrix_triangular_solve(b._tril, a._tril)
    distance = reduce_sum(square(b._over_scale(b.loc - a.loc)), -1)
    spread = reduce_sum(square(mixed), [-2, -1])
    return b._log_det() - a._log_det() + 0.5 * (spread + distance - a._size())


@RegisterKL(MultivariateNormalDiag, MultivariateNormalTriL)
def _kl_diag_tril(a: MultivariateNormalDiag, b: MultivariateNormalTriL, name: str | None = None) -> Tensor:
    return _kl_tril(_as_triangle(a), b)


@RegisterKL(MultivariateNormalTriL, MultivariateNormalDiag)
def _kl_tril_diag(a: MultivariateNormalTriL, b: MultivariateNormalDiag, name: str | None = None) -> Tensor:
    return _kl_tril(a, _as_triangle(b))


def _as_triangle(kind: MultivariateNormalDiag) -> MultivariateNormalTriL:
    return MultivariateNormalTriL(kind.loc, matrix_diag(kind._diagonal))
