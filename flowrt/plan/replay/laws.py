"""Amdahl's and Gustafson's laws, and their fits to a scaling curve.

Both split a job into a parallel share f and a serial rest. In Amdahl's law (1967), f is a share of the time
on one device, and the job stays the same. In Gustafson's (1988), it is a share of the time on all n devices,
and the job grows with n.

A law does not fit every curve, as its serial rest is constant: it has no share for a step that takes longer
on more devices, as collectives do, or for one that gains more than devices are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from flowrt.errors import InvalidArgumentError

Law: TypeAlias = Callable[[float, float], float]
FITS = 0.9
"""The least R^2 of a law that fits."""

_Floats: TypeAlias = npt.NDArray[np.float64]


def amdahl(share: float, devices: float) -> float:
    """The speed-up on ``devices`` devices of a job of fixed size, with the parallel share ``share``.

    >>> round(amdahl(0.95, 8), 3)
    5.926

    Raises `InvalidArgumentError` for a share that is not from 0 to 1 and fewer than one device.
    """
    _check("amdahl", share, devices)
    return 1 / ((1 - share) + share / devices)


def gustafson(share: float, devices: float) -> float:
    """The speed-up of a job that grows with ``devices``, with the parallel share ``share`` on all of them.

    >>> round(gustafson(0.95, 8), 3)
    7.65

    Raises `InvalidArgumentError` as `amdahl`.
    """
    _check("gustafson", share, devices)
    return (1 - share) + share * devices


def _check(name: str, share: float, devices: float) -> None:
    if not 0 <= share <= 1 or not 1 <= devices < np.inf:
        raise InvalidArgumentError(
            f"{name}: expected a share from 0 to 1 and at least one device; got {share}, {devices}"
        )


@final
class Fit(NamedTuple):
    """A law with the parallel share that fits a scaling curve best. ``r_squared`` is 1 for an exact fit, and
    negative if the mean of the curve fits better than the law.
    """

    law: Law
    share: float
    r_squared: float

    def speedup(self, devices: float) -> float:
        return self.law(self.share, devices)

    def why_not(self, devices: Sequence[float], speedups: Sequence[float]) -> str | None:
        """The reason why the law does not fit the curve, of at least two points; None if it does.

        >>> fit_amdahl([1, 2, 4], [1, 0.8, 0.5]).why_not([1, 2, 4], [1, 0.8, 0.5])
        'on 4 devices it is slower than on 1, which no share explains'
        """
        if self.r_squared >= FITS:
            return None
        curve = sorted(zip(devices, speedups, strict=True))
        (_, first), (last, lowest) = max(curve, key=lambda pair: pair[1]), curve[-1]
        best = next(n for n, speedup in curve if speedup == first)
        if lowest < first:
            return f"on {last:g} devices it is slower than on {best:g}, which no share explains"
        if any(speedup > n for n, speedup in curve):
            return "it gains more than devices are added"
        return "the rest that is not divided is not the same for all numbers of devices"


def fit_amdahl(devices: Sequence[float], speedups: Sequence[float]) -> Fit:
    """Amdahl's law with the least squares of times, as parts of that of one device: they are linear in f.

    ``speedups`` are those over one device. Raises `InvalidArgumentError` unless there are as many as
    ``devices``, at least two numbers of devices, none below 1, and all speed-ups are positive.
    """
    n, found = _curve("fit_amdahl", devices, speedups)
    return _fit(amdahl, 1 / n - 1, 1 / found - 1)


def fit_gustafson(devices: Sequence[float], speedups: Sequence[float]) -> Fit:
    """Gustafson's law with the least squares of speed-ups. Raises as `fit_amdahl`."""
    n, found = _curve("fit_gustafson", devices, speedups)
    return _fit(gustafson, n - 1, found - 1)


def _curve(name: str, devices: Sequence[float], speedups: Sequence[float]) -> tuple[_Floats, _Floats]:
    n, found = np.asarray(devices, np.float64), np.asarray(speedups, np.float64)
    is_curve = n.ndim == 1 and n.shape == found.shape and len(np.unique(n)) > 1
    if not is_curve or not (np.isfinite(n) & np.isfinite(found) & (n >= 1) & (found > 0)).all():
        raise InvalidArgumentError(
            f"{name}: expected positive speed-ups for at least two numbers of devices from 1; got "
            f"{list(speedups)} for {list(devices)}"
        )
    return n, found


def _fit(law: Law, x: _Floats, y: _Floats) -> Fit:
    """The share f in [0, 1] with the least squares of y - f x: a parabola in f."""
    share = min(1.0, max(0.0, float(x @ y / (x @ x))))
    residual, spread = y - share * x, y - y.mean()
    total = float(spread @ spread)
    r_squared = 1 - float(residual @ residual) / total if total else float(not residual.any())
    return Fit(law, share, r_squared)
