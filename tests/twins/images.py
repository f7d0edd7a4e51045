"""Functions of images, and gradients of those that have one."""

import numpy as np


def resized(tf, floats, single):
    image, fetches = tf.image, {}
    for method in ("BILINEAR", "NEAREST_NEIGHBOR", "BICUBIC", "AREA"):
        for aligned in (False, True):
            for size in ((4, 9), (14, 3), (1, 1), (7, 5)):
                key = f"{method}_{aligned}_{size[0]}"
                number = getattr(image.ResizeMethod, method)
                fetches[key] = image.resize_images(floats, size, number, align_corners=aligned)
                fetches[f"{key}_bytes"] = image.resize_images(single, size, number, align_corners=aligned)
    for name in ("resize_bilinear", "resize_nearest_neighbor", "resize_bicubic"):
        fetches[f"half_{name}"] = getattr(image, name)(floats, [9, 4], half_pixel_centers=True)
    return fetches


def results(tf):
    rng = np.random.default_rng(2)
    image = tf.image
    pixels = rng.integers(0, 256, (2, 7, 5, 3)).astype(np.uint8)
    floats = rng.uniform(0, 1, (2, 7, 5, 3)).astype(np.float32)
    pixels, floats = tf.constant(pixels), tf.constant(floats)
    single = pixels[0]
    fetches = {}
    fetches |= resized(tf, floats, single)
    fetches["ratio"] = image.resize_images(floats, [3, 9], preserve_aspect_ratio=True)
    fetches["with_pad"] = image.resize_image_with_pad(floats, 10, 12)
    for height, width in ((9, 3), (4, 8), (10, 10), (3, 2)):
        fetches[f"crop_or_pad{height}"] = image.resize_image_with_crop_or_pad(pixels, height, width)
    unknown = tf.placeholder_with_default(pixels, [None, None, None, 3])
    fetches["crop_or_pad_unknown"] = image.resize_image_with_crop_or_pad(unknown, 9, 3)
    fetches["crop_unknown"] = image.crop_to_bounding_box(unknown, 1, 2, 3, 2)
    fetches["central_unknown"] = image.central_crop(unknown, 0.5)
    fetches["crop"] = image.crop_to_bounding_box(single, 2, 1, 3, 3)
    fetches["pad"] = image.pad_to_bounding_box(single, 2, 1, 10, 8)
    for fraction in (0.3, 0.5, 0.9, 1.0):
        fetches[f"central{fraction}"] = image.central_crop(single, fraction)
    for name in ("flip_left_right", "flip_up_down", "transpose_image"):
        fetches[name], fetches[f"{name}_one"] = getattr(image, name)(pixels), getattr(image, name)(single)
    for k in range(5):
        fetches[f"rot{k}"] = image.rot90(pixels, k)
    for name, value in (("bytes", pixels), ("floats", floats)):
        fetches[f"brightness_{name}"] = image.adjust_brightness(value, 0.2)
        fetches[f"contrast_{name}"] = image.adjust_contrast(value, 1.7)
        fetches[f"gamma_{name}"] = image.adjust_gamma(value, 0.4, 0.9)
        fetches[f"hue_{name}"] = image.adjust_hue(value, 0.3)
        fetches[f"saturation_{name}"] = image.adjust_saturation(value, 1.4)
        fetches[f"standard_{name}"] = image.per_image_standardization(value)
        fetches[f"grey_{name}"] = image.rgb_to_grayscale(value)
        fetches[f"total_{name}"] = image.total_variation(floats * 3)
        fetches[f"psnr_{name}"] = image.psnr(value, value[:, ::-1], 255 if name == "bytes" else 1.0)
        for dtype in (tf.uint8, tf.int16, tf.float32, tf.float16, tf.int32):
            fetches[f"{dtype.name}_{name}"] = image.convert_image_dtype(value, dtype)
            fetches[f"{dtype.name}_{name}_s"] = image.convert_image_dtype(value, dtype, saturate=True)
    fetches["colored"] = image.grayscale_to_rgb(pixels[..., :1])
    spaces = ("rgb_to_hsv", "hsv_to_rgb", "rgb_to_yiq", "yiq_to_rgb", "rgb_to_yuv", "yuv_to_rgb")
    for name in (*spaces, "sobel_edges"):
        fetches[name] = getattr(image, name)(floats)
    fetches["down"], fetches["right"] = image.image_gradients(floats)
    large = rng.uniform(0, 1, (2, 190, 181, 2)).astype(np.float32)
    blurred = large * np.float32(0.8) + np.float32(0.1)
    fetches["ssim"] = image.ssim(large, blurred, 1.0)
    fetches["ssim_bytes"] = image.ssim((large * 255).astype(np.uint8), (blurred * 255).astype(np.uint8), 255)
    fetches["ssim_multiscale"] = image.ssim_multiscale(large, blurred, 1.0)
    boxes = np.float32([[0, 0, 0.5, 0.5], [0.1, 0, 0.6, 0.5], [0.5, 0.5, 1, 1], [0, 0.1, 0.5, 0.6]])
    scores = np.float32([0.3, 0.9, 0.5, 0.7])
    fetches["kept"] = image.non_max_suppression(boxes, scores, 3, 0.4)
    fetches["kept_above"] = image.non_max_suppression(boxes, scores, 3, 0.4, 0.6)
    fetches["kept_scores"], fetches["scores"] = image.non_max_suppression_with_scores(
        boxes, scores, 4, 0.9, 0.2, soft_nms_sigma=0.5
    )
    fetches["drawn"] = image.draw_bounding_boxes(floats, boxes.reshape(2, 2, 4) * 1.1 - 0.05)
    green = np.float32([[0, 1, 0]])
    fetches["drawn_own"] = image.draw_bounding_boxes(floats, boxes.reshape(2, 2, 4), colors=green)
    crops = (boxes * 1.3 - 0.1, [0, 1, 1, 0], [3, 4])
    fetches["crops"] = image.crop_and_resize(floats, *crops)
    fetches["crops_nearest"] = image.crop_and_resize(floats, *crops, method="nearest", extrapolation_value=7)
    x, edges = floats, tf.constant(crops[0])
    losses = {
        "bilinear": image.resize_bilinear(x, [4, 9]), "bicubic": image.resize_bicubic(x, [4, 9]),
        "nearest": image.resize_nearest_neighbor(x, [4, 9]),
        "variation": image.total_variation(x), "standard": image.per_image_standardization(x) ** 2,
        "crop": image.crop_and_resize(x, edges, *crops[1:]),
    }  # fmt: skip
    for name, loss in losses.items():
        weights = np.random.default_rng(3).standard_normal(loss.shape.as_list()).astype(np.float32)
        (fetches[f"gradient_{name}"],) = tf.gradients(loss * weights, [x])
    weights = np.random.default_rng(4).standard_normal((4, 3, 4, 3)).astype(np.float32)
    (fetches["gradient_boxes"],) = tf.gradients(losses["crop"] * weights, [edges])
    with tf.Session() as session:
        return session.run(fetches)
