"""``flowrt.keras.preprocessing.image``: batches of images, randomly changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt.errors import NotFoundError, UnimplementedError
from flowrt.graph.source import misuse
from flowrt.keras.preprocessing import affine, image_files
from flowrt.keras.preprocessing.image_batches import NUMBERED, FileBatches, ImageBatches, Saved, Targets
from flowrt.keras.preprocessing.image_files import ImageFiles, listed, part_of
from flowrt.keras.preprocessing.image_frames import frame_rows

array_to_img, load_img, save_img = image_files.array_to_img, image_files.load_img, image_files.save_img
apply_brightness_shift, random_brightness = image_files.apply_brightness_shift, image_files.random_brightness
apply_affine_transform, apply_channel_shift = affine.apply_affine_transform, affine.apply_channel_shift
random_rotation, random_shift, random_shear = affine.random_rotation, affine.random_shift, affine.random_shear
random_zoom, random_channel_shift = affine.random_zoom, affine.random_channel_shift
Iterator = NumpyArrayIterator = ImageBatches
DirectoryIterator = DataFrameIterator = FileBatches
Array = np.ndarray[Any, Any]


def img_to_array(img: Any, data_format: str | None = None, dtype: Any = "float32") -> Array:
    """An image as ``[height, width, channels]``, or channels first. Raises `InvalidArgumentError`."""
    found = np.asarray(img, dtype)
    if found.ndim not in (2, 3):
        raise misuse(f"img_to_array: expected an image of rank 2 or 3; got the shape {found.shape}")
    found = found[..., np.newaxis] if found.ndim == 2 else found
    return found.transpose(2, 0, 1) if data_format == "channels_first" else found


class ImageDataGenerator:
    """Images ``[n, height, width, channels]`` in batches: turned, shifted, sheared, zoomed, flipped, scaled
    and normalized.

    ``rotation_range`` and ``shear_range`` are degrees. A shift is at most a share of the image below 1, or
    that many pixels; of a list, one of its entries, of a whole number, one below it. ``zoom_range`` is
    ``[least, most]``, or a number on both sides of 1. What comes from outside is filled by ``fill_mode``:
    "nearest", "constant" (``cval``), "reflect" or "wrap". ``brightness_range`` is ``[least, most]``,
    and needs Pillow. Channels first are absent: they raise `UnimplementedError`. Turns, shifts, shears and
    zooms need SciPy.
    """

    def __init__(
        self, featurewise_center: bool = False, samplewise_center: bool = False,
        featurewise_std_normalization: bool = False, samplewise_std_normalization: bool = False,
        zca_whitening: bool = False, zca_epsilon: float = 1e-6, rotation_range: float = 0,
        width_shift_range: Any = 0.0, height_shift_range: Any = 0.0, brightness_range: Any = None,
        shear_range: float = 0.0, zoom_range: Any = 0.0, channel_shift_range: float = 0.0,
        fill_mode: str = "nearest", cval: float = 0.0, horizontal_flip: bool = False,
        vertical_flip: bool = False, rescale: float | None = None,
        preprocessing_function: Callable[[Array], Array] | None = None, data_format: str | None = None,
        validation_split: float = 0.0, interpolation_order: int = 1, dtype: Any = "float32",
    ) -> None:  # fmt: skip
        if data_format == "channels_first":
            raise misuse("ImageDataGenerator: data_format is not supported", UnimplementedError)
        if data_format not in (None, "channels_last"):
            raise misuse(f"ImageDataGenerator: expected data_format 'channels_last'; got {data_format!r}")
        if not 0 <= validation_split < 1:
            raise misuse(
                "ImageDataGenerator: expected a validation_split of at least 0 and below 1; got "
                f"{validation_split}"
            )
        # as in TensorFlow: scaling implies centring, and whitening is the only scaling of features
        self.featurewise_std_normalization = featurewise_std_normalization and not zca_whitening
        self.featurewise_center = featurewise_center or zca_whitening or featurewise_std_normalization
        self.samplewise_center = samplewise_center or samplewise_std_normalization
        self.zca_whitening, self.zca_epsilon = zca_whitening, zca_epsilon
        self.samplewise_std_normalization = samplewise_std_normalization
        self.rotation_range, self.shear_range = rotation_range, shear_range
        self.width_shift_range, self.height_shift_range = width_shift_range, height_shift_range
        self.zoom_range = zoom_range if np.ndim(zoom_range) else [1 - zoom_range, 1 + zoom_range]
        if len(self.zoom_range) != 2:
            raise misuse(f"ImageDataGenerator: expected zoom_range [least, most]; got {zoom_range!r}")
        if brightness_range is not None and np.shape(brightness_range) != (2,):
            raise misuse(
                f"ImageDataGenerator: expected brightness_range [least, most]; got {brightness_range!r}"
            )
        self.brightness_range = brightness_range
        self.channel_shift_range, self.fill_mode, self.cval = channel_shift_range, fill_mode, cval
        self.horizontal_flip, self.vertical_flip, self.rescale = horizontal_flip, vertical_flip, rescale
        self.preprocessing_function, self.validation_split = preprocessing_function, validation_split
        self.interpolation_order, self.dtype = interpolation_order, dtype
        self.mean: Any = None
        self.std: Any = None
        self.principal_components: Any = None

    def fit(self, x: Any, augment: bool = False, rounds: int = 1, seed: int | None = None) -> None:
        """Compute mean and deviation of the channels and the whitening of all pixels, as far as they are
        asked for, of ``x`` scaled; with ``augment`` of its images changed at random, ``rounds`` times each.

        Raises `InvalidArgumentError` for images of a rank other than 4.
        """
        images = np.array(x, "float32")
        if images.ndim != 4:
            raise misuse(f"ImageDataGenerator: fit: expected images of rank 4; got the shape {images.shape}")
        if seed is not None:
            np.random.seed(seed)
        images *= self.rescale or 1
        if augment:
            images = np.stack([self.random_transform(image) for _ in range(rounds) for image in images])
        if self.featurewise_center:
            self.mean = images.mean((0, 1, 2))
            images -= self.mean
        if self.featurewise_std_normalization:
            self.std = images.std((0, 1, 2))
        if self.zca_whitening:
            flat = images.reshape(len(images), -1)
            axes, variances, _ = np.linalg.svd(flat.T @ flat / len(flat))
            self.principal_components = (axes / np.sqrt(variances + self.zca_epsilon)) @ axes.T

    def standardize(self, x: Array) -> Array:
        """``x`` scaled and normalized. Raises `InvalidArgumentError` for features before `fit`."""
        x = x if self.preprocessing_function is None else self.preprocessing_function(x)
        x = x * self.rescale if self.rescale else x
        x = x - x.mean() if self.samplewise_center else x
        x = x / (x.std() + 1e-6) if self.samplewise_std_normalization else x
        if self.featurewise_center:
            if self.mean is None:
                raise misuse("ImageDataGenerator: expected a call of fit(x) before, to normalize features")
            x = x - self.mean
            x = x / (self.std + 1e-6) if self.featurewise_std_normalization else x
        if self.zca_whitening:
            x = (x.reshape(-1, np.prod(x.shape[-3:])) @ self.principal_components).reshape(x.shape)
        return x

    def get_random_transform(self, img_shape: tuple[int, ...], seed: int | None = None) -> dict[str, Any]:
        """A change for `apply_transform` of an image of the shape ``img_shape``; TensorFlow's for a seed."""
        return self.drawn_transform(np.random if seed is None else np.random.RandomState(seed), img_shape)

    def drawn_transform(self, random: Any, img_shape: tuple[int, ...]) -> dict[str, Any]:
        """`get_random_transform` with numbers of ``random``, in TensorFlow's order."""
        turned = random.uniform(-self.rotation_range, self.rotation_range) if self.rotation_range else 0
        down, across = (
            _drawn_shift(random, most, size)
            for most, size in zip((self.height_shift_range, self.width_shift_range), img_shape, strict=False)
        )
        sheared = random.uniform(-self.shear_range, self.shear_range) if self.shear_range else 0
        zooms = (1, 1) if tuple(self.zoom_range) == (1, 1) else random.uniform(*self.zoom_range, 2)
        flips = [random.random_sample() < 0.5 and way for way in (self.horizontal_flip, self.vertical_flip)]
        most = self.channel_shift_range
        return {
            "theta": turned, "tx": down, "ty": across, "shear": sheared, "zx": zooms[0], "zy": zooms[1],
            "flip_horizontal": flips[0], "flip_vertical": flips[1],
            "channel_shift_intensity": random.uniform(-most, most) if most else None,
            "brightness": None if self.brightness_range is None else random.uniform(*self.brightness_range),
        }  # fmt: skip

    def apply_transform(self, x: Array, transform_parameters: dict[str, Any]) -> Array:
        """The image ``x``, changed by parameters of the names that `get_random_transform` gives."""
        given = transform_parameters
        places = {name: given[name] for name in ("theta", "tx", "ty", "shear", "zx", "zy") if name in given}
        x = apply_affine_transform(
            x, **places, fill_mode=self.fill_mode, cval=self.cval, order=self.interpolation_order
        )
        if given.get("channel_shift_intensity") is not None:
            x = apply_channel_shift(x, given["channel_shift_intensity"])
        x = np.flip(x, 1) if given.get("flip_horizontal") else x
        x = np.flip(x, 0) if given.get("flip_vertical") else x
        brightness = given.get("brightness")
        return x if brightness is None else apply_brightness_shift(x, brightness)

    def random_transform(self, x: Array, seed: int | None = None) -> Array:
        """The image ``x``, changed at random."""
        return self.apply_transform(x, self.get_random_transform(x.shape, seed))

    def flow(
        self, x: Any, y: Any = None, batch_size: int = 32, shuffle: bool = True, sample_weight: Any = None,
        seed: int | None = None, save_to_dir: Any = None, save_prefix: str = "", save_format: str = "png",
        subset: str | None = None,
    ) -> ImageBatches:  # fmt: skip
        """Batches without an end; with ``subset`` "training" or "validation" of that part. Iterators of one
        ``seed`` change their images in the same way, as images and their masks need it.

        Raises `InvalidArgumentError` for images of a rank other than 4, and for labels or weights of another
        number.
        """
        arrays = [None if a is None else np.asarray(a) for a in (x, y, sample_weight)]
        if arrays[0] is None or arrays[0].ndim != 4:
            raise misuse(f"flow: expected images of rank 4; got the shape {np.shape(x)}")
        for name, array in (("y", arrays[1]), ("sample_weight", arrays[2])):
            if array is not None and len(array) != len(x):
                raise misuse(f"flow: expected {name} of {len(x)} images; got {len(array)}")
        rows = part_of(len(x), subset, self.validation_split)
        images, *others = [None if a is None else a[rows] for a in arrays]
        return ImageBatches(
            self, images, others, batch_size, shuffle, seed, Saved(save_to_dir, save_prefix, save_format)
        )

    def flow_from_directory(
        self, directory: Any, target_size: Any = (256, 256), color_mode: str = "rgb", classes: Any = None,
        class_mode: str | None = "categorical", batch_size: int = 32, shuffle: bool = True,
        seed: int | None = None, save_to_dir: Any = None, save_prefix: str = "", save_format: str = "png",
        follow_links: bool = False, subset: str | None = None, interpolation: str = "nearest",
    ) -> FileBatches:  # fmt: skip
        """Batches of the images in the folders of ``directory``, one for each of ``classes``, by default all.

        Labels are one-hot rows with ``class_mode`` "categorical", numbers with "binary" and "sparse", the
        images themselves with "input"; with None there are none. ``save_to_dir`` is a folder for the
        changed images. Raises `InvalidArgumentError` for other modes, `NotFoundError` without such a folder.
        """
        folder = os.fspath(directory)
        if not os.path.isdir(folder):
            raise misuse(f"flow_from_directory: expected a folder at {folder}; there is none", NotFoundError)
        classes = list(classes or sorted(each.name for each in os.scandir(folder) if each.is_dir()))
        names, labels = listed(folder, classes, subset, self.validation_split, follow_links)
        print(f"Found {len(names)} images belonging to {len(classes)} classes.")  # noqa: T201
        images = ImageFiles([os.path.join(folder, n) for n in names], target_size, color_mode, interpolation)
        _check_mode(class_mode, (*NUMBERED, "input"))
        save = Saved(save_to_dir, save_prefix, save_format)
        return FileBatches(
            self, images, names, Targets(class_mode, classes, labels), batch_size, shuffle, seed, save
        )

    def flow_from_dataframe(
        self, dataframe: Any, directory: Any = None, x_col: str = "filename", y_col: Any = "class",
        weight_col: str | None = None, target_size: Any = (256, 256), color_mode: str = "rgb",
        classes: Any = None, class_mode: str | None = "categorical", batch_size: int = 32,
        shuffle: bool = True, seed: int | None = None, save_to_dir: Any = None, save_prefix: str = "",
        save_format: str = "png", subset: str | None = None, interpolation: str = "nearest",
        validate_filenames: bool = True, **_: Any,
    ) -> FileBatches:  # fmt: skip
        """Batches of the images named in the column ``x_col`` of ``dataframe``, Pandas' or a dictionary of
        columns, with targets from ``y_col``.

        See `flow_from_directory` for ``class_mode``; of "categorical", an image may also have a list of
        classes. "raw" gives the values of the column or columns ``y_col``, "multi_output" a list of them.
        Rows of images that are not there, and of classes other than ``classes``, are left out. Raises
        `InvalidArgumentError` for other modes, and names or classes that are no strings.
        """
        mode = "raw" if class_mode == "other" else class_mode
        _check_mode(mode, (*NUMBERED, "input", "raw", "multi_output"))
        read = frame_rows(dataframe, directory, x_col, y_col, mode, classes, validate_filenames)
        rows = read.rows[part_of(len(read.rows), subset, self.validation_split)]
        more = f" belonging to {len(read.known)} classes" if mode in NUMBERED else ""
        checked = "validated" if validate_filenames else "non-validated"
        print(f"Found {len(rows)} {checked} image filenames{more}.")  # noqa: T201
        weights = None if weight_col is None else np.asarray(dataframe[weight_col])[rows]
        targets = Targets(mode, read.known, [read.labels[row] for row in rows], read.values(rows), weights)
        images = ImageFiles([read.paths[row] for row in rows], target_size, color_mode, interpolation)
        names = [read.names[row] for row in rows]
        save = Saved(save_to_dir, save_prefix, save_format)
        return FileBatches(self, images, names, targets, batch_size, shuffle, seed, save)


def _check_mode(mode: Any, known: Sequence[str]) -> None:
    if mode is not None and mode not in known:
        raise misuse(f"flow: expected class_mode {', '.join(known)} or None; got {mode!r}")


def _drawn_shift(random: Any, most: Any, size: int) -> float:
    """Pixels to move an image of ``size`` pixels by."""
    if not np.any(most):
        return 0
    if isinstance(most, int) or np.ndim(most):
        drawn = random.choice(most) * random.choice([-1, 1])
    else:
        drawn = random.uniform(-most, most)
    return float(drawn * size if np.max(most) < 1 else drawn)
