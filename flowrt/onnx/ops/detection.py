"""Boxes of detectors."""

from __future__ import annotations

import numpy as np

from flowrt.graph.ops.nn.boxes import non_max_suppression_by_class
from flowrt.onnx.node import Node
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value


@handles("NonMaxSuppression")
def non_max_suppression(
    node: Node, boxes: Value, scores: Value, most: Value = None, overlap: Value = None, least: Value = None
) -> Value:
    """No boxes without a number of them, as the schema says."""

    def scalar(value: Value, default: float) -> Value:
        return np.float32(default) if value is None else tf.reshape(value, [])

    return non_max_suppression_by_class(
        boxes,
        scores,
        np.array(0) if most is None else tf.reshape(most, []),
        scalar(overlap, 0.0),
        scalar(least, -np.inf),
        center_point_box=bool(node.get("center_point_box", 0)),
    )
