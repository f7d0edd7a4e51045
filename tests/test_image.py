"""`flowrt.image`: what is drawn at random and what is refused; `tests/twins` compares values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError

PIXELS = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)


@pytest.fixture(autouse=True)
def session() -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        yield session


@pytest.mark.parametrize(("function", "axis"), [("random_flip_left_right", 1), ("random_flip_up_down", 0)])
def test_half_of_the_images_are_flipped_each_by_itself(session: tf.Session, function: str, axis: int) -> None:
    one = getattr(tf.image, function)(PIXELS[0])
    many = getattr(tf.image, function)(np.tile(PIXELS[:1], [100, 1, 1, 1]))
    turned = np.flip(PIXELS[0], axis)
    seen = [session.run(one) for _ in range(40)]
    for images in (seen, session.run(many)):
        flipped = [np.array_equal(image, turned) for image in images]
        kept = [np.array_equal(image, PIXELS[0]) for image in images]
        assert all(a != b for a, b in zip(flipped, kept, strict=True))
        assert 0.2 < np.mean(flipped) < 0.8


@pytest.mark.parametrize(
    ("function", "range_", "adjust"),
    [
        ("random_brightness", (0.3,), "adjust_brightness"),
        ("random_contrast", (0.5, 1.5), "adjust_contrast"),
        ("random_hue", (0.2,), "adjust_hue"), ("random_saturation", (0.5, 1.5), "adjust_saturation"),
    ],
)  # fmt: skip
def test_changes_at_random_are_within_their_range(
    session: tf.Session, function: str, range_: tuple[float, ...], adjust: str
) -> None:
    image = np.random.default_rng(0).uniform(0.3, 0.7, (4, 4, 3)).astype(np.float32)
    changed = getattr(tf.image, function)(image, *range_, seed=3)
    low, high = range_ if len(range_) == 2 else (-range_[0], range_[0])
    factors = np.linspace(low, high, 400, dtype=np.float32)
    by_hand = getattr(tf.image, adjust)(image, factor := tf.placeholder(tf.float32, []))
    grid = np.stack([session.run(by_hand, {factor: number}) for number in factors])
    drawn = np.stack([session.run(changed) for _ in range(8)])
    nearest = np.abs(grid[None] - drawn[:, None]).max(axis=(2, 3, 4)).argmin(axis=1)
    assert np.abs(grid[nearest] - drawn).max() < 0.01
    assert len(set(nearest)) > 4
    with pytest.raises(InvalidArgumentError, match=f"{function}: expected"):
        getattr(tf.image, function)(image, *([-1.0] if len(range_) == 1 else [1.5, 0.5]))


def test_an_image_of_the_size_asked_for_keeps_its_dtype() -> None:
    assert tf.image.resize_images(PIXELS, [4, 5]).dtype is tf.uint8
    assert tf.image.resize_images(PIXELS, [4, 6]).dtype is tf.float32
    assert tf.image.resize_images(PIXELS[0], [4, 5]).shape.as_list() == [4, 5, 3]
    unknown = tf.placeholder(tf.float32, [None, None, None, 3])
    assert tf.image.resize_images(unknown, [7, 8]).shape.as_list() == [None, 7, 8, 3]
    assert tf.image.resize_image_with_crop_or_pad(unknown, 7, 8).shape.as_list()[0] is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda i: i.resize_images(PIXELS, [3]), "expected a height and a width"),
        (lambda i: i.resize_images(PIXELS, [3, 4], 9), "expected a ResizeMethod; got 9"),
        (lambda i: i.resize_images(PIXELS[0, 0], [3, 4]), "resize_images: expected .*several images"),
        (lambda i: i.pad_to_bounding_box(PIXELS, 0, 0, 3, 9), "at most 3 by 9 at 0, 0; got 4 by 5"),
        (lambda i: i.central_crop(PIXELS, 1.5), "fraction above 0 and at most 1"),
        (lambda i: i.adjust_gamma(PIXELS, -1), "gamma of at least 0"),
        (lambda i: i.crop_and_resize(np.float32(PIXELS), [[0.0, 0, 1, 1]]), "box_ind and crop_size"),
        (lambda i: i.decode_jpeg(b"", channels=4), r"channels: expected one of \[0, 1, 3\]"),
        (lambda i: i.rot90(PIXELS, tf.placeholder(tf.int32, [])), "expected a known k"),
    ],
)
def test_what_cannot_be_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        call(tf.image)


def test_dtypes_that_are_no_images_are_refused() -> None:
    with pytest.raises(DTypeError, match="integers or floats; got bool"):
        tf.image.convert_image_dtype(PIXELS > 3, tf.float32)


def test_a_crop_outside_of_an_image_fails_when_run(session: tf.Session) -> None:
    part = tf.image.crop_to_bounding_box(PIXELS, 0, 0, fed := tf.placeholder(tf.int32, []), 2)
    assert session.run(part, {fed: 3}).shape == (2, 3, 2, 3)
    with pytest.raises(InvalidArgumentError):
        session.run(part, {fed: 5})


def test_bytes_that_are_no_image_are_told(session: tf.Session) -> None:
    pytest.importorskip("PIL")
    png = session.run(tf.image.encode_png(PIXELS[0]))
    for contents in (b"", b"text", png[:40]):
        with pytest.raises(InvalidArgumentError, match=f"got {len(contents)} bytes that begin with"):
            session.run(tf.image.decode_image(contents))


def test_encoded_images_come_back(session: tf.Session) -> None:
    pytest.importorskip("PIL")
    smooth = np.clip(np.add.outer(np.arange(16) * 8, np.arange(24) * 5)[..., None] + [0, 20, 40], 0, 255)
    image = smooth.astype(np.uint8)
    np.testing.assert_array_equal(session.run(tf.image.decode_png(tf.image.encode_png(image))), image)
    for options in ({}, {"quality": 90, "chroma_downsampling": False}, {"progressive": True}):
        contents = tf.image.encode_jpeg(image, **options)
        found, is_jpeg = session.run([tf.image.decode_jpeg(contents), tf.image.is_jpeg(contents)])
        assert is_jpeg
        assert np.abs(found.astype(int) - image).max() < 12
        half = session.run(tf.image.decode_jpeg(contents, ratio=2))
        assert half.shape == (8, 12, 3)
    grey = tf.image.encode_jpeg(image[..., :1], format="grayscale")
    assert session.run(tf.image.decode_jpeg(grey)).shape == (16, 24, 1)
    with pytest.raises(InvalidArgumentError, match="as format 'rgb' says"):
        session.run(tf.image.encode_jpeg(image[..., :1], format="rgb"))
    changed = session.run(tf.image.adjust_jpeg_quality(image / np.float32(255), 20))
    assert 0 < np.abs(changed - image / 255).max() < 0.3


def test_images_are_read_in_a_dataset(session: tf.Session, tmp_path: Any) -> None:
    pytest.importorskip("PIL")
    names = []
    for i in range(3):
        names.append(str(tmp_path / f"{i}.png"))
        session.run(tf.write_file(names[-1], tf.image.encode_png(np.full((6, 6, 3), i * 50, np.uint8))))

    def read(name: tf.Tensor) -> tf.Tensor:
        image = tf.image.decode_png(tf.read_file(name), channels=3)
        return tf.image.resize_images(tf.image.convert_image_dtype(image, tf.float32), [2, 2])

    batch = tf.data.Dataset.from_tensor_slices(names).map(read).batch(3).make_one_shot_iterator().get_next()
    expected = np.full((3, 2, 2, 3), 50 / 255) * np.arange(3).reshape(3, 1, 1, 1)
    np.testing.assert_allclose(session.run(batch), expected, rtol=1e-5, atol=1e-6)


def test_a_random_part_covers_enough_of_a_box_and_keeps_to_its_ranges(session: tf.Session) -> None:
    sample = tf.image.sample_distorted_bounding_box
    options = {"min_object_covered": 0.5, "aspect_ratio_range": [0.5, 2.0], "area_range": [0.1, 0.9]}
    boxes = [[[0.2, 0.3, 0.6, 0.7], [0.0, 0.0, 0.1, 0.1]]]
    parts = sample([100, 150, 3], boxes, seed=3, **options)
    drawn = [session.run(parts) for _ in range(60)]
    for (y, x, _), (height, width, rest), corners in drawn:
        assert 0 <= y <= 100 - height
        assert 0 <= x <= 150 - width
        assert rest == -1
        assert 0.1 <= height * width / 15000 <= 0.9
        assert 0.45 <= width / height <= 2.05
        np.testing.assert_allclose(
            corners, [[[y / 100, x / 150, (y + height) / 100, (x + width) / 150]]], rtol=1e-5
        )
        first = max(0, min(y + height, 60) - max(y, 20)) * max(0, min(x + width, 105) - max(x, 45)) / 2400
        second = max(0, 10 - y) * max(0, 15 - x) / 150
        assert max(first, second) >= 0.5
    assert len({(y, x) for (y, x, _), *_ in drawn}) > 40
    impossible = sample([10, 10, 3], [[[0.0, 0, 1, 1]]], min_object_covered=1.0, area_range=[0.1, 0.5])
    begin, size, _ = session.run(impossible)
    assert (begin.tolist(), size.tolist()) == ([0, 0, 0], [10, 10, -1])
    none = np.zeros((1, 0, 4), np.float32)
    session.run(sample([10, 10, 3], none, use_image_if_no_bounding_boxes=True))
    with pytest.raises(InvalidArgumentError, match="expected bounding boxes; there are none"):
        session.run(sample([10, 10, 3], none))
    with pytest.raises(InvalidArgumentError, match=r"areas up to 1; got None, \[0.5, 2\]"):
        sample([10, 10, 3], boxes, area_range=[0.5, 2])


def test_images_of_the_asked_size_stay_as_they_are() -> None:
    images = np.ones((1, 3, 3, 1), np.float32)
    images[0, 1, 1], images[0, 2, 2] = np.nan, np.inf  # inf - inf is NaN between two rows
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(tf.image.resize_bilinear(images, [3, 3])), images)
