"""``flowrt.keras.utils``: `Sequence`, batches by number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Sequence:
    """Base of data with numbered batches: a subclass has ``__getitem__(index)``, which returns a batch,
    and ``__len__()``, the number of batches; and ``on_epoch_end()`` if it changes between epochs.
    """

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: expected a method __getitem__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__}: expected a method __len__")

    def on_epoch_end(self) -> None:
        """Called at the end of every epoch."""

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]
