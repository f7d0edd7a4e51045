"""``flowrt.keras.datasets``: the data sets in ``~/.keras/datasets``, as Keras keeps them there.

Nothing is downloaded: a missing file is an error that names the place where it is expected.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from flowrt.errors import NotFoundError
from flowrt.examples.tutorials.mnist.idx_files import read_idx
from flowrt.graph.source import misuse
from flowrt.keras.array_pickles import ArrayUnpickler
from flowrt.keras.local_files import keras_folder

Array = np.ndarray[Any, Any]
Split = tuple[tuple[Array, Array], tuple[Array, Array]]


def _file(path: str) -> Path:
    """The file at ``path``, below ``~/.keras/datasets`` unless absolute. Raises `NotFoundError`."""
    found = keras_folder() / "datasets" / path
    if not found.exists():
        raise misuse(
            f"load_data: expected a file at {found}; there is none, and none is downloaded", NotFoundError
        )
    return found


def load_mnist(path: str = "mnist.npz") -> Split:
    """``((x, y), (x_test, y_test))``: digits ``[n, 28, 28]`` of uint8, and labels."""
    with np.load(_file(path), allow_pickle=False) as file:
        return (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])


def load_fashion_mnist() -> Split:
    """`load_mnist` of pieces of clothing."""
    parts = [
        (read_idx(_file(f"fashion-mnist/{kind}-{name}-ubyte.gz"), rank))
        for kind in ("train", "t10k")
        for name, rank in (("images-idx3", 3), ("labels-idx1", 1))
    ]
    return (parts[0], parts[1]), (parts[2], parts[3])


def load_boston_housing(path: str = "boston_housing.npz", test_split: float = 0.2, seed: int = 113) -> Split:
    """Features ``[n, 13]`` of districts and their prices, in the order that ``seed`` makes."""
    with np.load(_file(path), allow_pickle=False) as file:
        x, y = file["x"], file["y"]
    order = np.arange(len(x))
    np.random.RandomState(seed).shuffle(order)
    x, y, at = x[order], y[order], int(len(x) * (1 - test_split))
    return (x[:at], y[:at]), (x[at:], y[at:])


def load_cifar10() -> Split:
    """``((x, y), (x_test, y_test))``: images ``[n, 32, 32, 3]`` of uint8, and labels ``[n, 1]``."""
    names = [f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)]
    batches = [_read_cifar(name, "labels") for name in names]
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return (x, y), _read_cifar("cifar-10-batches-py/test_batch", "labels")


def load_cifar100(label_mode: str = "fine") -> Split:
    """`load_cifar10` of 100 classes, or of 20 with ``label_mode`` "coarse"."""
    if label_mode not in ("fine", "coarse"):
        raise misuse(f"load_data: expected label_mode 'fine' or 'coarse'; got {label_mode!r}")
    train, test = (
        _read_cifar(f"cifar-100-python/{name}", f"{label_mode}_labels") for name in ("train", "test")
    )
    return train, test


def _read_cifar(path: str, labels: str) -> tuple[Array, Array]:
    with _file(path).open("rb") as file:
        read = ArrayUnpickler(file, encoding="bytes").load()
    images = read[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, np.reshape(read[labels.encode()], (-1, 1))


def load_imdb(
    path: str = "imdb.npz", num_words: int | None = None, skip_top: int = 0, maxlen: int | None = None,
    seed: int = 113, start_char: int | None = 1, oov_char: int | None = 2, index_from: int = 3,
    **options: Any,
) -> Split:  # fmt: skip
    """Reviews as lists of word numbers, most frequent words first, and 1 for each that praises.

    Words from the number ``num_words`` on, and below ``skip_top``, become ``oov_char``, or are left out if it
    is None. ``maxlen`` leaves out texts of that length or longer. Raises `ValueError` if it leaves out all.
    """
    num_words = options.pop("nb_words", num_words)
    file = _read_objects(path)
    random = np.random.RandomState(seed)
    texts, labels = [], []
    for part in ("train", "test"):
        order = np.arange(len(file[f"x_{part}"]))
        random.shuffle(order)
        texts.append(file[f"x_{part}"][order])
        labels.append(file[f"y_{part}"][order])
    at = len(texts[0])
    marked, y = _marked(np.concatenate(texts), np.concatenate(labels), start_char, index_from, maxlen)
    x = _usual_words(marked, num_words, skip_top, oov_char)
    return (x[:at], y[:at]), (x[at:], y[at:])


def load_reuters(
    path: str = "reuters.npz", num_words: int | None = None, skip_top: int = 0, maxlen: int | None = None,
    test_split: float = 0.2, seed: int = 113, start_char: int | None = 1, oov_char: int | None = 2,
    index_from: int = 3, **options: Any,
) -> Split:  # fmt: skip
    """`load_imdb` of news with the numbers of their 46 topics."""
    num_words = options.pop("nb_words", num_words)
    file = _read_objects(path)
    order = np.arange(len(file["x"]))
    np.random.RandomState(seed).shuffle(order)
    marked, y = _marked(file["x"][order], file["y"][order], start_char, index_from, maxlen)
    x = _usual_words(marked, num_words, skip_top, oov_char)
    at = int(len(x) * (1 - test_split))
    return (x[:at], y[:at]), (x[at:], y[at:])


def _marked(
    x: Array, y: Array, start_char: int | None, index_from: int, maxlen: int | None
) -> tuple[list[list[int]], Array]:
    """Texts that begin with ``start_char``, words numbered from ``index_from``; those below ``maxlen``."""
    start = [] if start_char is None else [start_char]
    texts = [[*start, *(word + (index_from or 0) for word in text)] for text in x]
    if maxlen is None:
        return texts, y
    kept = [i for i, text in enumerate(texts) if len(text) < maxlen]
    if not kept:
        raise misuse(
            f"load_data: expected texts shorter than maxlen; got maxlen={maxlen}, and all are longer"
        )
    return [texts[i] for i in kept], y[kept]


def _usual_words(texts: list[list[int]], num_words: int | None, skip_top: int, oov_char: int | None) -> Array:
    end = num_words or max(max(text) for text in texts)
    found = np.empty(len(texts), object)
    for i, text in enumerate(texts):
        kept = [word if skip_top <= word < end else oov_char for word in text]
        found[i] = [word for word in kept if word is not None]
    return found


def load_imdb_words(path: str = "imdb_word_index.json") -> dict[str, int]:
    """The number of each word, without ``index_from``."""
    found: dict[str, int] = json.loads(_file(path).read_text("utf-8"))
    return found


def load_reuters_words(path: str = "reuters_word_index.json") -> dict[str, int]:
    """`load_imdb_words` of the news."""
    return load_imdb_words(path)


def _read_objects(path: str) -> dict[str, Array]:
    """The arrays of an ``.npz`` file, those of lists among them."""
    found = {}
    with zipfile.ZipFile(_file(path)) as archive:
        for name in archive.namelist():
            content = io.BytesIO(archive.read(name))
            version = np.lib.format.read_magic(content)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            _, _, dtype = read(content)
            if dtype.hasobject:
                array = ArrayUnpickler(content, encoding="latin1").load()
            else:
                content.seek(0)
                array = np.lib.format.read_array(content, allow_pickle=False)
            found[name.removesuffix(".npy")] = array
    return found
