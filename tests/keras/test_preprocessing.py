"""`flowrt.keras.preprocessing`, `utils` and `datasets`: data as arrays."""

from __future__ import annotations

import functools
import gzip
import pickle
import random
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import keras
from flowrt.errors import DataLossError, InvalidArgumentError, NotFoundError, UnimplementedError
from flowrt.keras.preprocessing import image, sequence, text


def test_sequences_are_padded_and_cut_at_either_end() -> None:
    lists = [[1], [2, 3, 4], []]
    for options, expected in (
        ({}, [[0, 0, 1], [2, 3, 4], [0, 0, 0]]),
        ({"maxlen": 2}, [[0, 1], [3, 4], [0, 0]]),
        ({"maxlen": 2, "padding": "post", "truncating": "post", "value": 9}, [[1, 9], [2, 3], [9, 9]]),
    ):
        np.testing.assert_array_equal(sequence.pad_sequences(lists, **options), expected)
    with pytest.raises(InvalidArgumentError, match="expected padding pre or post; got 'front'"):
        sequence.pad_sequences(lists, padding="front")
    steps = np.arange(10)
    windows = sequence.TimeseriesGenerator(steps, steps, length=3, batch_size=4)
    assert len(windows) == 2
    np.testing.assert_array_equal(windows[1][0], [[4, 5, 6], [5, 6, 7], [6, 7, 8]])
    np.testing.assert_array_equal(windows[1][1], [7, 8, 9])


def test_words_are_numbered_by_how_often_they_are() -> None:
    texts = ["The cat, the dog!", "the CAT sat"]
    words = text.Tokenizer(num_words=3, oov_token="?")
    words.fit_on_texts(texts)
    assert words.word_index == {"?": 1, "the": 2, "cat": 3, "dog": 4, "sat": 5}
    assert words.texts_to_sequences(["the dog barks"]) == [[2, 1, 1]]
    plain = text.Tokenizer()
    plain.fit_on_texts(texts)
    np.testing.assert_array_equal(plain.texts_to_matrix(["the the dog"], "count"), [[0, 2, 0, 1, 0]])
    np.testing.assert_array_equal(keras.utils.to_categorical([[1], [0]], 3), [[0, 1, 0], [1, 0, 0]])


def test_images_come_in_batches_normalized() -> None:
    x = np.random.RandomState(0).rand(5, 4, 4, 3)
    generator = image.ImageDataGenerator(
        rescale=2.0, samplewise_center=True, horizontal_flip=True, width_shift_range=0.25
    )
    batches = generator.flow(x, np.arange(5), batch_size=2, seed=1)
    found, labels = zip(*(next(batches) for _ in range(3)), strict=True)
    assert [len(batch) for batch in found] == [2, 2, 1]
    assert sorted(np.concatenate(labels)) == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(np.concatenate(found).mean((1, 2, 3)), 0, atol=1e-6)
    with pytest.raises(UnimplementedError, match="data_format is not supported"):
        image.ImageDataGenerator(data_format="channels_first")


def test_features_are_measured_on_scaled_images() -> None:
    generator = image.ImageDataGenerator(featurewise_std_normalization=True, rescale=0.5)
    generator.fit(np.arange(8.0).reshape(2, 2, 2, 1))
    np.testing.assert_allclose([generator.mean[0], generator.std[0]], [1.75, 1.145644], rtol=1e-6)


def test_whitened_pixels_are_uncorrelated() -> None:
    x = np.random.RandomState(0).rand(40, 2, 2, 3).astype("float32")
    generator = image.ImageDataGenerator(zca_whitening=True)
    generator.fit(x)
    found = generator.standardize(x).reshape(40, -1)
    np.testing.assert_allclose(found.T @ found / 40, np.eye(12), atol=1e-3)


def test_random_changes_are_tensorflows() -> None:
    x = np.arange(9.0).reshape(3, 3, 1)
    np.random.seed(0)
    zoomed = image.random_zoom(x, (0.5, 1.5), row_axis=0, col_axis=1, channel_axis=2)[..., 0]
    expected = [[0, 0.7848, 2], [2.8536, 3.6384, 4.8536], [6, 6.7848, 8]]
    np.testing.assert_allclose(zoomed, expected, atol=1e-4)
    np.random.seed(0)
    channels_first = image.random_zoom(x.transpose(2, 0, 1), (0.5, 1.5))[0]
    np.testing.assert_allclose(channels_first[:2], [[0, 0.7848, 2], [3, 3.7848, 5]], atol=1e-4)


def test_skipgrams_are_tensorflows() -> None:
    random.seed(1)
    couples, labels = sequence.skipgrams([1, 2, 0, 3], 9, window_size=1, seed=2)
    assert (couples, labels) == ([[2, 1], [2, 2], [1, 5], [1, 2]], [1, 0, 0, 1])
    table = sequence.make_sampling_table(4)
    np.testing.assert_allclose(table, [0.003152, 0.003152, 0.005476, 0.007416], atol=1e-6)


_HALVED = np.array([[0, 3, 1, 0], [0, 1, 3, 0], [0, 0, 3, 1], [0, 0, 1, 3]]) / 4  # about row 2.5, not 1.5
CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "a quarter turn": ({"theta": 90}, lambda x: x[[3, 3, 3, 2]].swapaxes(0, 1)),
    "shifts": ({"tx": 1, "ty": -2}, lambda x: x[[1, 2, 3, 3]][:, [0, 0, 0, 1]]),
    "half a pixel": ({"ty": 0.5}, lambda x: (x + x[:, [1, 2, 3, 3]]) / 2),
    "a zoom of rows": ({"zx": 0.5}, lambda x: np.einsum("ij,jkc->ikc", _HALVED, x)),
    "flips": ({"flip_horizontal": True, "flip_vertical": True}, lambda x: x[::-1, ::-1]),
    "channels": ({"channel_shift_intensity": 0.5}, lambda x: np.minimum(x + 0.5, x.max())),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_image_is_changed_as_asked(change: str) -> None:
    pytest.importorskip("scipy")
    given, expected = CHANGES[change]
    x = np.random.RandomState(0).rand(4, 4, 3)
    found = image.ImageDataGenerator().apply_transform(x, given)
    np.testing.assert_allclose(found, expected(x), atol=1e-12)


def test_random_changes_of_a_seed_are_tensorflows() -> None:
    generator = image.ImageDataGenerator(
        rotation_range=30, width_shift_range=[1, 2, 3], height_shift_range=0.5, shear_range=10.0,
        zoom_range=0.25, channel_shift_range=2.0, horizontal_flip=True, vertical_flip=True,
    )  # fmt: skip
    assert generator.get_random_transform((20, 30, 3), seed=7) == pytest.approx(
        {
            "theta": -25.42150263756257, "tx": 5.598375844802293, "ty": 1.0, "shear": 0.7699174082086735,
            "zx": 1.000560231829969, "zy": 0.7860255666798808, "flip_horizontal": True, "flip_vertical": True,
            "channel_shift_intensity": 0.7169199844837619, "brightness": None,
        }
    )  # fmt: skip
    whole = image.ImageDataGenerator(width_shift_range=4)
    assert whole.get_random_transform((20, 30, 3), seed=3)["ty"] == -2


def test_data_sets_are_read_from_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    with pytest.raises(NotFoundError, match=r"mnist\.npz; there is none"):
        keras.datasets.mnist.load_data()
    folder = tmp_path / "datasets" / "fashion-mnist"
    folder.mkdir(parents=True)
    x, y = np.arange(8, dtype=np.uint8).reshape(2, 2, 2), np.array([1, 0], np.uint8)
    np.savez(folder.parent / "mnist.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    for kind in ("train", "t10k"):
        for name, array in (("images-idx3", x), ("labels-idx1", y)):
            head = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (folder / f"{kind}-{name}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
    for load in (keras.datasets.mnist.load_data, keras.datasets.fashion_mnist.load_data):
        (found, labels), (_, test_labels) = load()
        np.testing.assert_array_equal(found, x)
        np.testing.assert_array_equal(labels, y)
        assert test_labels[0] == 1


def test_iterators_of_one_seed_change_images_and_masks_alike() -> None:
    """With TensorFlow's numbers: the first order of the seed 3 is that of `numpy.random.seed` (3)."""
    pytest.importorskip("scipy")
    images = np.arange(6 * 8 * 8, dtype="float32").reshape(6, 8, 8, 1)
    options: dict[str, Any] = {"width_shift_range": [-2, 1], "horizontal_flip": True}
    both = [
        image.ImageDataGenerator(**options).flow(each, range(6), batch_size=4, seed=3)
        for each in (images, -images)
    ]
    for number in range(5):
        (found, places), (mask, same) = (next(each) for each in both)
        np.testing.assert_array_equal(found, -mask)
        np.testing.assert_array_equal(places, same)
        if number == 0:
            assert places.tolist() == np.random.RandomState(3).permutation(6)[:4].tolist()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.ones((2, 4, 4)),), {}, r"images of rank 4; got the shape \(2, 4, 4\)"),
        ((np.ones((3, 4, 4, 1)), [1, 2]), {}, "y of 3 images; got 2"),
        ((np.ones((3, 4, 4, 1)),), {"sample_weight": [1, 2]}, "sample_weight of 3 images; got 2"),
        ((np.ones((3, 4, 4, 1)),), {"subset": "test"}, "subset 'training' or 'validation'; got 'test'"),
    ],
    ids=["rank", "labels", "weights", "subset"],
)
def test_flow_says_what_does_not_fit(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"flow: expected {message}"):
        image.ImageDataGenerator().flow(*arguments, **options)


@pytest.mark.parametrize(
    "options", [{"data_format": "NHWC"}, {"validation_split": 2}], ids=["format", "split"]
)
def test_a_generator_says_what_it_does_not_take(options: Any) -> None:
    (name,) = options
    with pytest.raises(InvalidArgumentError, match=f"ImageDataGenerator: expected.*{name}"):
        image.ImageDataGenerator(**options)


def test_pickled_data_sets_are_read_without_running_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    folder = tmp_path / "datasets/cifar-100-python"
    folder.mkdir(parents=True)
    pixels = np.arange(2 * 3072).reshape(2, 3072).astype(np.uint8)
    for name in ("train", "test"):
        data = {b"data": pixels, b"fine_labels": [7, 9], b"coarse_labels": [1, 0]}
        (folder / name).write_bytes(pickle.dumps(data, protocol=2))
    (images, labels), _ = keras.datasets.cifar100.load_data("coarse")
    np.testing.assert_array_equal(images[1, 0, :2], pixels[1].reshape(3, 1024)[:, :2].T)
    np.testing.assert_array_equal(labels, [[1], [0]])
    (folder / "test").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    with pytest.raises(pickle.UnpicklingError, match=r"expected arrays; got posix\.system"):
        keras.datasets.cifar100.load_data()


def test_texts_are_cut_to_the_usual_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "datasets").mkdir()
    x = np.empty(4, object)
    x[:] = [[1, 9], [2], [3, 3, 3], [9]]
    np.savez(tmp_path / "datasets/reuters.npz", x=x, y=np.arange(4))
    order = np.arange(4)
    np.random.RandomState(113).shuffle(order)
    marked = [[1, 4, 2], [1, 5], [1, 6, 6, 6], [1, 2]]  # 1 begins, 2 is an unusual word, others begin at 4
    (train, labels), (test, _) = keras.datasets.reuters.load_data(num_words=10, test_split=0.25)
    assert [*train, *test] == [marked[i] for i in order]
    assert list(labels) == list(order[:3])
    (short, _), (rest, _) = keras.datasets.reuters.load_data(num_words=10, maxlen=3, oov_char=None)
    assert sorted([*short, *rest]) == [[1], [1, 5]]


def test_files_are_expected_where_keras_puts_them(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none is downloaded\. Put where/a\.txt there"):
        keras.utils.get_file("a.txt", "where/a.txt", cache_dir=str(tmp_path))
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets/a.txt").write_text("a")
    options = {"cache_dir": str(tmp_path), "md5_hash": "0cc175b9c0f1b6a831c399e269772661"}
    assert keras.utils.get_file("a.txt", "where", **options) == str(tmp_path / "datasets/a.txt")
    with pytest.raises(DataLossError, match="expected the hash 0;"):
        keras.utils.get_file("a.txt", "where", cache_dir=str(tmp_path), file_hash="0")
    with tarfile.open(tmp_path / "datasets/texts.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "datasets/a.txt", "texts/a.txt")
    found = keras.utils.get_file("texts", "where", untar=True, cache_dir=str(tmp_path))
    assert Path(found, "a.txt").read_text() == "a"


def test_models_are_drawn(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        inner = keras.Sequential([keras.layers.Dense(2, input_shape=(3,), name="small")], "inner")
        model = keras.Sequential([keras.layers.Dense(3, input_shape=(4,), name="large"), inner])
        text = keras.utils.model_to_dot(model, show_shapes=True, expand_nested=True).to_string()
        keras.utils.plot_model(model, str(tmp_path / "model.dot"), rankdir="LR")
    assert '"large: Dense|{input:|output:}|{{(None, 4)}|{(None, 3)}}"' in text
    assert "subgraph" in text
    assert "small: Dense" in text
    assert (tmp_path / "model.dot").read_text().startswith("digraph { rankdir=LR")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of one colour, whose number tells file and class: 0 to 3 in ``a``, 100 to 103 in ``b``."""
    for number, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        for i in range(4):
            image.save_img(tmp_path / name / f"{i}.png", np.full([2, 3, 3], 100 * number + i), scale=False)
        (tmp_path / name / "notes.txt").write_text("no image")
    return tmp_path


def test_images_come_from_folders_of_classes(folder: Path) -> None:
    generator = image.ImageDataGenerator(validation_split=0.5)
    options: dict[str, Any] = {"target_size": (4, 4), "batch_size": 3, "shuffle": False}
    batches = generator.flow_from_directory(folder, **options)
    assert batches.class_indices == {"a": 0, "b": 1}
    assert (batches.samples, len(batches), batches.filenames[4]) == (8, 3, "b/0.png")
    x, y = batches[1]
    np.testing.assert_array_equal(x[:, 0, 0, 0], [3, 100, 101])
    np.testing.assert_array_equal(y, [[1, 0], [0, 1], [0, 1]])
    for subset, mode, expected in (
        ("validation", "binary", ([0, 1, 100], [0, 0, 1])),
        ("training", "sparse", ([2, 3, 102], [0, 0, 1])),
    ):
        x, y = next(
            generator.flow_from_directory(
                folder, color_mode="grayscale", class_mode=mode, subset=subset, **options
            )
        )
        np.testing.assert_array_equal(x[:, 0, 0, 0], expected[0])
        np.testing.assert_array_equal(y, expected[1])
    x, same = generator.flow_from_directory(folder, classes=["b"], class_mode="input", **options)[0]
    np.testing.assert_array_equal(x, same)
    assert generator.flow_from_directory(folder, class_mode=None, **options)[0].shape == (3, 4, 4, 3)


def test_images_come_from_a_table(folder: Path) -> None:
    table = {
        "name": ["a/0.png", "b/0.png", "a/1.png", "absent.png", "b/1.png"],
        "kind": ["cat", "dog", "cat", "cat", "cow"],
        "both": [["x"], ["y", "x"], ["y"], ["x"], ["y"]],
        "size": [1.0, 2.0, 3.0, 4.0, 5.0],
    }
    flow = functools.partial(
        image.ImageDataGenerator(validation_split=0.5).flow_from_dataframe, table, folder, "name",
        target_size=(2, 2), shuffle=False,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="1 images of the column 'name' are not there"):
        batches = flow("kind", weight_col="size")
    x, y, weights = batches[0]
    np.testing.assert_array_equal(x[:, 0, 0, 0], [0, 100, 1, 101])
    np.testing.assert_array_equal(y, [[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(weights, [1, 2, 3, 5])
    assert batches.class_indices == {"cat": 0, "cow": 1, "dog": 2}
    table.update({key: [*values[:3], values[4]] for key, values in table.items()})  # type: ignore[misc, index]
    np.testing.assert_array_equal(flow("both")[0][1], [[1, 0], [1, 1], [0, 1], [0, 1]])
    np.testing.assert_array_equal(flow("kind", class_mode="binary", classes=["dog", "cat"])[0][1], [0, 1, 0])
    np.testing.assert_array_equal(
        flow(["size", "size"], class_mode="raw", subset="training")[0][1], [[3, 3], [5, 5]]
    )
    first, second = flow(["size", "kind"], class_mode="multi_output")[0][1]
    assert (first.tolist(), second.tolist()) == ([1, 2, 3, 5], ["cat", "dog", "cat", "cow"])
    for call, message in (
        (lambda: flow("weight"), r"expected a column 'weight'; got \['both', 'kind', 'name', 'size'\]"),
        (
            lambda: flow("size"),
            "expected strings in the column 'size' with class_mode 'categorical'; got 1.0",
        ),
        (lambda: flow("kind", class_mode="binary"), "expected 2 classes with class_mode 'binary'; got 3"),
        (lambda: flow("kind", class_mode="one"), "expected class_mode categorical, binary, .*; got 'one'"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            call()


def test_changed_images_are_kept_in_a_folder(folder: Path) -> None:
    kept = folder / "kept"
    kept.mkdir()
    x = np.arange(12.0).reshape(1, 2, 2, 3)
    next(image.ImageDataGenerator().flow(x, save_to_dir=kept, save_prefix="new"))
    (file,) = kept.iterdir()
    assert file.name.startswith("new_")
    stretched = (x[0].astype("float32") / 11 * 255).astype("uint8")
    np.testing.assert_array_equal(image.img_to_array(image.load_img(file)), stretched)


def test_brightness_is_a_factor_of_the_stretched_image() -> None:
    x = np.array([[[0.0], [51.0], [102.0]]])
    found = image.ImageDataGenerator().apply_transform(x, {"brightness": 0.5})
    np.testing.assert_allclose(found[0, :, 0], [0, 63, 127], atol=1)
    generator = image.ImageDataGenerator(brightness_range=[0.5, 1.5])
    drawn = np.random.RandomState(2)
    drawn.uniform(size=2)  # of the two flips
    assert generator.get_random_transform((2, 2, 1), seed=2)["brightness"] == drawn.uniform(0.5, 1.5)


def test_mistakes_with_files_of_images_are_named(folder: Path) -> None:
    generator, file = image.ImageDataGenerator(), folder / "a/0.png"
    for call, error, message in (
        (lambda: image.load_img(file, color_mode="bgr"), InvalidArgumentError, "color_mode 'grayscale'"),
        (lambda: image.load_img(file, target_size=(1, 1), interpolation="no"), InvalidArgumentError, "'no'"),
        (lambda: image.array_to_img(np.ones([2, 2])), InvalidArgumentError, "an array of rank 3"),
        (lambda: image.array_to_img(np.ones([2, 2, 2])), InvalidArgumentError, "1, 3 or 4 channels; got 2"),
        (lambda: generator.flow_from_directory(folder / "c"), NotFoundError, "expected a folder at"),
        (
            lambda: generator.flow_from_directory(folder, class_mode="onehot"),
            InvalidArgumentError,
            "got 'onehot'",
        ),
        (
            lambda: image.ImageDataGenerator(brightness_range=0.5),
            InvalidArgumentError,
            r"brightness_range \[least, most\]; got 0\.5",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
