"""Several readers that fill one queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowrt.dataflow.queues import FIFOQueue, QueueBase, RandomShuffleQueue
from flowrt.dtypes import float32, string
from flowrt.errors import DTypeError, NotFoundError
from flowrt.gfile import Glob
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise.arithmetic import add_n
from flowrt.graph.source import misuse
from flowrt.summary import scalar
from flowrt.tf1.training.input_producers import string_input_producer
from flowrt.train.coordination.queue_runner import QueueRunner, add_queue_runner


class ParallelReader:
    """``num_readers`` readers of ``reader_class``, which take files from one queue and put what they read,
    keys and values, into ``common_queue``.
    """

    def __init__(
        self,
        reader_class: Callable[..., Any],
        common_queue: QueueBase,
        num_readers: int = 4,
        reader_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if list(common_queue.dtypes) != [string, string]:
            raise misuse(
                f"ParallelReader: expected a queue of two strings; got {list(common_queue.dtypes)}",
                DTypeError,
            )
        self._readers = [reader_class(**(reader_kwargs or {})) for _ in range(num_readers)]
        self.common_queue, self.num_readers = common_queue, num_readers

    def read(self, queue: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
        """The key and the value of the next record of the files in ``queue``."""
        self._fill(queue)
        key, value = self.common_queue.dequeue(name=name)
        return key, value

    def read_up_to(self, queue: Any, num_records: int, name: str | None = None) -> tuple[Tensor, Tensor]:
        """The keys and values of the next records, [at most num_records]."""
        self._fill(queue)
        keys, values = self.common_queue.dequeue_up_to(num_records, name)
        return keys, values

    def _fill(self, queue: Any) -> None:
        filling = [self.common_queue.enqueue(reader.read(queue)) for reader in self._readers]
        add_queue_runner(QueueRunner(self.common_queue, filling))

    def num_records_produced(self, name: str | None = None) -> Tensor:
        """The number of records that the readers have read: int64."""
        return add_n([reader.num_records_produced() for reader in self._readers], name=name)

    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """The number of files that the readers have read: int64."""
        return add_n([reader.num_work_units_completed() for reader in self._readers], name=name)


def parallel_read(
    data_sources: Any,
    reader_class: Callable[..., Any],
    num_epochs: int | None = None,
    num_readers: int = 4,
    reader_kwargs: Mapping[str, Any] | None = None,
    shuffle: bool = True,
    dtypes: Any = None,
    capacity: int = 256,
    min_after_dequeue: int = 128,
    seed: int | None = None,
    scope: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The key and the value of the next record of the files ``data_sources``, read by several readers into a
    queue of ``capacity``, which ``shuffle`` mixes, as it does the files.

    Raises `NotFoundError` for a pattern that matches no file.
    """
    files, kinds = get_data_files(data_sources), dtypes or [string, string]
    with get_default_graph().name_scope(scope or "parallel_read"):
        names = string_input_producer(files, num_epochs, shuffle, seed, name="filenames")
        common: QueueBase = (
            RandomShuffleQueue(capacity, min_after_dequeue, kinds, seed=seed, name="common_queue")
            if shuffle
            else FIFOQueue(capacity, kinds, name="common_queue")
        )
        summarize_fullness(common, capacity)
        return ParallelReader(reader_class, common, num_readers, reader_kwargs).read(names)


def summarize_fullness(queue: QueueBase, capacity: int) -> None:
    """A summary of the share of ``capacity`` that is used."""
    scalar(f"fraction_of_{capacity}_full", cast(queue.size(), float32) * (1 / capacity))


def single_pass_read(
    data_sources: Any,
    reader_class: Callable[..., Any],
    reader_kwargs: Mapping[str, Any] | None = None,
    scope: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The key and the value of the next record of the files, one after the other, once."""
    with get_default_graph().name_scope(scope or "single_pass_read"):
        names = string_input_producer(
            get_data_files(data_sources), num_epochs=1, shuffle=False, capacity=1, name="filenames"
        )
        key, value = reader_class(**(reader_kwargs or {})).read(names)
        return key, value


def get_data_files(data_sources: Any) -> list[str]:
    """The files of a path, a pattern, or a list of those. Raises `NotFoundError` for none."""
    if isinstance(data_sources, (list, tuple)):
        found = [file for source in data_sources for file in get_data_files(source)]
    else:
        found = Glob(data_sources) if any(sign in data_sources for sign in "*?[") else [data_sources]
    if not found:
        raise misuse(f"get_data_files: there are no files {data_sources}", NotFoundError)
    return found
