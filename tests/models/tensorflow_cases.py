"""Cases of graphs of TensorFlow.js for TensorFlow: the graph, its inputs, and what flowrt gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flowrt.saved_model.tfjs import read_graph_model

ROOT = Path(__file__).parents[2]

GRAPHS = (
    "antispoof", "blazeface", "centernet", "emotion", "facemesh", "faceres", "handlandmark-lite", "handtrack",
    "iris", "liveness", "movenet-lightning",
)  # fmt: skip
"""The graphs in @vladmandic/human."""


def pictures(inputs: Any) -> dict[str, Any]:
    """Noise for the inputs of a model."""
    rng = np.random.default_rng(0)
    found = {}
    for name, tensor in inputs.items():
        shape = [1 if size is None else size for size in tensor.shape.as_list()]
        values = rng.uniform(0, 1, shape)
        dtype = tensor.dtype.as_numpy_dtype
        found[name] = (values if dtype == np.float32 else values * 255).astype(dtype)
    return found


def write_case(path: Path, target: Path, model: Any, feeds: Any, found: Any) -> None:
    """The graph at ``path`` as ``target``.pb, and the values by their tensors' names as ``target``.npz, for
    `tests.models.run_tensorflow`.
    """
    given = {f"in/{model.inputs[key].name}": value for key, value in feeds.items()}
    given |= {f"out/{model.outputs[key].name}": value for key, value in found.items()}
    np.savez(target.with_name(f"{target.name}.npz"), **given)
    target.with_name(f"{target.name}.pb").write_bytes(read_graph_model(str(path))[0].SerializeToString())
