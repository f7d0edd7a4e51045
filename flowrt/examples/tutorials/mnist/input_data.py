"""``tensorflow.examples.tutorials.mnist.input_data``: MNIST in batches. Nothing is downloaded.

mnist = input_data.read_data_sets("MNIST_data", one_hot=True)
images, labels = mnist.train.next_batch(100)  # [100, 784] float32 in [0, 1], [100, 10]
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowrt.dtypes import as_dtype, float32, uint8
from flowrt.errors import DTypeError, InvalidArgumentError, NotFoundError
from flowrt.examples.tutorials.mnist.idx_files import read_idx
from flowrt.examples.tutorials.mnist.stand_in import digits
from flowrt.graph.ops.random.random_ops import get_seed

__all__ = ["DataSet", "Datasets", "read_data_sets"]

Array = np.ndarray[Any, Any]
_FILES = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip
_CLASSES = 10


class DataSet:
    """Images and labels, and batches of them in random order.

    ``images`` is [n, height, width, 1] uint8: with ``reshape`` it becomes [n, height * width], and with
    ``dtype`` float32 its values are divided by 255. ``fake_data`` ignores both arrays: 10,000 images of
    ones with the label 0.
    """

    def __init__(
        self,
        images: Any,
        labels: Any,
        fake_data: bool = False,
        one_hot: bool = False,
        dtype: Any = float32,
        reshape: bool = True,
        seed: int | None = None,
    ) -> None:
        graph_seed, op_seed = get_seed(seed)
        np.random.seed(graph_seed if seed is None else op_seed)  # TensorFlow seeds NumPy's generator, too
        dtype = as_dtype(dtype)
        if dtype not in (uint8, float32):
            raise DTypeError(f"DataSet: expected dtype uint8 or float32; got {dtype.name}")
        if fake_data:
            images, labels = np.ones((10_000, 28, 28, 1), np.uint8), np.zeros(10_000, np.uint8)
            labels = _one_hot(labels) if one_hot else labels
        if len(images) != len(labels):
            raise InvalidArgumentError(
                f"DataSet: expected as many labels as images; got {len(images)} images, {len(labels)} labels"
            )
        if reshape:
            images = images.reshape(len(images), math.prod(images.shape[1:]))
        if dtype is float32:
            images = images.astype(np.float32) * np.float32(1 / 255)
        self._images, self._labels = images, labels
        self._epochs_completed = self._position = 0

    @property
    def images(self) -> Array:
        return self._images

    @property
    def labels(self) -> Array:
        return self._labels

    @property
    def num_examples(self) -> int:
        return len(self._images)

    @property
    def epochs_completed(self) -> int:
        return self._epochs_completed

    def next_batch(
        self, batch_size: int, fake_data: bool = False, shuffle: bool = True
    ) -> tuple[Array, Array]:
        """The next ``batch_size`` images and their labels; at the end of an epoch, the rest of it and the
        beginning of the next. ``shuffle`` gives each epoch another order.

        Raises `InvalidArgumentError` if there are fewer examples than ``batch_size``.
        """
        if batch_size > self.num_examples:
            raise InvalidArgumentError(
                f"next_batch: expected at most {self.num_examples} examples; got {batch_size}"
            )
        start = self._position
        if start == 0 and self._epochs_completed == 0 and shuffle:
            self._shuffle()
        if start + batch_size <= self.num_examples:
            self._position = start + batch_size
            return self._images[start : self._position], self._labels[start : self._position]
        self._epochs_completed += 1
        rest = self._images[start:], self._labels[start:]
        if shuffle:
            self._shuffle()
        self._position = batch_size - len(rest[0])
        first = self._images[: self._position], self._labels[: self._position]
        return np.concatenate((rest[0], first[0])), np.concatenate((rest[1], first[1]))

    def _shuffle(self) -> None:
        order = np.arange(self.num_examples)
        np.random.shuffle(order)  # TensorFlow's order for one seed
        self._images, self._labels = self._images[order], self._labels[order]


class Datasets(NamedTuple):
    """The three sets that `read_data_sets` returns."""

    train: DataSet
    validation: DataSet
    test: DataSet


def read_data_sets(
    train_dir: str,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: Any = float32,
    reshape: bool = True,
    validation_size: int = 5000,
    seed: int | None = None,
    source_url: str | None = None,
) -> Datasets:
    """MNIST from its four files, as they are or with ``.gz``.

    With ``FLOWRT_MNIST=digits`` in the environment scikit-learn's digits are the data, 1,500 for training, a
    tenth of them for validation, 297 for tests, wherever a file is missing.

    Args:
        train_dir: The directory of the files.
        one_hot: Whether labels are vectors of 10 instead of numbers.
        reshape: Whether images are rows of 784 instead of ``[28, 28, 1]``.
        validation_size: The number of training examples, the first ones, that are for validation.
        source_url: Not used: nothing is downloaded.

    Returns:
        The data sets ``train``, ``validation`` and ``test``.

    Raises:
        NotFoundError: There are no files.
        DataLossError: A file is damaged.

    Example:
        >>> mnist = tf.examples.tutorials.mnist.input_data.read_data_sets('data', one_hot=True)
        >>> images, labels = mnist.train.next_batch(32)
        >>> images.shape, labels.shape
        ((32, 784), (32, 10))
    """
    options = dict(dtype=dtype, reshape=reshape, seed=seed)
    if fake_data:
        return Datasets(*(DataSet([], [], fake_data=True, one_hot=one_hot, **options) for _ in range(3)))
    paths = [_find(Path(os.fspath(train_dir)), name) for name in _FILES]
    if None not in paths:
        images, labels, test_images, test_labels = (
            read_idx(path, rank) for path, rank in zip(paths, (3, 1, 3, 1), strict=True) if path
        )
    elif os.environ.get("FLOWRT_MNIST") == "digits":
        images, labels, test_images, test_labels = digits()
        validation_size = min(validation_size, len(images) // 10)
    else:
        raise NotFoundError(
            f"read_data_sets: expected {', '.join(_FILES)} in {str(train_dir)!r}, as they are or with .gz; "
            f"{paths.count(None)} are missing. FLOWRT_MNIST=digits takes scikit-learn's digits instead"
        )
    if not 0 <= validation_size <= len(images):
        raise InvalidArgumentError(
            f"read_data_sets: expected a validation_size from 0 to {len(images)}; got {validation_size}"
        )
    if one_hot:
        labels, test_labels = _one_hot(labels), _one_hot(test_labels)
    parts = (
        (images[validation_size:], labels[validation_size:]),
        (images[:validation_size], labels[:validation_size]),
        (test_images, test_labels),
    )
    return Datasets(*(DataSet(each[..., np.newaxis], names, **options) for each, names in parts))


def _find(directory: Path, name: str) -> Path | None:
    return next((path for path in (directory / name, directory / f"{name}.gz") if path.is_file()), None)


def _one_hot(labels: Array) -> Array:
    """[n, 10] float64 from [n] integers, as TensorFlow's tutorial has them."""
    return np.eye(_CLASSES)[labels]
