"""Images as files: read and written by Pillow (extra ``images``), and listed in folders of classes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import FailedPreconditionError
from flowrt.graph.source import misuse

Array = np.ndarray[Any, Any]

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".tif", ".tiff")
_MODES = {"grayscale": "L", "rgb": "RGB", "rgba": "RGBA"}


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise misuse(
            "images in files are read by Pillow; pip install 'flowrt[images]'", FailedPreconditionError
        ) from None


def load_img(
    path: Any, grayscale: bool = False, color_mode: str = "rgb", target_size: Any = None,
    interpolation: str = "nearest",
) -> Any:  # fmt: skip
    """The image in the file ``path``, of Pillow, in ``color_mode`` and with ``target_size`` (rows, columns).

    Raises `InvalidArgumentError` for another color mode or interpolation, `FailedPreconditionError` without
    Pillow, and Pillow's `OSError` for a file that is no image.
    """
    color_mode = "grayscale" if grayscale else color_mode
    if color_mode not in _MODES:
        raise misuse(f"load_img: expected color_mode {', '.join(map(repr, _MODES))}; got {color_mode!r}")
    pillow = _pillow()
    with pillow.open(path) as file:
        file.load()
        is_deep = color_mode == "grayscale" and file.mode in ("I;16", "I")
        image = file.copy() if is_deep else file.convert(_MODES[color_mode])
    if target_size is None or image.size == tuple(target_size[1::-1]):
        return image
    method = getattr(pillow.Resampling, interpolation.upper(), None)
    if method is None:
        raise misuse(f"load_img: expected an interpolation such as 'nearest'; got {interpolation!r}")
    return image.resize(tuple(target_size[1::-1]), method)


def array_to_img(x: Any, data_format: str | None = None, scale: bool = True, dtype: str = "float32") -> Any:
    """``x``, ``[height, width, channels]`` with 1, 3 or 4 channels, as an image of Pillow; ``scale``
    stretches its values to 0 to 255. Raises `InvalidArgumentError` for another shape.
    """
    x = np.array(x, dtype)
    if x.ndim != 3:
        raise misuse(f"array_to_img: expected an array of rank 3; got the shape {x.shape}")
    x = x.transpose(1, 2, 0) if data_format == "channels_first" else x
    if x.shape[2] not in (1, 3, 4):
        raise misuse(f"array_to_img: expected 1, 3 or 4 channels; got {x.shape[2]}")
    if scale:
        x = x - x.min()
        x = x / x.max() * 255 if x.max() else x
    if x.shape[2] == 1:
        deep = x.max() > 255
        return _pillow().fromarray(x[..., 0].astype("int32" if deep else "uint8"))
    return _pillow().fromarray(x.astype("uint8"))


def save_img(
    path: Any, x: Any, data_format: str | None = None, file_format: str | None = None, scale: bool = True,
    **options: Any,
) -> None:  # fmt: skip
    """Write the array ``x`` to ``path``, in ``file_format`` or that of its ending; see `array_to_img`."""
    image = array_to_img(x, data_format, scale)
    if image.mode == "RGBA" and str(file_format or path).lower().endswith(("jpg", "jpeg")):
        image = image.convert("RGB")  # JPEG has no transparency
    image.save(path, format=file_format, **options)


def apply_brightness_shift(x: Array, brightness: float) -> Array:
    """The image ``x`` stretched to 0 to 255, then times ``brightness``, as 8 bits hold it."""
    stretched = array_to_img(x)
    image = importlib.import_module("PIL.ImageEnhance").Brightness(stretched).enhance(brightness)
    found = np.asarray(image, "float32")
    return found[..., np.newaxis] if found.ndim == 2 else found


def random_brightness(x: Array, brightness_range: Any) -> Array:
    """`apply_brightness_shift` by a factor in ``brightness_range``, ``[least, most]``. Raises
    `InvalidArgumentError` for another range.
    """
    if len(brightness_range) != 2:
        raise misuse(f"random_brightness: expected brightness_range [least, most]; got {brightness_range!r}")
    return apply_brightness_shift(x, np.random.uniform(*brightness_range))


class ImageFiles(Sequence[Array]):
    """The images in files as arrays, read when they are asked for."""

    def __init__(self, paths: Sequence[str], target_size: Any, color_mode: str, interpolation: str) -> None:
        self.paths = list(paths)
        self._options: dict[str, Any] = {"color_mode": color_mode, "interpolation": interpolation}
        self._size = tuple(target_size)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: Any) -> Any:
        found = np.asarray(load_img(self.paths[row], target_size=self._size, **self._options), "float32")
        return found[..., np.newaxis] if found.ndim == 2 else found


def listed(
    folder: str, classes: Sequence[str], subset: str | None, share: float, follow_links: bool
) -> tuple[list[str], list[int]]:
    """The images below ``folder``/class, relative to it, with the numbers of their classes; of each class
    those of ``subset``, see `part_of`.
    """
    names: list[str] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        found = [
            os.path.relpath(os.path.join(root, file), folder)
            for root, _, files in sorted(os.walk(os.path.join(folder, name), followlinks=follow_links))
            for file in sorted(files)
            if file.lower().endswith(ENDINGS)
        ]
        found = found[part_of(len(found), subset, share)]
        names += found
        labels += [number] * len(found)
    return names, labels


def part_of(count: int, subset: Any, share: float) -> slice:
    """The rows of ``subset``: None for all, "validation" for the first ``share`` of them, "training" for the
    others. Raises `InvalidArgumentError` for another.
    """
    if subset not in (None, "training", "validation"):
        raise misuse(f"flow: expected subset 'training' or 'validation'; got {subset!r}")
    if subset is None:
        return slice(None)
    at = int(count * share)
    return slice(0, at) if subset == "validation" else slice(at, None)
