"""Images turned, shifted, sheared and zoomed by SciPy (extra ``scipy``), as Keras has them."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from flowrt.errors import FailedPreconditionError
from flowrt.graph.source import misuse, user_line

Array = np.ndarray[Any, Any]


def apply_affine_transform(
    x: Array,
    theta: float = 0,
    tx: float = 0,
    ty: float = 0,
    shear: float = 0,
    zx: float = 1,
    zy: float = 1,
    row_axis: int = 0,
    col_axis: int = 1,
    channel_axis: int = 2,
    fill_mode: str = "nearest",
    cval: float = 0.0,
    order: int = 1,
) -> Array:
    """The image ``x`` turned by ``theta`` degrees, shifted by ``tx`` rows and ``ty`` columns, sheared by
    ``shear`` degrees and with its rows and columns ``zx`` and ``zy`` times as far apart, about a point one
    pixel after its middle.

    What is outside is filled by ``fill_mode`` ("constant" with ``cval``, "nearest", "reflect" or "wrap");
    ``order`` is that of the splines between pixels. Raises `FailedPreconditionError` without SciPy.
    """
    matrix = _shift(tx, ty)
    if theta:
        turn = np.deg2rad(theta)
        cos, sin = np.cos(turn), np.sin(turn)
        matrix = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]]) @ matrix
    if shear:
        slope = np.deg2rad(shear)
        matrix = matrix @ np.array([[1, -np.sin(slope), 0], [0, np.cos(slope), 0], [0, 0, 1]])
    matrix = matrix @ np.diag([zx, zy, 1])
    if (matrix == np.eye(3)).all():
        return x
    # as in TensorFlow 1.15; later versions turn about the middle, which is a pixel before
    pivot = [x.shape[axis] / 2 + 0.5 for axis in (row_axis, col_axis)]
    matrix = _shift(*pivot) @ matrix @ _shift(*(-place for place in pivot))
    planes = [
        _ndimage().affine_transform(
            plane, matrix[:2, :2], matrix[:2, 2], order=order, mode=fill_mode, cval=cval
        )
        for plane in np.moveaxis(x, channel_axis, 0)
    ]
    return np.moveaxis(np.stack(planes), 0, channel_axis)


def random_rotation(
    x: Array, rg: float, row_axis: int = 1, col_axis: int = 2, channel_axis: int = 0,
    fill_mode: str = "nearest", cval: float = 0.0, interpolation_order: int = 1,
) -> Array:  # fmt: skip
    """The image ``x`` turned by up to ``rg`` degrees, about the point that `apply_affine_transform` finds
    without ``row_axis`` and ``col_axis``, as in TensorFlow 1.15.
    """
    turned = np.random.uniform(-rg, rg)
    return apply_affine_transform(
        x, theta=turned, channel_axis=channel_axis, fill_mode=fill_mode, cval=cval, order=interpolation_order
    )


def random_shift(
    x: Array, wrg: float, hrg: float, row_axis: int = 1, col_axis: int = 2, channel_axis: int = 0,
    fill_mode: str = "nearest", cval: float = 0.0, interpolation_order: int = 1,
) -> Array:  # fmt: skip
    """The image ``x`` shifted by up to the shares ``wrg`` of its width and ``hrg`` of its height."""
    down = np.random.uniform(-hrg, hrg) * x.shape[row_axis]
    across = np.random.uniform(-wrg, wrg) * x.shape[col_axis]
    return apply_affine_transform(
        x, tx=down, ty=across, channel_axis=channel_axis, fill_mode=fill_mode, cval=cval,
        order=interpolation_order,
    )  # fmt: skip


def random_shear(
    x: Array, intensity: float, row_axis: int = 1, col_axis: int = 2, channel_axis: int = 0,
    fill_mode: str = "nearest", cval: float = 0.0, interpolation_order: int = 1,
) -> Array:  # fmt: skip
    """The image ``x`` sheared by up to ``intensity`` degrees, about the point of `random_rotation`."""
    sheared = np.random.uniform(-intensity, intensity)
    return apply_affine_transform(
        x, shear=sheared, channel_axis=channel_axis, fill_mode=fill_mode, cval=cval, order=interpolation_order
    )


def random_zoom(
    x: Array, zoom_range: Any, row_axis: int = 1, col_axis: int = 2, channel_axis: int = 0,
    fill_mode: str = "nearest", cval: float = 0.0, interpolation_order: int = 1,
) -> Array:  # fmt: skip
    """The image ``x`` zoomed by factors in ``zoom_range``, ``[least, most]``, about the point of
    `random_rotation`. Raises `InvalidArgumentError` for another range.
    """
    if len(zoom_range) != 2:
        raise misuse(f"random_zoom: expected zoom_range [least, most]; got {zoom_range!r}")
    least, most = zoom_range
    zooms = (1, 1) if least == most == 1 else np.random.uniform(least, most, 2)
    return apply_affine_transform(
        x, zx=zooms[0], zy=zooms[1], channel_axis=channel_axis, fill_mode=fill_mode, cval=cval,
        order=interpolation_order,
    )  # fmt: skip


def random_channel_shift(x: Array, intensity_range: float, channel_axis: int = 0) -> Array:
    """``x`` with a number of up to ``intensity_range`` added, see `apply_channel_shift`."""
    return apply_channel_shift(x, np.random.uniform(-intensity_range, intensity_range), channel_axis)


def apply_channel_shift(x: Array, intensity: float, channel_axis: int = 2) -> Array:
    """``x`` with ``intensity`` added, within its own least and largest values."""
    return np.clip(x + intensity, x.min(), x.max())


def _shift(rows: float, columns: float) -> Array:
    return np.array([[1, 0, rows], [0, 1, columns], [0, 0, 1.0]])


def _ndimage() -> Any:
    try:
        return importlib.import_module("scipy.ndimage")
    except ImportError:
        raise FailedPreconditionError(
            "images are turned, sheared, zoomed and shifted by SciPy; pip install 'flowrt[scipy]'",
            source=user_line(),
        ) from None
