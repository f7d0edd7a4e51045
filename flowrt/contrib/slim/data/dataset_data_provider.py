"""The next example of a dataset, item by item."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowrt.contrib.slim.data.dataset import Dataset
from flowrt.contrib.slim.data.parallel_reader import parallel_read
from flowrt.errors import InvalidArgumentError
from flowrt.graph.source import misuse


class DataProvider:
    """Tensors by the names of items, of one example; ``num_samples`` is how many there are, or None."""

    def __init__(self, items_to_tensors: Mapping[str, Any], num_samples: int | None) -> None:
        self._tensors, self._count = items_to_tensors, num_samples

    def get(self, items: Iterable[str]) -> list[Any]:
        """The tensors of ``items``. Raises `InvalidArgumentError` for an unknown one."""
        wanted = list(items)
        if unknown := [item for item in wanted if item not in self._tensors]:
            raise misuse(
                f"DataProvider: expected items among {sorted(self._tensors)}; got {unknown}",
                InvalidArgumentError,
            )
        return [self._tensors[item] for item in wanted]

    def list_items(self) -> list[str]:
        """The names of the items."""
        return list(self._tensors)

    def num_samples(self) -> int | None:
        """The number of examples, or None."""
        return self._count


class DatasetDataProvider(DataProvider):
    """The items of a dataset's next example, and its key as ``record_key``; the queue is that of
    `parallel_read`. Raises `InvalidArgumentError` if an item has the name ``record_key``.
    """

    def __init__(
        self,
        dataset: Dataset,
        num_readers: int = 1,
        reader_kwargs: Mapping[str, Any] | None = None,
        shuffle: bool = True,
        num_epochs: int | None = None,
        common_queue_capacity: int = 256,
        common_queue_min: int = 128,
        record_key: str = "record_key",
        seed: int | None = None,
        scope: str | None = None,
    ) -> None:
        key, data = parallel_read(
            dataset.data_sources, dataset.reader, num_epochs, num_readers, reader_kwargs, shuffle,
            capacity=common_queue_capacity, min_after_dequeue=common_queue_min, seed=seed, scope=scope,
        )  # fmt: skip
        items = dataset.decoder.list_items()
        if record_key in items:
            raise misuse(f"record_key: the dataset has an item {record_key!r}", InvalidArgumentError)
        tensors = dict(zip(items, dataset.decoder.decode(data, items), strict=True))
        super().__init__({**tensors, record_key: key}, dataset.num_samples)
