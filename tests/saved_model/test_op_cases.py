"""TensorFlow's graphs of one operation each give its values: ops as they are, older spellings, fused ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError, OpError, ResourceExhaustedError
from flowrt.protos import graph_pb2
from tests.saved_model.op_cases import CASES

FILE = Path(__file__).parent / "fixtures" / "ops.npz"
FIRST = {"FusedBatchNorm": 1, "FusedBatchNormV2": 1, "FusedBatchNormGrad": 3, "FusedBatchNormGradV2": 3}
"""The outputs to compare, where others are TensorFlow's own."""


@pytest.mark.parametrize(("number", "op"), [(i, op) for i, (op, _) in enumerate(CASES)])
def test_an_operation_has_tensorflows_values(number: int, op: str) -> None:
    key = f"{number} {op}"
    with np.load(FILE) as fixtures:
        message = graph_pb2.GraphDef.FromString(fixtures[key].tobytes())
        expected = [fixtures[name] for name in fixtures.files if name.startswith(f"{key}:")]
    with tf.Graph(), tf.Session() as session:
        (operation,) = tf.import_graph_def(message, return_elements=["op"], name="")
        count = FIRST.get(op, len(expected))
        found = session.run([t for t in operation.outputs if t.dtype != tf.variant][:count])
        for tensor, value, wanted in zip(operation.outputs, found, expected[:count], strict=False):
            if value.dtype == object:
                assert value.tolist() == wanted.tolist()
                continue
            assert value.dtype == wanted.dtype
            tf.TensorShape(tensor.shape).assert_is_compatible_with(wanted.shape)
            np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("op", "attr", "value", "error", "said"),
    [
        ("Mfcc", "filterbank_channel_count", 1 << 30, InvalidArgumentError, "at most 4,194,304 weights"),
        ("Mfcc", "dct_coefficient_count", 41, InvalidArgumentError, "as many channels as coefficients"),
        ("ExtractImagePatches", "ksizes", [1, 99, 99, 1], ResourceExhaustedError, "at most 8192 numbers"),
    ],
)
def test_what_is_made_for_an_operation_is_bounded(
    op: str, attr: str, value: Any, error: type[OpError], said: str
) -> None:
    (number, *_) = (i for i, (name, _) in enumerate(CASES) if name == op)
    with np.load(FILE) as fixtures:
        message = graph_pb2.GraphDef.FromString(fixtures[f"{number} {op}"].tobytes())
    (node,) = (each for each in message.node if each.name == "op")
    if isinstance(value, list):
        node.attr[attr].list.i[:] = value
    else:
        node.attr[attr].i = value
    with tf.Graph(), pytest.raises(error, match=f"{op} 'op'.*{said}"):
        tf.import_graph_def(message)
