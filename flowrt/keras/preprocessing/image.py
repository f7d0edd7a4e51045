"""``flowrt.keras.preprocessing.image``: batches of images, randomly changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flowrt.errors import UnimplementedError
from flowrt.graph.source import misuse
from flowrt.keras.sequences import Sequence

Array = np.ndarray[Any, Any]


def img_to_array(img: Any, data_format: str | None = None, dtype: Any = "float32") -> Array:
    """An image as ``[height, width, channels]``, or channels first. Raises `InvalidArgumentError`."""
    found = np.asarray(img, dtype)
    if found.ndim not in (2, 3):
        raise misuse(f"img_to_array: expected an image of rank 2 or 3; got the shape {found.shape}")
    found = found[..., np.newaxis] if found.ndim == 2 else found
    return found.transpose(2, 0, 1) if data_format == "channels_first" else found


class ImageDataGenerator:
    """Images ``[n, height, width, channels]`` in batches: shifted by up to a share or number of pixels,
    flipped, scaled and normalized.

    Rotations, shears, zooms and shifts of channels are absent: they raise `UnimplementedError`.
    """

    def __init__(
        self, featurewise_center: bool = False, samplewise_center: bool = False,
        featurewise_std_normalization: bool = False, samplewise_std_normalization: bool = False,
        width_shift_range: float = 0.0, height_shift_range: float = 0.0, horizontal_flip: bool = False,
        vertical_flip: bool = False, rescale: float | None = None,
        preprocessing_function: Callable[[Array], Array] | None = None, validation_split: float = 0.0,
        fill_mode: str = "nearest", **others: Any,
    ) -> None:  # fmt: skip
        for name, value in others.items():
            if value:
                raise misuse(
                    f"ImageDataGenerator: expected shifts, flips and normalization; {name} is not supported",
                    UnimplementedError,
                )
        self.featurewise_center, self.samplewise_center = featurewise_center, samplewise_center
        self.featurewise_std_normalization = featurewise_std_normalization
        self.samplewise_std_normalization = samplewise_std_normalization
        self.width_shift_range, self.height_shift_range = width_shift_range, height_shift_range
        self.horizontal_flip, self.vertical_flip, self.rescale = horizontal_flip, vertical_flip, rescale
        self.preprocessing_function, self.validation_split = preprocessing_function, validation_split
        self.mean: Any = None
        self.std: Any = None

    def fit(self, x: Any, augment: bool = False, rounds: int = 1, seed: int | None = None) -> None:
        """Compute mean and deviation of the channels, for the normalization by features."""
        images = np.asarray(x, "float32")
        self.mean, self.std = images.mean((0, 1, 2)), images.std((0, 1, 2))

    def standardize(self, x: Array) -> Array:
        """``x`` scaled and normalized. Raises `InvalidArgumentError` for features before `fit`."""
        x = x if self.preprocessing_function is None else self.preprocessing_function(x)
        x = x * self.rescale if self.rescale else x
        x = x - x.mean() if self.samplewise_center else x
        x = x / (x.std() + 1e-6) if self.samplewise_std_normalization else x
        if self.featurewise_center or self.featurewise_std_normalization:
            if self.mean is None:
                raise misuse("ImageDataGenerator: expected a call of fit(x) before, to normalize features")
            x = x - self.mean if self.featurewise_center else x
            x = x / (self.std + 1e-6) if self.featurewise_std_normalization else x
        return x

    def random_transform(self, x: Array, seed: int | None = None) -> Array:
        """``x`` shifted and flipped at random."""
        random = np.random if seed is None else np.random.RandomState(seed)
        for axis, most in ((0, self.height_shift_range), (1, self.width_shift_range)):
            if most:
                pixels = most * x.shape[axis] if most < 1 else most
                x = _shifted(x, round(random.uniform(-pixels, pixels)), axis)
        for axis, flips in ((1, self.horizontal_flip), (0, self.vertical_flip)):
            if flips and random.random_sample() < 0.5:
                x = np.flip(x, axis)
        return x

    def flow(
        self, x: Any, y: Any = None, batch_size: int = 32, shuffle: bool = True, sample_weight: Any = None,
        seed: int | None = None, subset: str | None = None, **_: Any,
    ) -> ImageBatches:  # fmt: skip
        """Batches without an end; with ``subset`` "training" or "validation" of that part."""
        arrays = [None if a is None else np.asarray(a) for a in (x, y, sample_weight)]
        if subset is not None:
            at = int(len(x) * self.validation_split)
            rows = slice(0, at) if subset == "validation" else slice(at, None)
            arrays = [None if a is None else a[rows] for a in arrays]
        return ImageBatches(self, arrays, batch_size, shuffle, seed)


def _shifted(x: Array, pixels: int, axis: int) -> Array:
    """``x`` moved along ``axis``; the edge is repeated."""
    rows = np.clip(np.arange(x.shape[axis]) - pixels, 0, x.shape[axis] - 1)
    return x.take(rows, axis)


class ImageBatches(Sequence):
    """Batches of an `ImageDataGenerator`: by number, or as an iterator without an end."""

    def __init__(
        self,
        generator: ImageDataGenerator,
        arrays: list[Any],
        batch_size: int,
        shuffle: bool,
        seed: int | None,
    ) -> None:
        self._generator, self._arrays, self.batch_size, self.shuffle = generator, arrays, batch_size, shuffle
        self.n = len(arrays[0])
        self._random = np.random.RandomState(seed)
        self._endless: Iterator[Any] | None = None
        self.on_epoch_end()

    def on_epoch_end(self) -> None:
        """Draw a new order."""
        self._order = self._random.permutation(self.n) if self.shuffle else np.arange(self.n)

    def __len__(self) -> int:
        return math.ceil(self.n / self.batch_size)

    def __getitem__(self, index: int) -> Any:
        rows = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        images, *others = self._arrays
        changed = [
            self._generator.standardize(self._generator.random_transform(images[row].astype("float32")))
            for row in rows
        ]
        batch = (np.stack(changed), *(a[rows] for a in others if a is not None))
        return batch if len(batch) > 1 else batch[0]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._endless is None:
            self._endless = self._forever()
        return next(self._endless)

    next = __next__

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from (self[index] for index in range(len(self)))
            self.on_epoch_end()
