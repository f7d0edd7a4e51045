"""The device of each operation, for ``ConfigProto(log_device_placement=True)``."""

from __future__ import annotations

import sys
from contextlib import suppress

from flowrt.graph.node import Subgraph


def log_placement(placed: Subgraph) -> None:
    """Print a line for each operation of ``placed`` to standard error, as TensorFlow does."""
    lines = [f"{node.name}: ({node.op.name}): {node.device}\n" for node in placed]
    with suppress(OSError, ValueError):  # nobody reads it any more
        sys.stderr.write("".join(lines))
