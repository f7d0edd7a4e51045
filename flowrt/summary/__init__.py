"""Summaries: ops that describe a step, and the writer that puts them into files for TensorBoard.

    flowrt/graph/ops/text/summaries.py   scalar, histogram, image, text, merge: ops that return messages
    flowrt/graph/ops/text/wave_files.py  audio: the same for sounds
    writer.py                            FileWriter: messages with step and time
    event_file.py                        the file format
    run_facts.py                         script, command, host and versions, in a file beside it

Importing this package imports protobuf, so `import flowrt` defers it to first use.
"""

from typing import Any

from flowrt.graph.ops.text.summaries import histogram as histogram
from flowrt.graph.ops.text.summaries import image as image
from flowrt.graph.ops.text.summaries import merge as merge
from flowrt.graph.ops.text.summaries import merge_all as merge_all
from flowrt.graph.ops.text.summaries import scalar as scalar
from flowrt.graph.ops.text.summaries import text as text
from flowrt.graph.ops.text.wave_files import audio as audio
from flowrt.protos.event_pb2 import Event as Event
from flowrt.protos.event_pb2 import SessionLog as SessionLog
from flowrt.protos.event_pb2 import Summary as Summary
from flowrt.protos.event_pb2 import TaggedRunMetadata as TaggedRunMetadata
from flowrt.summary.writer import FileWriter as FileWriter
from flowrt.summary.writer import FileWriterCache as FileWriterCache
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("summary")
