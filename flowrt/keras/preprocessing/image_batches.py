"""Batches of images, changed at random: of arrays, and of files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.keras.preprocessing.image_files import ImageFiles, save_img
from flowrt.keras.sequences import Sequence as Batches

Array = np.ndarray[Any, Any]


class Saved(NamedTuple):
    """A folder for the images of batches, if it is not None, and their names."""

    folder: Any = None
    prefix: str = ""
    format: str = "png"

    def write(self, batch: int, images: Array) -> None:
        for number, image in enumerate(images if self.folder is not None else ()):
            name = f"{self.prefix}_{batch}_{number}.{self.format}"
            save_img(os.path.join(self.folder, name), image)


class ImageBatches(Batches):
    """Batches of an `image.ImageDataGenerator`: by number, or as an iterator without an end.

    ``images`` are an array or `ImageFiles`; ``others``, such as labels, are arrays of as many rows,
    lists of them, or None.
    """

    def __init__(
        self, generator: Any, images: Any, others: list[Any], batch_size: int, shuffle: bool,
        seed: int | None, save: Saved,
    ) -> None:  # fmt: skip
        self._generator, self._images, self._others = generator, images, others
        self.batch_size, self.shuffle = batch_size, shuffle
        self.n = len(images)
        self._seed, self._drawn, self._save = seed, 0, save
        self._order: Any = None
        self._endless: Iterator[Any] | None = None

    def on_epoch_end(self) -> None:
        """Draw a new order for the next batch."""
        self._order = None

    def reset(self) -> None:
        """Begin again with the first batch."""
        self._endless = None

    def __len__(self) -> int:
        return math.ceil(self.n / self.batch_size)

    def __getitem__(self, index: int) -> Any:
        # TensorFlow's numbers: of a seed, other ones for each batch
        random: Any = np.random if self._seed is None else np.random.RandomState(self._seed + self._drawn)
        self._drawn += 1
        if self._order is None:
            self._order = random.permutation(self.n) if self.shuffle else np.arange(self.n)
        rows = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        changed = np.stack([self._changed(self._images[row].astype("float32"), random) for row in rows])
        self._save.write(self._drawn, changed)
        batch = (changed, *self._rest(changed, rows))
        return batch if len(batch) > 1 else batch[0]

    def _rest(self, images: Array, rows: Array) -> list[Any]:
        return [
            [each[rows] for each in a] if isinstance(a, list) else a[rows]
            for a in self._others
            if a is not None
        ]

    def _changed(self, image: Array, random: Any) -> Array:
        transform = self._generator.drawn_transform(random, image.shape)
        return self._generator.standardize(self._generator.apply_transform(image, transform))

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


NUMBERED = ("categorical", "binary", "sparse")
"""Ways to give the classes of images as labels."""


class Targets(NamedTuple):
    """Targets of images: the names of the classes, for each image its class's number, or the numbers of
    several, ``values`` of another kind (an array, or a list of some), and weights.
    """

    mode: str | None
    known: Sequence[str] = ()
    labels: Sequence[Any] = ()
    values: Any = None
    weights: Any = None

    def arrays(self) -> list[Any]:
        """Targets and weights, each with a row for every image, or None."""
        return [self._labels() if self.mode in NUMBERED else self.values, self.weights]

    def _labels(self) -> Array:
        if self.mode != "categorical":
            return np.array(self.labels, np.float32)
        found = np.zeros((len(self.labels), len(self.known)), np.float32)
        for row, numbers in zip(found, self.labels, strict=True):
            row[numbers] = 1
        return found


class FileBatches(ImageBatches):
    """`ImageBatches` of files: ``filenames``, their ``classes``, and ``class_indices``, their numbers."""

    def __init__(
        self, generator: Any, images: ImageFiles, names: list[str], targets: Targets, batch_size: int,
        shuffle: bool, seed: int | None, save: Saved,
    ) -> None:  # fmt: skip
        self.class_mode, self.filenames, self.filepaths = targets.mode, names, images.paths
        self.samples, self.num_classes = len(names), len(targets.known)
        self.class_indices = {name: number for number, name in enumerate(targets.known)}
        is_one = all(np.ndim(label) == 0 for label in targets.labels)
        self.classes = np.array(targets.labels, np.int32) if is_one else targets.labels
        super().__init__(generator, images, targets.arrays(), batch_size, shuffle, seed, save)

    def _rest(self, images: Array, rows: Array) -> list[Any]:
        targets = [images.copy()] if self.class_mode == "input" else []
        return targets + super()._rest(images, rows)
