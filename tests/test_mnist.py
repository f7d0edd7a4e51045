"""`flowrt.examples.tutorials.mnist`: files of digits, and batches of them in TensorFlow's order."""

from __future__ import annotations

import gzip
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.examples.tutorials.mnist import input_data, mnist

N, N_TEST = 40, 10


def idx(values: np.ndarray[Any, Any]) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Image i has only pixels of i; its label is i % 10."""
    for part, count in (("train", N), ("t10k", N_TEST)):
        numbers = np.arange(count, dtype=np.uint8)
        images = np.broadcast_to(numbers[:, None, None], (count, 28, 28))
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(numbers % 10)))
    return tmp_path


def test_the_files_become_three_sets(directory: Path) -> None:
    sets = input_data.read_data_sets(str(directory), one_hot=True, validation_size=5)
    assert [each.num_examples for each in sets] == [N - 5, 5, N_TEST]
    assert sets.train.images.dtype == np.float32
    assert sets.train.images.shape == (N - 5, 784)
    np.testing.assert_allclose(sets.validation.images[:, 0], np.arange(5) / 255, rtol=1e-6)
    np.testing.assert_array_equal(sets.test.labels, np.eye(10))
    raw = input_data.read_data_sets(str(directory), dtype=tf.uint8, reshape=False, validation_size=0)
    assert raw.train.images.shape == (N, 28, 28, 1)
    assert raw.train.labels.dtype == raw.train.images.dtype == np.uint8
    assert raw.validation.num_examples == 0


def test_batches_go_through_every_epoch_in_another_order(directory: Path) -> None:
    train = input_data.read_data_sets(directory, dtype=tf.uint8, validation_size=0, seed=3).train
    seen = []
    for _ in range(10):  # four batches of 16 in 1.6 epochs of 40
        images, labels = train.next_batch(16)
        assert images.shape == (16, 784)
        np.testing.assert_array_equal(images[:, 0] % 10, labels)
        seen += images[:, 0].tolist()
    epochs = [seen[start : start + N] for start in range(0, 160, N)]
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert epochs[0] != list(range(N))
    assert train.epochs_completed == 3
    np.random.seed(3)
    order = np.arange(N)
    np.random.shuffle(order)
    assert epochs[0] == order.tolist()  # what TensorFlow gives for seed=3


def test_without_shuffling_batches_are_in_the_order_of_the_file(directory: Path) -> None:
    train = input_data.read_data_sets(directory, dtype=tf.uint8, validation_size=0).train
    seen = [train.next_batch(16, shuffle=False)[0][:, 0].tolist() for _ in range(3)]
    assert [number for batch in seen for number in batch] == [*range(40), *range(8)]


def test_fake_data_is_all_ones() -> None:
    images, labels = input_data.read_data_sets("nowhere", fake_data=True, one_hot=True).train.next_batch(2)
    np.testing.assert_allclose(images, np.full((2, 784), 1 / 255), rtol=1e-6)
    np.testing.assert_array_equal(labels, np.eye(10)[[0, 0]])


def test_missing_and_damaged_files_say_which(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(error: type[Exception], message: str, **options: Any) -> None:
        with pytest.raises(error, match=message):
            input_data.read_data_sets(directory, **{"validation_size": 0, **options})

    reading(tf.errors.InvalidArgumentError, "validation_size from 0 to 40; got 41", validation_size=41)
    reading(tf.errors.InvalidArgumentError, "uint8 or float32; got float64", dtype=tf.float64)
    labels, images = directory / "train-labels-idx1-ubyte.gz", directory / "train-images-idx3-ubyte"
    whole = labels.read_bytes()
    labels.write_bytes(whole[:-9])
    reading(tf.errors.DataLossError, f"{re.escape(str(labels))}: expected a whole gzip file")
    labels.write_bytes(gzip.compress(idx(np.zeros(3, np.uint8))))
    reading(tf.errors.InvalidArgumentError, "got 40 images, 3 labels")
    labels.write_bytes(whole)
    images.write_bytes(images.read_bytes()[:-1])
    reading(tf.errors.DataLossError, f"{re.escape(str(images))}: expected 31360 values; got 31359")
    images.write_bytes(b"<html>")
    reading(tf.errors.DataLossError, "expected an IDX file of bytes with 3 dimensions")
    images.unlink()
    monkeypatch.delenv("FLOWRT_MNIST", raising=False)
    reading(tf.errors.NotFoundError, r"train-images-idx3-ubyte, .*; 1 are missing\. FLOWRT_MNIST=digits")


def test_the_stand_in_are_scikit_learns_digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setenv("FLOWRT_MNIST", "digits")
    sets = input_data.read_data_sets(tmp_path, one_hot=True)
    assert [each.num_examples for each in sets] == [1350, 150, 297]
    assert sets.train.images.shape == (1350, 784)
    assert 0.9 < sets.train.images.max() <= 1


def test_the_tutorials_network_learns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setenv("FLOWRT_MNIST", "digits")
    sets = input_data.read_data_sets(tmp_path, seed=1)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        images = tf.placeholder(tf.float32, [50, mnist.IMAGE_PIXELS])
        labels = tf.placeholder(tf.int32, [50])
        logits = mnist.inference(images, 32, 16)
        train = mnist.training(mnist.loss(logits, labels), 0.1)
        right = mnist.evaluation(logits, labels)
        session.run(tf.global_variables_initializer())
        for _ in range(120):
            batch = dict(zip((images, labels), sets.train.next_batch(50), strict=True))
            session.run(train, batch)
        assert session.run(right, batch) > 40
