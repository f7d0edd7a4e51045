"""Tensors of a run, as values in memory or as files: a `.npy` for each, and their names in the order of the
graph in `tensors.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flowrt.errors import NotFoundError
from flowrt.storage.durable_files import typed_os_errors

Array = np.ndarray[Any, Any]
Predicate = Callable[["DebugTensorDatum", Array], bool]

_NAMES = "tensors.json"


class DebugTensorDatum:
    """One tensor of a run: its ``node_name``, ``output_slot`` and value."""

    debug_op = "DebugIdentity"

    def __init__(self, tensor_name: str, value: Callable[[], Array]) -> None:
        self.tensor_name, self.get_tensor = tensor_name, value
        self.node_name, _, slot = tensor_name.rpartition(":")
        self.output_slot = int(slot)

    @property
    def watch_key(self) -> str:
        return f"{self.tensor_name}:{self.debug_op}"

    def __repr__(self) -> str:
        return f"<{self.tensor_name}>"


def has_inf_or_nan(datum: DebugTensorDatum, tensor: Any) -> bool:
    """Whether a tensor has NaN or infinity; a filter for `DebugDumpDir.find`."""
    numeric = isinstance(tensor, np.ndarray) and tensor.dtype.kind in "fc"
    return numeric and not bool(np.isfinite(tensor).all())


class Dump:
    """The tensors of a run by name, in the order in which the graph has them."""

    def __init__(self, values: Mapping[str, Callable[[], Array]]) -> None:
        self.dumped_tensor_data = [DebugTensorDatum(name, value) for name, value in values.items()]

    @property
    def size(self) -> int:
        """The number of tensors."""
        return len(self.dumped_tensor_data)

    def nodes(self) -> list[str]:
        """The names of the operations."""
        return list(dict.fromkeys(datum.node_name for datum in self.dumped_tensor_data))

    def find(
        self, predicate: Predicate, first_n: int = 0, exclude_node_names: str | None = None
    ) -> list[DebugTensorDatum]:
        """The tensors for which ``predicate(datum, value)`` is true, at most ``first_n`` (0: all)."""
        found = []
        for datum in self.dumped_tensor_data:
            if exclude_node_names != datum.node_name and predicate(datum, datum.get_tensor()):
                found.append(datum)
                if len(found) == first_n:
                    break
        return found

    def get_tensors(
        self, node_name: str, output_slot: int, debug_op: str = DebugTensorDatum.debug_op
    ) -> list[Array]:
        """The value of an operation's output, in a list. Raises `NotFoundError` for an unknown one."""
        name = f"{node_name}:{output_slot}"
        found = [datum.get_tensor() for datum in self.dumped_tensor_data if datum.tensor_name == name]
        if not found:
            raise NotFoundError(f"get_tensors: the run has no tensor {name}")
        return found


class DebugDumpDir(Dump):
    """The tensors of a run that a `DumpingDebugWrapperSession` wrote to a folder. Raises `NotFoundError` for
    another folder.
    """

    def __init__(self, dump_root: Any, partition_graphs: Any = None, validate: bool = True) -> None:
        root = Path(os.fspath(dump_root))
        with typed_os_errors(str(root)):
            names = json.loads((root / _NAMES).read_text("utf-8"))

        def reader(number: int) -> Callable[[], Array]:
            return lambda: np.load(root / f"{number}.npy")

        super().__init__({name: reader(number) for number, name in enumerate(names)})


def write_dump(root: Path, values: Iterable[tuple[str, Array]]) -> None:
    """Write a run's tensors to a new folder."""
    with typed_os_errors(str(root)):
        root.mkdir(parents=True)
        names = []
        for number, (name, value) in enumerate(values):
            np.save(root / f"{number}.npy", value)
            names.append(name)
        (root / _NAMES).write_text(json.dumps(names), "utf-8")
