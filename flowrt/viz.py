"""Pictures of a graph as it runs: pruned, optimised, placed and cut into one part a device.

Operations are drawn together by name scope: one box for all whose names agree in the first ``depth`` parts, on each
device. Constants and the pairs of Send and Recv are not drawn: a tensor that goes from one device to another is a dashed
edge. `write_dot` writes the text that Graphviz reads; `write_svg` draws by itself, so that a picture needs no other program.

    parts = partitions(session, fetches)          {device: Subgraph}
    picture = collapse(parts, depth=2)            boxes and edges
    write_svg(picture, "graph.svg")
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from flowrt.device.spec import parse_device
from flowrt.errors import InvalidArgumentError
from flowrt.executor.fetches import parse_fetches
from flowrt.executor.plan import compile_subgraphs
from flowrt.executor.session import BaseSession, Session
from flowrt.graph.graph import Graph, Operation, Tensor
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.passes.infer import infer_shapes
