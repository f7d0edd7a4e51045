"""Messages on disk and on the wire: a separate protobuf package, byte-compatible with TensorFlow's.

Six files: ``graph.proto`` (data types, tensors, attributes, nodes, functions, GraphDef), ``step_stats.proto``
(StepStats, CostGraphDef, RunMetadata), ``event.proto`` (Summary, Event), ``checkpoint.proto`` (TensorFlow's
checkpoints), ``meta_graph.proto`` (MetaGraphDef, SavedModel) and ``example.proto`` (Example,
SequenceExample). Rules: a field has the same number, type and label as in TensorFlow; a field that flowrt
does not read is omitted, its number is ``reserved``, and protobuf preserves its bytes unread. The ``_pb2``
modules are generated and committed, by a protoc of the 26 series, so that every protobuf runtime from 5 on
loads them.

Importing this package imports none of them. ``from flowrt import protos`` and ``protos.graph_pb2`` in a
function load protobuf (30 ms) on first use; modules that ``import flowrt`` imports must use that form.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import DecodeError as DecodeError

    from flowrt.protos import checkpoint_pb2 as checkpoint_pb2
    from flowrt.protos import event_pb2 as event_pb2
    from flowrt.protos import example_pb2 as example_pb2
    from flowrt.protos import graph_pb2 as graph_pb2
    from flowrt.protos import meta_graph_pb2 as meta_graph_pb2
    from flowrt.protos import step_stats_pb2 as step_stats_pb2

_MESSAGES = {
    "event_pb2", "example_pb2", "graph_pb2", "step_stats_pb2", "checkpoint_pb2", "meta_graph_pb2",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "DecodeError":  # what parsing raises
        return import_module("google.protobuf.message").DecodeError
    if name not in _MESSAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
