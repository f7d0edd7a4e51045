"""Batches of images, changed at random: of arrays, and of files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from flowrt.graph.source import misuse
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

    ``images`` are an array or `ImageFiles`; ``others``, such as labels, are arrays of as many rows, or None.
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
        return [a[rows] for a in self._others if a is not None]

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


class FileBatches(ImageBatches):
    """`ImageBatches` of files: ``filenames``, their ``classes``, and ``class_indices``, their numbers."""

    def __init__(
        self, generator: Any, images: ImageFiles, names: list[str], known: list[str],
        labels: list[int], class_mode: str | None, batch_size: int, shuffle: bool, seed: int | None,
        save: Saved,
    ) -> None:  # fmt: skip
        if class_mode not in (None, *NUMBERED, "input"):
            raise misuse(
                f"flow: expected class_mode {', '.join(NUMBERED)}, input or None; got {class_mode!r}"
            )
        self.class_mode, self.filenames, self.filepaths = class_mode, names, images.paths
        self.samples, self.num_classes = len(names), len(known)
        self.class_indices = {name: number for number, name in enumerate(known)}
        self.classes = np.array(labels, np.int32)
        super().__init__(generator, images, [self._labels()], batch_size, shuffle, seed, save)

    def _labels(self) -> Any:
        if self.class_mode == "categorical":
            return np.eye(self.num_classes, dtype=np.float32)[self.classes]
        if self.class_mode == "binary":
            return self.classes.astype(np.float32)
        return self.classes if self.class_mode == "sparse" else None

    def _rest(self, images: Array, rows: Array) -> list[Any]:
        targets = [images.copy()] if self.class_mode == "input" else []
        return targets + super()._rest(images, rows)
