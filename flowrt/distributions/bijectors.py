"""``contrib.distributions.bijectors``: invertible functions with the logarithms of their determinants.

A `TransformedDistribution` draws x and returns ``forward(x)``; the density of y is that of ``inverse(y)``
times the determinant of the inverse's Jacobian. A bijector acts on the last ``forward_min_event_ndims`` axes,
0 or 1 here; ``event_ndims`` says over how many axes a determinant is taken. The inverse of what a bijector
has made itself is the tensor that it was made of, so that nothing is lost where ``forward`` saturates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from flowrt.distributions.distribution import checked
from flowrt.distributions.special import softplus_inverse
from flowrt.errors import UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.ranges import static_array
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import ones, zeros
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, invert_permutation, rank, shape, squeeze
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.math import exp, expm1, log, log1p, sigmoid
from flowrt.graph.ops.linalg.decompositions import matrix_triangular_solve
from flowrt.graph.ops.linalg.matrix_parts import matrix_band_part, matrix_diag, matrix_diag_part
from flowrt.graph.ops.nn.activations import softplus
from flowrt.graph.ops.text.assertions import assert_non_negative, assert_none_equal, assert_positive
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "Affine", "AffineScalar", "Bijector", "Chain", "Exp", "Identity", "Inline", "Invert", "Permute",
    "PowerTransform", "Sigmoid", "Softplus",
]  # fmt: skip


__getattr__ = missing_from("contrib.distributions.bijectors")


class Bijector:
    """Base of the bijectors, TensorFlow's and those of programs.

    A subclass has `_forward`, `_inverse`, and one of `_forward_log_det_jacobian` and
    `_inverse_log_det_jacobian`: asking for what is not there is an `UnimplementedError`. Of the two numbers
    of axes that it acts on, ``forward_min_event_ndims`` and ``inverse_min_event_ndims``, one is enough.
    """

    def __init__(
        self,
        graph_parents: Sequence[Any] | None = None,
        is_constant_jacobian: bool = False,
        validate_args: bool = False,
        dtype: Any = None,
        forward_min_event_ndims: int | None = None,
        inverse_min_event_ndims: int | None = None,
        name: str | None = None,
    ) -> None:
        known = [n for n in (forward_min_event_ndims, inverse_min_event_ndims) if n is not None]
        if not known:
            raise misuse(f"{type(self).__name__}: expected forward_ or inverse_min_event_ndims; got neither")
        self._least_forward, self._least_inverse = known[0], known[-1]
        self._graph_parents, self._dtype = list(graph_parents or []), dtype
        self._is_constant_jacobian, self._validate_args = is_constant_jacobian, validate_args
        self._name = name or type(self).__name__.lower()
        self._made_of: dict[Tensor, Tensor] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> Any:
        return self._dtype

    @property
    def graph_parents(self) -> list[Any]:
        return list(self._graph_parents)

    @property
    def validate_args(self) -> bool:
        return self._validate_args

    @property
    def is_constant_jacobian(self) -> bool:
        """Whether the Jacobian is the same everywhere."""
        return self._is_constant_jacobian

    @property
    def forward_min_event_ndims(self) -> int:
        return self._least_forward

    @property
    def inverse_min_event_ndims(self) -> int:
        return self._least_inverse

    def forward(self, x: Any, name: str = "forward") -> Tensor:
        """The value at ``x``."""
        with self._scope(name):
            given = convert_to_tensor(x, self.dtype)
            found: Tensor = self._method(name, "_forward")(given)
            self._made_of[found] = given
            return found

    def inverse(self, y: Any, name: str = "inverse") -> Tensor:
        """The x of which ``y`` is the value."""
        with self._scope(name):
            given = convert_to_tensor(y, self.dtype)
            known = self._made_of.get(given)
            return self._method(name, "_inverse")(given) if known is None else known

    def forward_log_det_jacobian(
        self, x: Any, event_ndims: int, name: str = "forward_log_det_jacobian"
    ) -> Tensor:
        """The logarithm of the determinant's magnitude at ``x``, over its last ``event_ndims`` axes."""
        with self._scope(name):
            given = convert_to_tensor(x, self.dtype)
            if hasattr(self, "_forward_log_det_jacobian"):
                found = self._forward_log_det_jacobian(given)
                return self._over_event(given, found, self._least_forward, event_ndims)
            y = self.forward(given)
            found = self._method(name, "_inverse_log_det_jacobian")(y)
            return -self._over_event(y, found, self._least_inverse, event_ndims)

    def inverse_log_det_jacobian(
        self, y: Any, event_ndims: int, name: str = "inverse_log_det_jacobian"
    ) -> Tensor:
        """The logarithm of the magnitude of the inverse's determinant at ``y``."""
        with self._scope(name):
            given = convert_to_tensor(y, self.dtype)
            is_made_here = given in self._made_of and hasattr(self, "_forward_log_det_jacobian")
            if hasattr(self, "_inverse_log_det_jacobian") and not is_made_here:
                found = self._inverse_log_det_jacobian(given)
                return self._over_event(given, found, self._least_inverse, event_ndims)
            x = self.inverse(given)
            found = self._method(name, "_forward_log_det_jacobian")(x)
            return -self._over_event(x, found, self._least_forward, event_ndims)

    def forward_event_shape(self, input_shape: Any) -> TensorShape:
        """The shape of the value at an x of ``input_shape``."""
        return TensorShape(self._forward_event_shape(TensorShape(input_shape)))

    def inverse_event_shape(self, output_shape: Any) -> TensorShape:
        """The shape of the x of a value of ``output_shape``."""
        return TensorShape(self._inverse_event_shape(TensorShape(output_shape)))

    def forward_event_shape_tensor(
        self, input_shape: Any, name: str = "forward_event_shape_tensor"
    ) -> Tensor:
        return convert_to_tensor(self._forward_event_shape_tensor(convert_to_tensor(input_shape, "int32")))

    def inverse_event_shape_tensor(
        self, output_shape: Any, name: str = "inverse_event_shape_tensor"
    ) -> Tensor:
        return convert_to_tensor(self._inverse_event_shape_tensor(convert_to_tensor(output_shape, "int32")))

    def _forward_event_shape(self, sizes: Any) -> Any:
        return sizes

    _inverse_event_shape = _forward_event_shape_tensor = _inverse_event_shape_tensor = _forward_event_shape

    def _over_event(self, value: Tensor, log_det: Any, least: int, event_ndims: Any) -> Tensor:
        """``log_det`` of the last ``least`` axes of ``value``, summed to that of its last ``event_ndims``."""
        known = static_array(convert_to_tensor(event_ndims))
        if known is None or int(known) < least:
            raise misuse(f"{self.name}: expected event_ndims of {least} or more; got {event_ndims}")
        more = int(known) - least
        found = convert_to_tensor(log_det, value.dtype)
        if self.is_constant_jacobian and more:
            end = rank(value) - least
            found = found * ones(shape(value)[end - more : end], found.dtype)
        return reduce_sum(found, list(range(-more, 0))) if more else found

    def _scope(self, name: str) -> Any:
        return get_default_graph().name_scope(f"{self._name}/{name}")

    def _method(self, name: str, method: str) -> Callable[..., Any]:
        found = getattr(self, method, None)
        if found is None:
            raise misuse(f"{type(self).__name__}: {name} is not implemented", UnimplementedError)
        return found


class Identity(Bijector):
    """x itself."""

    def __init__(self, validate_args: bool = False, name: str = "identity") -> None:
        super().__init__(None, True, validate_args, forward_min_event_ndims=0, name=name)

    def _forward(self, x: Tensor) -> Tensor:
        return x

    _inverse = _forward

    def _forward_log_det_jacobian(self, x: Tensor) -> Any:
        return zeros([], x.dtype)

    _inverse_log_det_jacobian = _forward_log_det_jacobian


class AffineScalar(Bijector):
    """``scale * x + shift``, elementwise; without one of them 1 and 0."""

    def __init__(
        self, shift: Any = None, scale: Any = None, validate_args: bool = False, name: str = "affine_scalar"
    ) -> None:
        self._shift = None if shift is None else convert_to_tensor(shift)
        self._scale = None if scale is None else convert_to_tensor(scale)
        if self._scale is not None:
            self._scale = checked(self._scale, validate_args, lambda s: assert_none_equal(s, 0))
        super().__init__(None, True, validate_args, forward_min_event_ndims=0, name=name)

    @property
    def shift(self) -> Tensor | None:
        return self._shift

    @property
    def scale(self) -> Tensor | None:
        return self._scale

    def _forward(self, x: Tensor) -> Tensor:
        stretched = x + 0 if self._scale is None else x * self._scale
        return stretched if self._shift is None else stretched + self._shift

    def _inverse(self, y: Tensor) -> Tensor:
        x = y + 0 if self._shift is None else y - self._shift
        return x if self._scale is None else x / self._scale

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return zeros([], x.dtype) if self._scale is None else log(absolute(self._scale))


class Affine(Bijector):
    """``scale @ x + shift`` of vectors; the matrix is the sum of those given, or the identity.

    ``scale_identity_multiplier`` ``[...]`` times the identity, ``scale_diag`` ``[..., k]`` on the diagonal,
    and the lower triangle of ``scale_tril`` ``[..., k, k]``.
    """

    def __init__(
        self,
        shift: Any = None,
        scale_identity_multiplier: Any = None,
        scale_diag: Any = None,
        scale_tril: Any = None,
        scale_perturb_factor: Any = None,
        scale_perturb_diag: Any = None,
        validate_args: bool = False,
        name: str = "affine",
    ) -> None:
        if scale_perturb_factor is not None or scale_perturb_diag is not None:
            raise misuse("Affine: scale_perturb_factor and _diag are not implemented", UnimplementedError)
        self._shift = None if shift is None else convert_to_tensor(shift)
        parts = [] if scale_identity_multiplier is None else [
            expand_dims(convert_to_tensor(scale_identity_multiplier), -1)
        ]  # fmt: skip
        parts += [] if scale_diag is None else [convert_to_tensor(scale_diag)]
        self._diagonal: Any = sum(parts[1:], parts[0]) if parts else None
        self._tril: Any = None
        if scale_tril is not None:
            tril = matrix_band_part(convert_to_tensor(scale_tril), -1, 0)
            more = zeros([], tril.dtype) if self._diagonal is None else self._diagonal
            self._tril = tril + matrix_diag(more * ones(shape(tril)[-1:], tril.dtype))
            self._diagonal = matrix_diag_part(self._tril)
        if self._diagonal is not None:
            self._diagonal = checked(self._diagonal, validate_args, lambda d: assert_none_equal(d, 0))
        super().__init__(None, True, validate_args, forward_min_event_ndims=1, name=name)

    @property
    def shift(self) -> Tensor | None:
        return self._shift

    def _forward(self, x: Tensor) -> Tensor:
        y = x + 0 if self._diagonal is None else self._scaled(x)
        return y if self._shift is None else y + self._shift

    def _scaled(self, x: Tensor) -> Tensor:
        if self._tril is None:
            return x * self._diagonal
        return reduce_sum(self._tril * expand_dims(x, -2), -1)

    def _inverse(self, y: Tensor) -> Tensor:
        x = y + 0 if self._shift is None else y - self._shift
        if self._tril is None:
            return x if self._diagonal is None else x / self._diagonal
        wide = x + zeros([], x.dtype) * self._diagonal
        whole = self._tril * expand_dims(ones(shape(wide), x.dtype), -1)
        return squeeze(matrix_triangular_solve(whole, expand_dims(wide, -1)), [-1])

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        if self._diagonal is None:
            return zeros([], x.dtype)
        size = ones(shape(x)[-1:], x.dtype)
        return reduce_sum(log(absolute(self._diagonal)) * size, -1)


class PowerTransform(Bijector):
    """``(1 + power * x) ** (1 / power)``, for the power 0 ``exp(x)``.

    Raises `InvalidArgumentError` for a negative power, or one that is not a constant.
    """

    def __init__(self, power: Any = 0.0, validate_args: bool = False, name: str = "power_transform") -> None:
        known = static_array(convert_to_tensor(power))
        if known is None or float(known) < 0:
            raise misuse(f"PowerTransform: expected a constant power of 0 or more; got {power!r}")
        self._power = float(known)
        super().__init__(None, False, validate_args, forward_min_event_ndims=0, name=name)

    @property
    def power(self) -> float:
        return self._power

    def _forward(self, x: Tensor) -> Tensor:
        if not self._power:
            return exp(x)
        inside = self.validate_args and self._power != 0
        given = checked(x, inside, lambda v: assert_non_negative(1.0 + self._power * v))
        return exp(log1p(given * self._power) / self._power)

    def _inverse(self, y: Tensor) -> Tensor:
        given = checked(y, self.validate_args, assert_positive)
        return expm1(log(given) * self._power) / self._power if self._power else log(given)

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        return (self._power - 1.0) * log(checked(y, self.validate_args, assert_positive))

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return (1.0 / self._power - 1.0) * log1p(x * self._power) if self._power else x


class Exp(PowerTransform):
    """``exp(x)``."""

    def __init__(self, validate_args: bool = False, name: str = "exp") -> None:
        super().__init__(0.0, validate_args, name)


class Sigmoid(Bijector):
    """``1 / (1 + exp(-x))``."""

    def __init__(self, validate_args: bool = False, name: str = "sigmoid") -> None:
        super().__init__(None, False, validate_args, forward_min_event_ndims=0, name=name)

    def _forward(self, x: Tensor) -> Tensor:
        return sigmoid(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y) - log1p(-y)

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        return -log(y) - log1p(-y)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)


class Softplus(Bijector):
    """``c * log(1 + exp(x / c))`` with the ``hinge_softness`` c, by default 1."""

    def __init__(
        self, hinge_softness: Any = None, validate_args: bool = False, name: str = "softplus"
    ) -> None:
        self._softness = None if hinge_softness is None else convert_to_tensor(hinge_softness)
        if self._softness is not None:
            self._softness = checked(self._softness, validate_args, lambda c: assert_none_equal(c, 0))
        super().__init__(None, False, validate_args, forward_min_event_ndims=0, name=name)

    @property
    def hinge_softness(self) -> Tensor | None:
        return self._softness

    def _softness_for(self, value: Tensor) -> Any:
        return 1.0 if self._softness is None else cast(self._softness, value.dtype)

    def _forward(self, x: Tensor) -> Tensor:
        c = self._softness_for(x)
        return c * softplus(x / c)

    def _inverse(self, y: Tensor) -> Tensor:
        c = self._softness_for(y)
        return c * softplus_inverse(y / c)

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        return -log(-expm1(-y / self._softness_for(y)))

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return -softplus(-x / self._softness_for(x))


class Permute(Bijector):
    """The elements of vectors in another order: ``y[i] = x[permutation[i]]``.

    Raises `InvalidArgumentError` for a constant that is no permutation.
    """

    def __init__(self, permutation: Any, validate_args: bool = False, name: str | None = None) -> None:
        self._permutation = convert_to_tensor(permutation)
        known = static_array(self._permutation)
        if known is not None and sorted(known.tolist()) != list(range(known.size)):
            raise misuse(f"Permute: expected each of 0, 1, ... once; got {permutation!r}")
        super().__init__(None, True, validate_args, forward_min_event_ndims=1, name=name or "permute")

    @property
    def permutation(self) -> Tensor:
        return self._permutation

    def _forward(self, x: Tensor) -> Tensor:
        return gather(x, self._permutation, axis=-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return gather(y, invert_permutation(self._permutation), axis=-1)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return zeros([], x.dtype)


class Inline(Bijector):
    """A bijector of functions."""

    def __init__(
        self,
        forward_fn: Callable[..., Any] | None = None,
        inverse_fn: Callable[..., Any] | None = None,
        inverse_log_det_jacobian_fn: Callable[..., Any] | None = None,
        forward_log_det_jacobian_fn: Callable[..., Any] | None = None,
        forward_event_shape_fn: Callable[..., Any] | None = None,
        forward_event_shape_tensor_fn: Callable[..., Any] | None = None,
        inverse_event_shape_fn: Callable[..., Any] | None = None,
        inverse_event_shape_tensor_fn: Callable[..., Any] | None = None,
        is_constant_jacobian: bool = False,
        validate_args: bool = False,
        forward_min_event_ndims: int | None = None,
        inverse_min_event_ndims: int | None = None,
        name: str = "inline",
    ) -> None:
        super().__init__(
            None, is_constant_jacobian, validate_args, None,
            forward_min_event_ndims, inverse_min_event_ndims, name,
        )  # fmt: skip
        given = {
            "_forward": forward_fn, "_inverse": inverse_fn,
            "_inverse_log_det_jacobian": inverse_log_det_jacobian_fn,
            "_forward_log_det_jacobian": forward_log_det_jacobian_fn,
            "_forward_event_shape": forward_event_shape_fn,
            "_forward_event_shape_tensor": forward_event_shape_tensor_fn,
            "_inverse_event_shape": inverse_event_shape_fn,
            "_inverse_event_shape_tensor": inverse_event_shape_tensor_fn,
        }  # fmt: skip
        for method, function in given.items():
            if function is not None:
                setattr(self, method, function)


class Invert(Bijector):
    """The inverse of ``bijector``."""

    def __init__(self, bijector: Bijector, validate_args: bool = False, name: str | None = None) -> None:
        self._bijector = bijector
        super().__init__(
            bijector.graph_parents, bijector.is_constant_jacobian, validate_args, bijector.dtype,
            bijector.inverse_min_event_ndims, bijector.forward_min_event_ndims,
            name or f"invert_{bijector.name}",
        )  # fmt: skip

    @property
    def bijector(self) -> Bijector:
        return self._bijector

    def _forward(self, x: Tensor) -> Tensor:
        return self._bijector.inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._bijector.forward(y)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return self._bijector.inverse_log_det_jacobian(x, self._bijector.inverse_min_event_ndims)

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        return self._bijector.forward_log_det_jacobian(y, self._bijector.forward_min_event_ndims)

    def _forward_event_shape(self, sizes: Any) -> Any:
        return self._bijector.inverse_event_shape(sizes)

    def _inverse_event_shape(self, sizes: Any) -> Any:
        return self._bijector.forward_event_shape(sizes)

    def _forward_event_shape_tensor(self, sizes: Any) -> Any:
        return self._bijector.inverse_event_shape_tensor(sizes)

    def _inverse_event_shape_tensor(self, sizes: Any) -> Any:
        return self._bijector.forward_event_shape_tensor(sizes)


class Chain(Bijector):
    """``bijectors[0]`` of ``bijectors[1]`` of ... x: the last one is applied first."""

    def __init__(
        self,
        bijectors: Sequence[Bijector] | None = None,
        validate_args: bool = False,
        name: str | None = None,
    ) -> None:
        self._bijectors = list(bijectors or ())
        dtypes = {b.dtype for b in self._bijectors if b.dtype is not None}
        if len(dtypes) > 1:
            raise misuse(f"Chain: expected bijectors of one dtype; got {sorted(d.name for d in dtypes)}")
        super().__init__(
            list(itertools.chain.from_iterable(b.graph_parents for b in self._bijectors)),
            all(b.is_constant_jacobian for b in self._bijectors), validate_args, next(iter(dtypes), None),
            max((b.forward_min_event_ndims for b in self._bijectors), default=0),
            max((b.inverse_min_event_ndims for b in self._bijectors), default=0),
            name or ("_of_".join(["chain", *(b.name for b in self._bijectors)]) if bijectors else "identity"),
        )  # fmt: skip

    @property
    def bijectors(self) -> list[Bijector]:
        return self._bijectors

    def _forward(self, x: Tensor) -> Tensor:
        for each in reversed(self._bijectors):
            x = each.forward(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for each in self._bijectors:
            y = each.inverse(y)
        return y

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        total = zeros([], x.dtype)
        for each in reversed(self._bijectors):
            total = total + each.forward_log_det_jacobian(x, self._least_forward)
            x = each.forward(x)
        return total

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        total = zeros([], y.dtype)
        for each in self._bijectors:
            total = total + each.inverse_log_det_jacobian(y, self._least_inverse)
            y = each.inverse(y)
        return total

    def _forward_event_shape(self, sizes: Any) -> Any:
        for each in reversed(self._bijectors):
            sizes = each.forward_event_shape(sizes)
        return sizes

    def _inverse_event_shape(self, sizes: Any) -> Any:
        for each in self._bijectors:
            sizes = each.inverse_event_shape(sizes)
        return sizes
