"""`flowrt.keras.applications`: networks for images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError, NotFoundError
from flowrt.keras import applications, layers
from flowrt.keras.applications import imagenet

ELEMENTS = {
    "VGG16": 138_357_544, "VGG19": 143_667_240, "ResNet50": 25_636_712, "ResNet101": 44_707_176,
    "ResNet152": 60_419_944, "ResNet50V2": 25_613_800, "ResNet101V2": 44_675_560, "ResNet152V2": 60_380_648,
    "InceptionV3": 23_851_784, "InceptionResNetV2": 55_873_736,
    "Xception": 22_910_480, "MobileNet": 4_253_864, "MobileNetV2": 3_538_984,
    "DenseNet121": 8_062_504, "DenseNet169": 14_307_880, "DenseNet201": 20_242_984,
}  # fmt: skip
"""Elements of the weights of each network, as Keras's documentation lists them."""
QUICK = ("VGG16", "MobileNet")


@pytest.fixture(autouse=True)
def own_graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ELEMENTS]
)
def test_a_network_has_as_many_weights_as_the_published_one(name: str) -> None:
    model = getattr(applications, name)(weights=None)
    assert model.count_params() == ELEMENTS[name]
    assert model.output_shape == (None, 1000)


def test_weights_come_from_a_file_that_keras_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    options = {"input_shape": (32, 32, 3), "alpha": 0.25, "include_top": False, "pooling": "avg"}
    with pytest.raises(NotFoundError, match=r"file mobilenet_2_5_224_tf_no_top\.h5 at .*none is downloaded"):
        applications.MobileNet(**options)
    (tmp_path / "models").mkdir()
    first = applications.MobileNet(weights=None, **options)
    first.save_weights(str(tmp_path / "models/mobilenet_2_5_224_tf_no_top.h5"))
    second = applications.MobileNet(**options)
    for before, after in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_network_continues_a_tensor() -> None:
    images = layers.Input([32, 32, 1])
    model = applications.VGG16(False, None, layers.Conv2D(3, 1)(images), pooling="max")
    assert model.input is images
    assert model.output_shape == (None, 512)
    assert [layer.name for layer in model.layers[2:5]] == ["block1_conv1", "block1_conv2", "block1_pool"]


def test_arguments_that_do_not_go_together() -> None:
    for options, message in (
        ({"weights": "imagenet", "classes": 5}, "expected classes=1000 with weights='imagenet'; got 5"),
        ({"weights": "/none.h5"}, "expected weights of None, 'imagenet' or the path of a file"),
        ({"weights": None, "input_shape": (16, 16, 3)}, "at least 32 rows and columns"),
        ({"weights": None, "include_top": False, "pooling": "mean"}, "pooling None, 'avg' or 'max'"),
        ({"weights": None, "input_shape": (None, None, 3)}, "expected a known input_shape"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            applications.VGG16(**options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"alpha: expected 0.25 or .* or 1.0 with .*; got 0.3"):
        applications.MobileNet(alpha=0.3)
    with pytest.raises(InvalidArgumentError, match=r"alpha: expected 0.35 or .* or 1.4 with .*; got 0.25"):
        applications.MobileNetV2(alpha=0.25)


def test_images_are_scaled_as_the_network_was_trained() -> None:
    pixel = np.array([[[[255, 127.5, 0]]]])
    for network, expected in (
        (applications.vgg16, [-103.939, 127.5 - 116.779, 255 - 123.68]),
        (applications.xception, [1, 0, -1]),
        (applications.densenet, [(1 - 0.485) / 0.229, (0.5 - 0.456) / 0.224, -0.406 / 0.225]),
    ):
        found = network.preprocess_input(pixel)
        np.testing.assert_allclose(found[0, 0, 0], expected, rtol=1e-6)
        with tf.Session() as session:
            tensor = network.preprocess_input(tf.constant(pixel, tf.float32))
            np.testing.assert_allclose(session.run(tensor), found, rtol=1e-5, atol=1e-5)
    first = imagenet.preprocess_input(pixel.transpose(0, 3, 1, 2), "channels_first", "caffe")
    np.testing.assert_allclose(first[0, :, 0, 0], [-103.939, 10.721, 131.32], rtol=1e-6)
    assert imagenet.preprocess_input(np.ones([1, 2, 2, 3], np.uint8)).dtype == np.float32


def test_predictions_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    predictions = np.zeros([1, 1000])
    predictions[0, [7, 3]] = [0.7, 0.2]
    with pytest.raises(NotFoundError, match="imagenet_class_index"):
        applications.vgg16.decode_predictions(predictions)
    (tmp_path / "models").mkdir()
    names = {str(i): [f"n{i}", f"thing{i}"] for i in range(1000)}
    (tmp_path / "models/imagenet_class_index.json").write_text(json.dumps(names))
    found = applications.vgg16.decode_predictions(predictions, top=2)
    assert found == [[("n7", "thing7", 0.7), ("n3", "thing3", 0.2)]]
    with pytest.raises(InvalidArgumentError, match=r"expected \[n, 1000\]"):
        applications.vgg16.decode_predictions(predictions[:, :10])
