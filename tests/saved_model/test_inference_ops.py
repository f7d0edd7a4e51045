"""The share of the ops of inference graphs that can be imported. inference_ops.txt has those that two public
converters take, with the converter: ``j`` for TensorFlow.js's (239), ``o`` for that to ONNX (251).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrt.graph.ops.surface import all as all_ops  # noqa: F401  (defines every op)
from flowrt.tf1.graph_import.read_graph_def import find_op

LINES = (Path(__file__).parent / "inference_ops.txt").read_text().splitlines()
MISSING = """
    CudnnRNN DenseToDenseSetOperation Dilation2D ImageProjectiveTransformV3
    RaggedGather RaggedRange RaggedTensorFromVariant RaggedTensorToSparse RaggedTensorToTensor
    RaggedTensorToVariant
"""


@pytest.mark.parametrize(("converter", "share"), [("j", 0.97), ("o", 0.95)])
def test_most_ops_of_inference_graphs_are_taken(converter: str, share: float) -> None:
    names = [name for name, _, taken_by in (line.partition(" ") for line in LINES) if converter in taken_by]
    missing = [name for name in names if find_op(name) is None]
    assert set(missing) <= set(MISSING.split())
    assert len(missing) <= (1 - share) * len(names)


def test_the_list_of_what_is_missing_is_up_to_date() -> None:
    assert [name for name in MISSING.split() if find_op(name) is not None] == []
