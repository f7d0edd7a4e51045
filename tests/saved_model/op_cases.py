"""Calls of TensorFlow's ops: `op, inputs and attributes by their names there`. Arrays are constants. Imports
neither flowrt nor TensorFlow: the script that writes the fixtures builds the graphs, the test imports them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_RNG = np.random.default_rng(7)


def f(*shape: int) -> Any:
    """Floats between -2 and 2, in quarters."""
    return _RNG.integers(-8, 9, shape).astype(np.float32) / 4


def i(*values: Any) -> Any:
    return np.array(values, np.int32)


def t(*values: str) -> Any:
    return np.array([value.encode() for value in values], object)


def q(kind: str, *values: int) -> Any:
    """Quantized integers, as NumPy has TensorFlow's."""
    stored = {"quint8": np.uint8, "qint8": np.int8, "quint16": np.uint16}[kind]
    return np.array(values, stored).view([(kind, stored)])


def _example(**features: list[Any]) -> bytes:
    """An encoded Example of floats and integers, small ones, each in its field."""
    made = b""
    for name, values in features.items():
        if isinstance(values[0], float):
            content = np.array(values, "<f4").tobytes()
            values_field = b"\x12" + _sized(b"\x0a" + _sized(content))
        else:
            values_field = b"\x1a" + _sized(b"\x0a" + _sized(bytes(values)))
        made += b"\x0a" + _sized(b"\x0a" + _sized(name.encode()) + b"\x12" + _sized(values_field))
    return b"\x0a" + _sized(made)


def _sized(content: bytes) -> bytes:
    return bytes([len(content)]) + content


_X, _SCALE, _VARIANCE = f(1, 4, 4, 2), f(2), np.abs(f(2)) + 1
_STRIDES: dict[str, Any] = {"strides": [1, 1, 1, 1], "padding": "SAME"}
_NORM = {"x": _X, "scale": _SCALE, "offset": f(2), "mean": f(2), "variance": _VARIANCE, "epsilon": 0.01}
_INDICES, _SHAPE = np.array([[0, 0], [0, 2], [2, 1]], np.int64), np.array([3, 4], np.int64)

CASES: list[tuple[str, dict[str, Any]]] = [
    # older and newer spellings
    ("FusedBatchNorm", {**_NORM, "is_training": False}),
    ("FusedBatchNormV2", {**_NORM, "is_training": False}),
    ("Concat", {"concat_dim": np.int32(1), "values": [f(2, 1), f(2, 3)]}),
    ("Gather", {"params": f(4, 2), "indices": i(3, 0, 3)}),
    ("ClipByValue", {"t": f(3, 2), "clip_value_min": np.float32(-0.5), "clip_value_max": np.float32(1)}),
    ("BiasAddV1", {"value": f(2, 3), "bias": f(3)}),
    ("Mod", {"x": i(7, -7, 7, -7), "y": i(3, 3, -3, -3)}),
    ("Snapshot", {"input": f(2)}),
    ("Reverse", {"tensor": f(2, 3), "dims": np.array([False, True])}),
    ("ParallelDynamicStitch", {"indices": [i(2, 0), i(1)], "data": [f(2, 2), f(1, 2)]}),
    ("BatchMatMulV3", {"x": i([1, 2], [3, 4]), "y": i([5, 6], [7, 8]), "Tout": "int32"}),
    ("MaxPoolV2", {"input": _X, "ksize": i(1, 2, 2, 1), "strides": i(1, 2, 2, 1), "padding": "VALID"}),
    ("UniqueV2", {"x": i(3, 1, 3, 2), "axis": i()}),
    (
        "MatrixDiagV3",
        {
            "diagonal": f(2, 3), "k": np.int32(0), "num_rows": np.int32(-1), "num_cols": np.int32(-1),
            "padding_value": np.float32(0),
        },
    ),
    ("MatrixDiagPartV3", {"input": f(2, 3, 3), "k": i(0, 0), "padding_value": np.float32(0)}),
    ("MatrixSetDiagV3", {"input": f(3, 3), "diagonal": f(3), "k": np.int32(0)}),
    # fused by converters
    (
        "_FusedConv2D",
        {
            "input": _X, "filter": f(2, 2, 2, 3), "args": [f(3)], "host_args": [], "num_args": 1,
            "fused_ops": ["BiasAdd", "Relu"], **_STRIDES,
        },
    ),
    (
        "_FusedConv2D",
        {
            "input": _X, "filter": f(1, 1, 2, 2), "args": [_SCALE, f(2), f(2), _VARIANCE], "host_args": [],
            "num_args": 4, "fused_ops": ["FusedBatchNorm", "LeakyRelu"], "epsilon": 0.01,
            "leakyrelu_alpha": 0.25, **_STRIDES,
        },
    ),
    (
        "_FusedDepthwiseConv2dNative",
        {
            "input": _X, "filter": f(2, 2, 2, 1), "args": [f(2)],
            "fused_ops": ["BiasAdd", "Relu6"], **_STRIDES,
        },
    ),
    (
        "_FusedMatMul",
        {"a": f(2, 3), "b": f(4, 3), "args": [f(4)], "fused_ops": ["BiasAdd", "Elu"], "transpose_b": True},
    ),
    # images
    *(
        (op, {"images": _X, "size": i(7, 3), **flags})
        for op in ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic")
        for flags in ({}, {"align_corners": True}, {"half_pixel_centers": True})
    ),
    ("ResizeBilinear", {"images": (f(1, 3, 3, 1) * 8).astype(np.int32), "size": i(2, 5)}),
    *(
        (
            "CropAndResize",
            {
                "image": f(2, 5, 4, 1),
                "boxes": np.array([[0, 0, 1, 1], [0.25, -0.5, 0.75, 1.25], [1, 0.5, 0, 0.5]], np.float32),
                "box_ind": i(0, 1, 1), "crop_size": i(3, 2), "method": method, "extrapolation_value": -1.0,
            },
        )
        for method in ("bilinear", "nearest")
    ),
    ("SpaceToBatchND", {"input": _X, "block_shape": i(2, 3), "paddings": i([1, 1], [0, 2])}),
    ("BatchToSpaceND", {"input": f(6, 2, 2, 1), "block_shape": i(2, 3), "crops": i([1, 0], [0, 2])}),
    *(
        (
            "MaxPoolWithArgmax",
            {
                "input": f(2, 5, 4, 2) - 3, "ksize": [1, 3, 2, 1], "strides": [1, 2, 2, 1],
                "padding": padding, "include_batch_in_index": with_batch,
            },
        )
        for padding, with_batch in (("SAME", False), ("VALID", True))
    ),
    # quantized and transformed
    ("FakeQuantWithMinMaxArgs", {"inputs": f(3, 4) * 3, "min": -3.0, "max": 4.0, "num_bits": 4}),
    *(
        (
            "FakeQuantWithMinMaxVars",
            {"inputs": f(3, 4) * 3, "min": np.float32(a), "max": np.float32(b), **options},
        )
        for a, b, options in ((-1.1, 3.3, {}), (0.5, 6, {"narrow_range": True}), (0, 0, {}))
    ),
    (
        "FakeQuantWithMinMaxVarsPerChannel",
        {"inputs": f(3, 2) * 3, "min": -np.abs(f(2)), "max": np.abs(f(2)) + 1},
    ),
    (
        "FakeQuantWithMinMaxVarsGradient",
        {"gradients": f(3, 4), "inputs": f(3, 4) * 3, "min": np.float32(-1), "max": np.float32(2)},
    ),
    ("FFT", {"input": (f(2, 6) + 1j * f(2, 6)).astype(np.complex64)}),
    ("IFFT2D", {"input": (f(2, 3, 4) + 1j * f(2, 3, 4)).astype(np.complex64)}),
    ("RFFT", {"input": f(2, 9), "fft_length": i(8)}),
    ("RFFT2D", {"input": f(4, 6), "fft_length": i(4, 5)}),
    ("IRFFT", {"input": (f(2, 5) + 1j * f(2, 5)).astype(np.complex64), "fft_length": i(8)}),
    # sparse tensors and segments
    (
        "SparseReshape",
        {"input_indices": _INDICES, "input_shape": np.array([3, 4]), "new_shape": np.array([2, -1])},
    ),
    (
        "SparseFillEmptyRows",
        {
            "indices": _INDICES, "values": f(3), "dense_shape": np.array([4, 3]),
            "default_value": np.float32(9),
        },
    ),
    *(
        (f"SparseSegment{kind}", {"data": f(4, 2), "indices": i(0, 3, 3, 1), "segment_ids": i(0, 0, 2, 2)})
        for kind in ("Sum", "Mean", "SqrtN")
    ),
    *(
        (
            f"SparseSegment{kind}WithNumSegments",
            {
                "data": f(4, 2), "indices": i(0, 3, 3, 1), "segment_ids": i(0, 0, 2, 2),
                "num_segments": np.int32(5),
            },
        )
        for kind in ("Sum", "Mean", "SqrtN")
    ),
    ("DenseBincount", {"input": i(1, 4, 1, 9), "size": np.int32(5), "weights": f(4)}),
    *(
        (
            "DenseBincount",
            {"input": i([1, 4, 1], [0, 0, 9]), "size": np.int32(5), "weights": f(0), "binary_output": binary},
        )
        for binary in (False, True)
    ),
    # strings
    ("StringSplit", {"input": t("a b,c", "", " d ,e"), "delimiter": t(" ,")[0]}),
    ("StringSplit", {"input": t("abc", " "), "delimiter": t("")[0], "skip_empty": False}),
    ("StringSplit", {"input": t("a b,c", "", " d ,e"), "delimiter": t(" ,")[0], "skip_empty": False}),
    ("StringSplitV2", {"input": t("a  b c ", ""), "sep": t("")[0]}),
    ("StringSplitV2", {"input": t("a<>b<>c", "<>"), "sep": t("<>")[0], "maxsplit": 1}),
    *(
        (
            "StringNGrams",
            {
                "data": t("a", "b", "c", "d", "e"), "data_splits": np.array([0, 3, 3, 4, 5], np.int64),
                "separator": "-", "ngram_widths": widths, "left_pad": "<", "right_pad": ">",
                "pad_width": pad, "preserve_short_sequences": keeps,
            },
        )
        for widths, pad, keeps in (
            ([2], -1, False), ([1, 3], -1, False), ([3, 2], 1, False), ([3], 0, True), ([5], 1, True),
        )
    ),
    (
        "StringToHashBucketFast",
        {
            "input": t(
                *(("qwertyuiop-" * 30)[:n] for n in (0, 1, 3, 4, 7, 8, 16, 17, 32, 33, 64, 65, 128, 129, 300))
            ),
            "num_buckets": 2**62,
        },
    ),
    ("StaticRegexFullMatch", {"input": t("s3://a", "b"), "pattern": "^s3://.*"}),
    # colours
    ("AdjustContrastv2", {"images": f(1, 2, 3, 3), "contrast_factor": np.float32(1.5)}),
    ("AdjustHue", {"images": np.abs(f(2, 2, 3)) / 2, "delta": np.float32(0.3)}),
    ("AdjustSaturation", {"images": np.abs(f(2, 2, 3)) / 2, "scale": np.float32(1.5)}),
    ("RGBToHSV", {"images": np.abs(f(2, 4, 3)) / 2}),
    ("HSVToRGB", {"images": np.abs(f(2, 4, 3)) / 2}),
    (
        "CombinedNonMaxSuppression",
        {
            "boxes": np.sort(np.abs(f(2, 6, 1, 2, 2)), axis=3).reshape(2, 6, 1, 4) / 2,
            "scores": np.arange(24, dtype=np.float32).reshape(2, 6, 2) / 24,
            "max_output_size_per_class": np.int32(3), "max_total_size": np.int32(4),
            "iou_threshold": np.float32(0.5), "score_threshold": np.float32(0.1),
        },
    ),
    # said by functions of flowrt
    *(
        (
            "SparseTensorDenseMatMul",
            {"a_indices": _INDICES, "a_values": f(3), "a_shape": _SHAPE, "b": b, **flags},
        )
        for b, flags in (
            (f(4, 2), {}), (f(3, 2), {"adjoint_a": True}), (f(2, 4), {"adjoint_b": True}),
        )
    ),
    ("SparseReorder", {"input_indices": _INDICES[::-1], "input_values": f(3), "input_shape": _SHAPE}),
    ("SparseSoftmax", {"sp_indices": _INDICES, "sp_values": f(3), "sp_shape": _SHAPE}),
    *(
        (
            "SparseReduceSum",
            {
                "input_indices": _INDICES, "input_values": f(3), "input_shape": _SHAPE,
                "reduction_axes": axes, "keep_dims": keeps,
            },
        )
        for axes, keeps in ((i(1), False), (i(0), True), (i(0, 1), False))
    ),
    *(
        (
            f"SparseDenseCwise{op}",
            {"sp_indices": _INDICES, "sp_values": f(3), "sp_shape": _SHAPE, "dense": dense},
        )
        for op, dense in (("Add", f(4)), ("Mul", f(3, 4)), ("Mul", f(3, 1)), ("Div", f(3, 4) + 9))
    ),
    (
        "SparseTensorDenseAdd",
        {"a_indices": _INDICES, "a_values": f(3), "a_shape": _SHAPE, "b": f(3, 4)},
    ),
    (
        "SparseAdd",
        {
            "a_indices": _INDICES, "a_values": f(3), "a_shape": _SHAPE,
            "b_indices": np.array([[0, 2], [1, 1]]), "b_values": f(2), "b_shape": _SHAPE,
            "thresh": np.float32(0),
        },
    ),
    *(
        (
            "SparseConcat",
            {
                "indices": [_INDICES, _INDICES], "values": [f(3), f(3)], "shapes": [_SHAPE, _SHAPE],
                "concat_dim": axis,
            },
        )
        for axis in (0, -1)
    ),
    (
        "SparseSlice",
        {
            "indices": _INDICES, "values": f(3), "shape": _SHAPE,
            "start": np.array([0, 1]), "size": np.array([3, 9]),
        },
    ),
    (
        "SparseFillEmptyRowsGrad",
        {"reverse_index_map": np.array([2, 0, 3]), "grad_values": f(5)},
    ),
    *(
        (
            f"SparseSegment{kind}Grad",
            {
                "grad": f(3, 2), "indices": i(0, 3, 3, 1), "segment_ids": i(0, 0, 2, 2),
                "output_dim0": np.int32(5),
            },
        )
        for kind in ("Sum", "Mean", "SqrtN")
    ),
    *(
        (
            "LSTMBlockCell",
            {
                "x": f(2, 3), "cs_prev": f(2, 2) * 3, "h_prev": f(2, 2), "w": f(5, 8), "b": f(8),
                "wci": f(2), "wcf": f(2), "wco": f(2), "use_peephole": peephole, **options,
            },
        )
        for peephole, options in ((False, {}), (True, {"cell_clip": 1.0, "forget_bias": 0.5}))
    ),
    *(
        (
            op,
            {
                "seq_len_max": np.int64(3), "x": f(4, 2, 3), "cs_prev": f(2, 2), "h_prev": f(2, 2),
                "w": f(5, 8), "b": f(8), "wci": f(2), "wcf": f(2), "wco": f(2), "use_peephole": peephole,
            },
        )
        for op in ("BlockLSTM", "BlockLSTMV2") for peephole in (False, True)
    ),
    (
        "GRUBlockCell",
        {"x": f(2, 3), "h_prev": f(2, 2), "w_ru": f(5, 4), "w_c": f(5, 2), "b_ru": f(4), "b_c": f(2)},
    ),
    *(
        (
            "AudioSpectrogram",
            {"input": f(100, 2), "window_size": 30, "stride": 13, "magnitude_squared": squared},
        )
        for squared in (False, True)
    ),
    ("Mfcc", {"spectrogram": f(2, 3, 257) ** 2, "sample_rate": np.int32(16000)}),
    (
        "Mfcc",
        {
            "spectrogram": f(1, 2, 65) ** 2, "sample_rate": np.int32(8000), "filterbank_channel_count": 12,
            "lower_frequency_limit": 150.0, "upper_frequency_limit": 3900.0, "dct_coefficient_count": 5,
        },
    ),
    *(
        (
            "ExtractImagePatches",
            {
                "images": f(2, 5, 6, 2), "ksizes": [1, 2, 3, 1], "strides": [1, 2, 1, 1],
                "rates": [1, 1, 2, 1], "padding": padding,
            },
        )
        for padding in ("SAME", "VALID")
    ),
    *(
        (op, {"grads": f(1, 5, 3, 2), "original_image": f(1, 3, 4, 2), **flags})
        for op in ("ResizeBilinearGrad", "ResizeBicubicGrad")
        for flags in ({}, {"align_corners": True}, {"half_pixel_centers": True})
    ),
    *(
        ("ResizeNearestNeighborGrad", {"grads": f(1, 5, 3, 2), "size": i(3, 4), **flags})
        for flags in ({}, {"align_corners": True})
    ),
    *(
        (
            "FusedPadConv2D",
            {
                "input": f(1, 4, 4, 2), "paddings": i([0, 0], [1, 1], [2, 2], [0, 0]), "mode": mode,
                "filter": f(2, 2, 2, 3), "strides": [1, 1, 1, 1], "padding": "VALID",
            },
        )
        for mode in ("REFLECT", "SYMMETRIC")
    ),
    (
        "FusedResizeAndPadConv2D",
        {
            "input": f(1, 4, 4, 2), "size": i(6, 5), "paddings": i([0, 0], [1, 1], [2, 2], [0, 0]),
            "mode": "REFLECT", "filter": f(2, 2, 2, 3), "strides": [1, 1, 1, 1], "padding": "VALID",
        },
    ),
    ("Bucketize", {"input": f(2, 5), "boundaries": [-1.0, 0.0, 0.5, 0.5]}),
    ("Bucketize", {"input": i(-3, 0, 7, 100), "boundaries": [0.0, 6.5, 7.0]}),
    ("UnravelIndex", {"indices": i(5, 0, 11), "dims": i(3, 4)}),
    # arguments that became attributes, and back
    (
        "NonMaxSuppression",
        {
            "boxes": np.sort(np.abs(f(6, 2, 2)), axis=1).reshape(6, 4),
            "scores": np.arange(6, dtype=np.float32) % 4, "max_output_size": np.int32(4),
            "iou_threshold": 0.3,
        },
    ),
    ("InTopK", {"predictions": f(4, 3), "targets": i(0, 1, 2, 0), "k": 1}),
    ("DrawBoundingBoxes", {"images": f(1, 6, 5, 3), "boxes": np.array([[[0.1, 0.2, 0.9, 0.8]]], np.float32)}),
    ("SpaceToBatch", {"input": f(1, 4, 3, 2), "paddings": i([0, 0], [0, 1]), "block_size": 2}),
    ("BatchToSpace", {"input": f(4, 2, 2, 1), "crops": i([1, 0], [0, 1]), "block_size": 2}),
    ("AccumulateNV2", {"inputs": [f(2), f(2), f(2)], "shape": [2]}),
    ("GuaranteeConst", {"input": f(2)}),
    (
        "RegexReplace",
        {"input": t("a--b", "c-d-"), "pattern": t("-+")[0], "rewrite": t(" ")[0], "replace_global": False},
    ),
    ("RegexFullMatch", {"input": t("ab", "b"), "pattern": t("a.*")[0]}),
    *(
        (
            op,
            {
                "y_backprop": f(1, 3, 3, 2), "x": f(1, 3, 3, 2), "scale": f(2), "reserve_space_1": f(2),
                "reserve_space_2": _VARIANCE, "epsilon": 0.01, "is_training": training,
            },
        )
        for op in ("FusedBatchNormGrad", "FusedBatchNormGradV2") for training in (True, False)
    ),
    *(
        (
            "Dequantize",
            {
                "input": q(kind, low, 0, 1, 100, high), "min_range": np.float32(-1.3),
                "max_range": np.float32(2.7), "mode": mode,
            },
        )
        for kind, low, high in (("quint8", 0, 255), ("qint8", -128, 127), ("quint16", 0, 65535))
        for mode in ("MIN_COMBINED", "MIN_FIRST", "SCALED")
    ),
    (
        "Dequantize",
        {
            "input": q("qint8", *range(-128, 112, 20)).reshape(2, 3, 2), "mode": "SCALED", "axis": 1,
            "min_range": np.array([-1, -2, 0], np.float32), "max_range": np.array([1, 1, 3], np.float32),
            "narrow_range": True,
        },
    ),
    (
        "ParseExampleV2",
        {
            "serialized": np.array([_example(a=[1.0, 2.0], b=[7]), _example(a=[3.0, 4.0])], object),
            "names": t(), "sparse_keys": t("b"), "dense_keys": t("a"), "ragged_keys": t(),
            "dense_defaults": [np.zeros(0, np.float32)], "num_sparse": 1, "sparse_types": ["int64"],
            "ragged_value_types": [], "ragged_split_types": [], "dense_shapes": [[2]],
        },
    ),
]  # fmt: skip
