"""`FileWriter`: adds summaries, graphs and run metadata to an event file, with step and time."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, ClassVar

import numpy as np
from google.protobuf.message import DecodeError

from flowrt.base.closing import Closing
from flowrt.errors import AlreadyExistsError, DTypeError, InvalidArgumentError
from flowrt.graph.construction.graph import Graph
from flowrt.protos.event_pb2 import Event, SessionLog, Summary, TaggedRunMetadata
from flowrt.summary.event_file import EventFileWriter
from flowrt.summary.run_facts import gather, write_facts


class FileWriter(Closing):
    """Writes to a new event file for TensorBoard. A small file beside it tells ``flowrt report`` what was run
    (`flowrt.summary.run_facts`). Thread-safe.

    Args:
        logdir: The directory, which is created if missing.
        graph: A graph to add immediately.
        max_queue: The number of events that are buffered: see `EventFileWriter`.
        flush_secs: The number of seconds for which they are, at most, while others are added.
        filename_suffix: The end of the file's name.

    Raises:
        PermissionDeniedError: The file may not be created.
        FailedPreconditionError: It cannot be created.

    Example:
        >>> with tf.summary.FileWriter('logs', tf.get_default_graph()) as writer:
        ...     summary = tf.Summary(value=[tf.Summary.Value(tag='loss', simple_value=0.5)])
        ...     writer.add_summary(summary, global_step=1)
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        graph: Graph | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: Any = None,
        filename_suffix: str | None = None,
        session: Any = None,
    ) -> None:
        if session is not None:
            raise InvalidArgumentError(
                "FileWriter: expected no session; got one. Pass fetched summaries to add_summary()"
            )
        self.event_writer = EventFileWriter(logdir, max_queue, flush_secs, filename_suffix)
        write_facts(self.get_logdir(), gather())
        self._lock = threading.Lock()
        self._described: set[str] = set()
        self._traced: set[str] = set()
        if graph is not None or graph_def is not None:
            self.add_graph(graph, graph_def=graph_def)

    def get_logdir(self) -> str:
        return self.event_writer.get_logdir()

    def add_summary(self, summary: Any, global_step: Any = None) -> None:
        """Add a fetched summary (bytes) or a `Summary` message. Raises `DTypeError` or `InvalidArgumentError`
        for anything else.
        """
        own = _decode_summary(summary)
        with self._lock:
            for value in own.value:  # a reader needs a tag's metadata once
                if value.tag in self._described:
                    value.ClearField("metadata")
                elif value.HasField("metadata"):
                    self._described.add(value.tag)
        self._add(Event(summary=own), global_step)

    def add_session_log(self, session_log: SessionLog, global_step: Any = None) -> None:
        """Add a `SessionLog` message: a start, a stop or a checkpoint."""
        self._add(Event(session_log=session_log), global_step)

    def add_graph(self, graph: Any, global_step: Any = None, graph_def: Any = None) -> None:
        """Add a `Graph`, or a GraphDef message. Raises `DTypeError` for anything else."""
        if isinstance(graph, Graph):
            graph_def = graph.as_graph_def(add_shapes=True)
        elif graph is not None:
            graph_def = graph
        if not hasattr(graph_def, "SerializeToString"):
            raise DTypeError(f"add_graph: expected a Graph or a GraphDef; got {graph_def!r}")
        self._add(Event(graph_def=graph_def.SerializeToString()), global_step)

    def add_run_metadata(self, run_metadata: Any, tag: str, global_step: Any = None) -> None:
        """Add a `RunMetadata` that a run has filled.

        Raises `AlreadyExistsError` for a ``tag`` that was used before.
        """
        with self._lock:
            if tag in self._traced:
                raise AlreadyExistsError(f"add_run_metadata: expected a new tag; got {tag!r} again")
            self._traced.add(tag)
        tagged = TaggedRunMetadata(tag=tag, run_metadata=run_metadata.SerializeToString())
        self._add(Event(tagged_run_metadata=tagged), global_step)

    def add_event(self, event: Event) -> None:
        """Add an `Event` message unchanged."""
        self.event_writer.add_event(event)

    def flush(self) -> None:
        """Hand every event to the operating system."""
        self.event_writer.flush()

    def close(self) -> None:
        """Flush and close the file.

        Adding to it raises `FailedPreconditionError` then; `reopen` begins a new one.
        """
        self.event_writer.close()

    def reopen(self) -> None:
        """Continue after `close` in a new file of the same directory; does nothing before it."""
        self.event_writer.reopen()

    def _add(self, event: Event, global_step: Any) -> None:
        event.wall_time = time.time()
        if global_step is not None:
            event.step = int(np.asarray(global_step))
        self.event_writer.add_event(event)


def _decode_summary(summary: Any) -> Summary:
    """A copy that may be changed."""
    if isinstance(summary, Summary):
        own = Summary()
        own.CopyFrom(summary)
        return own
    if not isinstance(summary, bytes):
        raise DTypeError(f"add_summary: expected a fetched summary or a Summary message; got {summary!r:.60}")
    try:
        return Summary.FromString(summary)
    except DecodeError as error:
        raise InvalidArgumentError(f"add_summary: expected an encoded Summary message; got {error}") from None


class FileWriterCache:
    """One writer per directory."""

    _writers: ClassVar[dict[str, FileWriter]] = {}
    _lock = threading.Lock()

    @staticmethod
    def get(logdir: str | os.PathLike[str]) -> FileWriter:
        """The writer for ``logdir``, made at the first call."""
        with FileWriterCache._lock:
            key = os.fspath(logdir)
            if key not in FileWriterCache._writers:
                FileWriterCache._writers[key] = FileWriter(key)
            return FileWriterCache._writers[key]

    @staticmethod
    def clear() -> None:
        """Close and forget all writers."""
        with FileWriterCache._lock:
            for writer in FileWriterCache._writers.values():
                writer.close()
            FileWriterCache._writers.clear()
