"""Complex numbers and their parts: complex, real, imag, conj, abs, angle.

Rule of this file: a complex gradient is d/dRe + i d/dIm, as in TensorFlow: a step against it descends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import DTypeError
from flowrt.graph.construction.batching_rules import broadcasting
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import elementwise_of_composites
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import LINEAR, OpDef, Rule, Sample, Ufunc, define_op, sample, undoes_itself
from flowrt.graph.op_facets import Jvp, Kernel, Vjp
from flowrt.graph.ops.base.filling import unbroadcast
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.kernel_output import copied
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.ops.elementwise.comparison import broadcast_shape, elementwise_op, less, where_v2, zero_of
from flowrt.graph.ops.elementwise.division import div_no_nan, realdiv
from flowrt.graph.ops.elementwise.math import abs_op, number
from flowrt.graph.typing import NumericLike

_PARTS = frozenset((dtypes.float32, dtypes.float64))


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    x = rng.standard_normal((2, 3)) + 1j * rng.standard_normal((2, 3))
    yield sample(x, Tout=dtypes.float64)
    yield sample(x[0].astype(np.complex64))
    yield sample(x[0, 0], Tout=dtypes.float64)
    yield sample(np.zeros((0, 2), np.complex64))


def _part(name: str, kernel: Kernel, vjp: Vjp | Rule, jvp: Jvp | Rule, doc: str) -> OpDef[Tensor]:
    return elementwise_op(
        name,
        "x: T in COMPLEX -> y: Tout in float32 | float64"
        if name == "ComplexAbs"
        else "input: T in COMPLEX -> Tout in float32 | float64",
        attrs="Tout: type = float32",
        kernel=kernel,
        vjp=vjp,
        jvp=jvp,
        samples=_samples,
        doc=doc,
    )


def _copied(part: Callable[[Any], Any]) -> Kernel:
    """The kernel that copies ``part(x)``, a view with gaps."""

    return lambda xp, x, out=None: copied(xp, part(x), out)


def _abs_vjp(op: Operation, dy: Tensor) -> list[Tensor]:
    x = op.inputs[0]
    return [multiply(cast(div_no_nan(dy, op.outputs[0]), x.dtype), x)]


def _abs_jvp(op: Operation, dx: Tensor) -> list[Tensor]:
    along = real(multiply(conj(op.inputs[0]), dx))
    return [div_no_nan(along, op.outputs[0])]


def _angle_vjp(op: Operation, dy: Tensor) -> list[Tensor]:
    """The gradient is i x / abs(x)**2, a quarter turn from x, which is i / conj(x)."""
    x = op.inputs[0]
    return [realdiv(complex(zero_of(dy.dtype), dy), conj(x))]


def _build_complex(xp: Any, real: Any, imag: Any, Tout: DType, out: Any = None) -> Any:
    if out is None:
        out = xp.empty(np.broadcast_shapes(real.shape, imag.shape), Tout.np)
    out.real, out.imag = real, imag
    return out


def _imag_vjp(op: Operation, dy: Tensor) -> list[Tensor]:
    return [complex(zero_of(dy.dtype), dy)]


def _angle_jvp(op: Operation, dx: Tensor) -> list[Tensor]:
    return [imag(realdiv(dx, op.inputs[0]))]


def _conj_vjp(op: Operation, dy: Tensor) -> list[Tensor]:
    return [conj(dy)]


def _complex_vjp(op: Operation, dy: Tensor) -> list[Tensor]:
    return [unbroadcast(real(dy), *op.inputs), unbroadcast(imag(dy), *op.inputs[::-1])]


real_op = _part(
    "Real", _copied(lambda x: x.real), lambda op, dy: [cast(dy, op.inputs[0].dtype)], LINEAR, "The real part."
)

imag_op = _part("Imag", _copied(lambda x: x.imag), _imag_vjp, LINEAR, "The imaginary part.")

complex_abs = _part(
    "ComplexAbs", lambda xp, x, out=None: xp.absolute(x, out), _abs_vjp, _abs_jvp, "The magnitude."
)

angle_op = _part(
    "Angle",
    lambda xp, input, out=None: xp.arctan2(input.imag, input.real, out),
    _angle_vjp,
    _angle_jvp,
    "The angle to the positive real axis, from -pi to pi.",
)

conj_op = elementwise_op(
    "Conj",
    "input: T in COMPLEX -> T",
    kernel=Ufunc("conjugate"),
    vjp=_conj_vjp,
    jvp=LINEAR,
    samples=lambda rng: (sample(np.array([1 + 2j, -1j])), sample(np.array(1j, np.complex64))),
    simplify=undoes_itself,
    doc="The complex conjugate.",
)

complex_op = define_op(
    "Complex",
    "real: T in float32 | float64, imag: T -> out: Tout in COMPLEX",
    attrs="Tout: type = complex64",
    shape=broadcast_shape,
    kernel=_build_complex,
    vjp=_complex_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        sample(
            rng.standard_normal((2, 1)), rng.standard_normal(3), Tout=dtypes.complex128, differentiable=False
        ),
        sample(np.array(1, np.float32), np.array([np.inf], np.float32)),
    ),
    batch=broadcasting,
    axes="..., ... -> ...",
    doc="real + i imag.",
)


@elementwise_of_composites
def complex(real: NumericLike, imag: NumericLike, name: str | None = None) -> Tensor:
    """real + i imag: complex64 of two float32, complex128 of two float64."""
    first = convert_to_tensor(
        real, imag.dtype if isinstance(imag, Tensor) and not isinstance(real, Tensor) else None
    )
    if first.dtype not in _PARTS:
        raise DTypeError(f"complex: expected float32 or float64 parts; got {first.dtype.name}")
    wide = dtypes.complex64 if first.dtype is dtypes.float32 else dtypes.complex128
    return complex_op(first, imag, Tout=wide, name=name)


@elementwise_of_composites
def real(input: NumericLike, name: str | None = None) -> Tensor:
    """The real part; of a real tensor itself."""
    x = convert_to_tensor(input)
    return real_op(x, Tout=x.dtype.real_dtype, name=name) if x.dtype.is_complex else x


@elementwise_of_composites
def imag(input: NumericLike, name: str | None = None) -> Tensor:
    """The imaginary part. Raises `DTypeError` for a real tensor."""
    x = convert_to_tensor(input)
    return imag_op(x, Tout=x.dtype.real_dtype, name=name)


@elementwise_of_composites
def conj(x: NumericLike, name: str | None = None) -> Tensor:
    """The complex conjugate; of a real tensor itself."""
    tensor = convert_to_tensor(x)
    return conj_op(tensor, name=name) if tensor.dtype.is_complex else tensor


@elementwise_of_composites
def abs(x: NumericLike, name: str | None = None) -> Tensor:
    """The magnitude of each element.

    Args:
        x: A tensor of numbers.

    Returns:
        A tensor of the same shape, real also for a complex ``x``.

    Example:
        >>> tf.abs([-1, 2]).eval()
        array([1, 2], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    if tensor.dtype.is_complex:
        return complex_abs(tensor, Tout=tensor.dtype.real_dtype, name=name)
    return abs_op(tensor, name=name)


@elementwise_of_composites
def angle(input: NumericLike, name: str | None = None) -> Tensor:
    """The angle to the positive real axis, from -pi to pi; of a real tensor 0 or pi."""
    x = convert_to_tensor(input)
    if x.dtype.is_complex:
        return angle_op(x, Tout=x.dtype.real_dtype, name=name)
    return where_v2(less(x, zero_of(x.dtype)), number(np.pi, x), zero_of(x.dtype), name=name)
