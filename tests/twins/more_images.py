"""More functions of images; of random ones, what is the same for every draw."""

import numpy as np


def is_either(tf, found, *candidates):
    return tf.reduce_any([tf.reduce_all(tf.equal(found, candidate)) for candidate in candidates])


def spread(tf, values):
    return tf.reduce_max(values) - tf.reduce_min(values)


def calls(tf):
    rng = np.random.default_rng(16)
    image = tf.image
    floats = rng.uniform(size=(2, 7, 5, 3)).astype(np.float32)
    pixels = rng.integers(0, 256, (6, 5, 3)).astype(np.uint8)
    boxes = np.float32([[0, 0, 0.5, 0.5], [0.1, 0, 0.6, 0.5], [0.5, 0.5, 1, 1], [0, 0.1, 0.5, 0.6]])
    scores = np.float32([0.3, 0.9, 0.5, 0.7])
    return {
        "resize_area_value": (lambda t: image.resize_area(t, [3, 4]), floats),
        "resize_area_aligned_value": (lambda t: image.resize_area(t, [9, 3], align_corners=True), floats),
        "extract_patches": (
            lambda t: image.extract_image_patches(t, [1, 3, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"),
            floats,
        ),
        "suppressed_padded": (
            lambda b, s: image.non_max_suppression_padded(b, s, 5, 0.4, pad_to_max_output_size=True),
            boxes,
            scores,
        ),
        "suppressed_combined_value": (
            lambda b, s: tuple(image.combined_non_max_suppression(b, s, 2, 3, 0.4, 0.2)),
            boxes[None, :, None],
            np.stack([scores, scores[::-1]], 1)[None],
        ),
        "suppressed_per_class_value": (
            lambda b, s: tuple(image.combined_non_max_suppression(b, s, 2, 3, 0.4, 0.2, pad_per_class=True)),
            boxes[None, :, None],
            np.stack([scores, scores[::-1]], 1)[None],
        ),
        "brightness_shift": (lambda t: spread(tf, image.random_brightness(t, 0.4) - t) < 1e-5, floats),
        "contrast_mean_value": (lambda t: tf.reduce_mean(image.random_contrast(t, 0.2, 0.9), [1, 2]), floats),
        "hue_value_value": (lambda t: tf.reduce_max(image.random_hue(t, 0.3), -1), floats),
        "saturation_value_value": (lambda t: tf.reduce_max(image.random_saturation(t, 0.2, 0.9), -1), floats),
        "crop_sizes": (lambda t: tf.shape(tf.random_crop(t, [4, 3, 3])), pixels),
        "flipped": (lambda t: is_either(tf, image.random_flip_left_right(t), t, t[:, ::-1]), pixels),
        "flipped_down": (lambda t: is_either(tf, image.random_flip_up_down(t), t, t[::-1]), pixels),
        "distorted_box": (
            lambda t: [
                tf.shape(p)
                for p in image.sample_distorted_bounding_box(
                    t, tf.constant(boxes[None]), min_object_covered=0.1
                )
            ],
            np.int32([20, 30, 3]),
        ),
        "whole_box": (
            lambda t: image.sample_distorted_bounding_box(
                t,
                tf.constant([[[0.0, 0, 1, 1]]]),
                min_object_covered=1.0,
                aspect_ratio_range=[1.5, 1.5],
                area_range=[1.0, 1.0],
            ),
            np.int32([20, 30, 3]),
        ),
        "jpeg_shape": (lambda t: tf.shape(image.random_jpeg_quality(t, 70, 90)), np.repeat(pixels, 4, 0)),
        "decoded_part": (
            lambda t: tf.shape(image.decode_and_crop_jpeg(image.encode_jpeg(t), [2, 1, 3, 4])),
            pixels,
        ),
        "jpeg_quality": (lambda t: tf.shape(image.adjust_jpeg_quality(t, 60)), pixels),
    }
