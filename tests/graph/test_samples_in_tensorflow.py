"""Every op's samples in TensorFlow: the operation as a GraphDef, its outputs and its gradients.

Runs where FLOWRT_TENSORFLOW names an interpreter with TensorFlow; the two meet in files only. Ops with
effects have no samples: `tests.twins` has programs of theirs.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.cli.selftest.ops import TOLERANCES, Call, build_call
from flowrt.dtypes import as_dtype
from flowrt.errors import DTypeError, UnimplementedError
from flowrt.graph.op_def import Effect, OpDef, Sample, registered_ops

INTERPRETER = os.environ.get("FLOWRT_TENSORFLOW")
SCRIPT = Path(__file__).with_name("run_samples_in_tensorflow.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(INTERPRETER is None, reason="FLOWRT_TENSORFLOW names no interpreter"),
]

IN_FLOAT32 = {
    "FusedBatchNormV3", "FusedBatchNormGradV3", "LRN", "LRNGrad", "MaxPool3D", "MaxPool3DGrad",
    "MaxPool3DGradGrad", "AvgPool3D", "AvgPool3DGrad",
}  # fmt: skip
"""Ops that TensorFlow does not have in float64: these samples are given in float32. Those without elements
are left out: TensorFlow's pools of three dimensions abort the process.
"""

ABSENT = re.compile(
    "Op type not registered|No OpKernel was registered|not in list of allowed|not in the list of allowed"
    "|supports (the )?ND?HWC|missing attr 'layout'"
)
"""TensorFlow's errors for an op, a dtype or a layout that it does not have on the CPU."""

REFUSED = {
    "Betainc": "no broadcasting",
    "StringJoin": "no broadcasting",
    "AdjustHue": "images have three dimensions",
    "AdjustSaturation": "images have three dimensions",
    "CTCLoss": "an empty label is an error",
    "ConcatV2": "its gradient takes no axis of int64",
    "ConjugateTranspose": "its gradient takes no negative axis",
    "Transpose": "its gradient takes no negative axis",
    "Conv2D": "grouped convolutions have no gradient on the CPU",
    "Conv2DBackpropInput": "grouped convolutions have no gradient on the CPU",
    "Conv2DBackpropFilter": "grouped convolutions have no gradient on the CPU",
    "Conv3D": "no groups and no dilations on the CPU",
    "Conv3DBackpropInputV2": "no groups and no dilations on the CPU",
    "Conv3DBackpropFilterV2": "no groups and no dilations on the CPU",
    "DepthwiseConv2dNative": "strides are equal",
    "DepthwiseConv2dNativeBackpropInput": "strides are equal",
    "DepthwiseConv2dNativeBackpropFilter": "strides are equal",
    "DrawBoundingBoxesV2": "no colours are colours of no channels",
    "Einsum": "the function einsum writes the arrow",
    "GatherNd": "its gradient takes no empty input",
    "Where": "no scalars",
    "LinSpace": "num is positive",
    "MaxPool3DGradGrad": "its gradient is of float32, with channels last, and of an image at least",
    "MatrixBandPart": "the band is not wider than the matrix",
    "RFFT": "its gradient is of even lengths",
    "IRFFT": "its gradient is of even lengths",
    "RFFT2D": "its gradient is of even lengths",
    "IRFFT2D": "its gradient is of even lengths",
    "SoftmaxCrossEntropyWithLogits": "its gradient does not broadcast",
    "SparseCross": "strings are not crossed with numbers",
    "SparseToDense": "its gradient takes no vector of indices",
    "TopKV2": "its gradient takes no k of int64",
}
"""Ops of which TensorFlow runs some samples only, and why."""

DIFFERS = {
    "DepthwiseConv2dNative-5": "in its gradient, of an empty batch TensorFlow gives what was in memory",
    "DepthwiseConv2dNativeBackpropInput-5": "of an empty batch TensorFlow gives what was in memory",
    "DepthwiseConv2dNativeBackpropFilter-5": "of an empty batch TensorFlow gives what was in memory",
    "Conv3D-7": "TensorFlow adds in float16",
    "Conv3DBackpropInputV2-7": "TensorFlow adds in float16",
    "Conv3DBackpropFilterV2-7": "TensorFlow adds in float16",
    "Elu-6": "TensorFlow passes the gradient of NaN on",
    "EluGrad-6": "TensorFlow passes the gradient of NaN on",
    "Selu-6": "TensorFlow's selu of -1e-20 is 0, and its gradient is read from that",
    "MatrixDeterminant-3": "TensorFlow does not conjugate a complex determinant in the gradient",
    "MatrixSquareRoot-4": "TensorFlow does not conjugate a complex root in the gradient",
    "MatrixSquareRoot-5": "TensorFlow does not conjugate a complex root in the gradient",
    "TridiagonalSolve-2": "TensorFlow does not conjugate a complex matrix in the gradient",
}
"""Samples whose values differ, and why."""

FIRST_OUTPUT_ONLY = {"SoftmaxCrossEntropyWithLogits", "FusedBatchNormV3"}
"""Ops of which TensorFlow drops gradients of other outputs than the first."""

WITHOUT_GRADIENT = {
    "FusedBatchNormGradV3": "TensorFlow's is right for the mean and variance of the same images only",
    "Svd": "it depends on the signs of the vectors",
    "SelfAdjointEigV2": "it depends on the signs of the vectors",
}
"""Ops whose gradients are not compared."""

ENCODED = {"DecodeJpeg", "EncodeJpeg", "EncodePng", "ImageSummary"}
"""Ops with files of another encoder or decoder: see `tests.twins.encoded_images`."""


def test_outputs_and_gradients_are_tensorflows(tmp_path: Path) -> None:
    given, ours = {}, {}
    for key, op, sample in samples():
        with tf.Graph().as_default() as graph, tf.Session() as session:
            call = build_call(op, sample, "")
            message = written(graph, call)  # before the gradients are in the graph
            values, weights, slopes = results(session, call)
            given[key] = (message, {x.op.name: value for x, value in call.feeds.items()}, weights)
            ours[key] = (values, slopes)
    theirs = in_tensorflow(given, tmp_path)
    wrong = [f"{key}: {text}" for key in given for text in differences(key, ours[key], theirs[key])]
    assert not wrong, "\n".join(wrong)


def samples() -> Iterator[tuple[str, OpDef, Sample]]:
    for op in registered_ops().values():
        if op.effect is Effect.PURE and not op.name.startswith("_") and op.name not in ENCODED:
            for number, sample in enumerate(op.samples(np.random.default_rng(0))):
                if op.name not in IN_FLOAT32:
                    yield f"{op.name}-{number}", op, sample
                elif all(np.size(value) for value in sample.inputs):
                    yield f"{op.name}-{number}", op, in_float32(sample)


def in_float32(sample: Sample) -> Sample:
    narrow = [v.astype(np.float32) if getattr(v, "dtype", None) == np.float64 else v for v in sample.inputs]
    return sample._replace(inputs=tuple(narrow))


def written(graph: tf.Graph, call: Call) -> bytes:
    """The GraphDef, with the operation under the name "op"."""
    message = graph.as_graph_def()
    for node in message.node:
        if node.name == call.operation.name:
            node.name = "op"
    return bytes(message.SerializeToString())


def results(session: tf.Session, call: Call) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """The outputs, random gradients of those that can have one, and the gradients of the placeholders."""
    outputs = [t for t in call.operation.outputs if t.dtype.name not in ("resource", "variant")]
    values = session.run(outputs, call.feeds)
    weights, name = [], call.operation.type
    for position, (tensor, value) in enumerate(zip(outputs, values, strict=True)):
        is_left_out = name in WITHOUT_GRADIENT or (name in FIRST_OUTPUT_ONLY and position)
        weights.append(None if is_left_out or not inexact(tensor) else random_like(tensor, np.shape(value)))
    pairs = [(y, tf.constant(w)) for y, w in zip(outputs, weights, strict=True) if w is not None]
    xs = [x for x in call.feeds if inexact(x)]
    if not pairs or not xs:
        return values, [None] * len(outputs), {}
    try:
        slopes = tf.gradients([y for y, _ in pairs], xs, [w for _, w in pairs])
    except (UnimplementedError, DTypeError):  # a refusal is no wrong number
        return values, [None] * len(outputs), {}
    there = {x.op.name: tf.convert_to_tensor(d) for x, d in zip(xs, slopes, strict=True) if d is not None}
    return values, weights, session.run(there, call.feeds)


def inexact(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def random_like(tensor: tf.Tensor, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(1)
    made = rng.standard_normal(shape)
    if tensor.dtype.is_complex:
        made = made + 1j * rng.standard_normal(shape)
    return np.asarray(made).astype(tensor.dtype.np)


def in_tensorflow(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    calls, found = folder / "calls", folder / "found"
    calls.write_bytes(pickle.dumps(given))
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        [str(INTERPRETER), str(SCRIPT), str(calls), str(found)], check=True, timeout=1800, env=quiet
    )
    return dict(pickle.loads(found.read_bytes()))  # noqa: S301 (what the script wrote)


def differences(key: str, ours: Any, theirs: Any) -> Iterator[str]:
    op = key.rpartition("-")[0]
    if isinstance(theirs, str):
        if op not in REFUSED and not ABSENT.search(theirs):
            yield theirs
        return
    if key in DIFFERS:
        return
    (values, slopes), (expected, expected_slopes) = ours, theirs
    by_phase = registered_ops()[op].up_to_phase
    for position, (value, wanted) in enumerate(zip(values, expected, strict=True)):
        if {np.size(value), np.size(wanted)} != {0, 1}:  # 0 where an output is left out, by either
            found, there = (np.abs(v) if by_phase else as_array(v) for v in (value, wanted))
            yield from (f"output {position}: {text}" for text in difference(found, there))
    for name, wanted in expected_slopes.items():
        if name in slopes:
            yield from (f"gradient of {name}: {text}" for text in difference(slopes[name], wanted))
        elif np.any(wanted):
            yield f"gradient of {name}: none, in place of {wanted!r:.200}"


def as_array(value: Any) -> Any:
    return np.asarray(value, object if isinstance(value, bytes) else None)


def difference(found: Any, expected: Any) -> Iterator[str]:
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        yield f"{found.dtype}{list(found.shape)} in place of {expected.dtype}{list(expected.shape)}"
    elif not same(found, expected):
        yield f"{found!r:.200} in place of {expected!r:.200}"


def same(found: Any, expected: Any) -> bool:
    """Attributes are float32 in a GraphDef, so float64 is compared as that."""
    name = as_dtype(found.dtype).name if found.dtype != object else "string"
    if name not in TOLERANCES:
        return found.tolist() == expected.tolist()
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    tolerance = max(TOLERANCES[name], 3e-6)
    return np.allclose(found.astype(wide), expected.astype(wide), tolerance, tolerance, equal_nan=True)
