"""Namespaces that TensorFlow 1.15 added for functions that it has elsewhere, too: modules without files."""

from __future__ import annotations

import sys

from flowrt.tf1.inner_paths import make_paths, read_paths

_PATHS = """
: manip -> functions.arrangements graph.ops.array.gather_scatter graph.ops.array.tile_and_reverse
    graph.ops.base.shape_manipulation
: quantization -> graph.ops.nn.fake_quant
: queue -> dataflow.queues
: spectral -> signal graph.ops.linalg.fourier
"""

make_paths("", read_paths(_PATHS), {})
manip, quantization, queue, spectral = (
    sys.modules[f"flowrt.{name}"] for name in ("manip", "quantization", "queue", "spectral")
)
