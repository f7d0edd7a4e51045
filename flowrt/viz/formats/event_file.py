"""TensorBoard: an event file, shown in the graph tab.

TensorBoard reads directories: the file's name must contain "tfevents", which `flowrt export` ensures.
"""

from __future__ import annotations

import time

from flowrt.protos.event_pb2 import Event
from flowrt.summary.event_file import FILE_VERSION, encode_record
from flowrt.viz.formats.graph_def import graph_def_of
from flowrt.viz.formats.picture import Picture


def encode_event_file(picture: Picture) -> bytes:
    """An event file: its version, and ``picture.parts`` as a GraphDef."""
    now = time.time()
    graph = graph_def_of(picture.parts).SerializeToString(deterministic=True)
    events = [Event(wall_time=now, file_version=FILE_VERSION), Event(wall_time=now, graph_def=graph)]
    return b"".join([encode_record(event.SerializeToString()) for event in events])
