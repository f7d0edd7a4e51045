"""`CheckpointReader`: the tensors of a checkpoint of any format, whole or in part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, final

from flowrt.dtypes import DType
from flowrt.errors import NotFoundError, nearest
from flowrt.train.checkpoints.stored_arrays import Array
from flowrt.train.checkpoints.stored_tensor import StoredTensor


class CheckpointReader(ABC):
    """Reads the tensors of the checkpoint ``prefix``, one at a time; what is read is checked when it is first
    needed. ``save_id`` is another after each save.

    Methods raise `NotFoundError` (no such tensor; a missing file, perhaps because the checkpoint was replaced
    since) and `DataLossError` (a file is damaged). After an error the reader is unchanged. Not thread-safe.
    """

    prefix: str
    save_id: str

    @abstractmethod
    def get_variable_to_shape_map(self) -> dict[str, list[int]]: ...

    @abstractmethod
    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        """The dtypes by name, without tensors of dtypes that flowrt does not have."""

    @abstractmethod
    def _names(self) -> Collection[str]: ...

    @abstractmethod
    def _stored(self, name: str) -> StoredTensor[Any]:
        """The tensor of a name that there is."""

    @final
    def has_tensor(self, tensor_str: str) -> bool:
        return tensor_str in self._names()

    @final
    def get_tensor(self, tensor_str: str) -> Array:
        """A new array with the value of one tensor; object dtype with elements of type bytes for strings."""
        return self.stored(tensor_str).value()

    @final
    def stored(self, name: str) -> StoredTensor[Any]:
        """The tensor ``name``, to read parts of it. Raises `NotFoundError` if there is none."""
        names = self._names()
        if name not in names:
            hint = nearest(str(name), names)
            where = f"checkpoint {self.prefix}"
            raise NotFoundError(f"{where}: expected one of its {len(names)} tensors; got {name!r}.{hint}")
        return self._stored(name)
