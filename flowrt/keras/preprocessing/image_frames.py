"""Images listed in the columns of a table, such as Pandas' data frame."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.graph.source import misuse
from flowrt.keras.preprocessing.image_batches import NUMBERED
from flowrt.keras.preprocessing.image_files import ENDINGS

Array = np.ndarray[Any, Any]


class FrameRows(NamedTuple):
    """The images' names and paths, the numbers of their classes among ``known``, the columns with their
    targets, and the numbers of the rows to use.
    """

    names: list[str]
    paths: list[str]
    known: list[str]
    labels: list[Any]
    columns: Any
    rows: list[int]

    def values(self, rows: Sequence[int]) -> Any:
        """The columns' values in ``rows``; None if there are no columns."""
        if isinstance(self.columns, list):
            return [np.array([column[row] for row in rows]) for column in self.columns]
        return None if self.columns is None else self.columns[rows]


def frame_rows(
    frame: Any, folder: Any, x_col: str, y_col: Any, mode: str | None, classes: Any, validate: bool
) -> FrameRows:
    """The images of ``frame``, see `image.ImageDataGenerator.flow_from_dataframe`."""
    names = _column(frame, x_col)
    for name in names:
        if not isinstance(name, str):
            raise misuse(f"flow_from_dataframe: expected names in the column {x_col!r}; got {name!r}")
    paths = [os.path.join(folder or "", name) for name in names]
    rows = [row for row, path in enumerate(paths) if not validate or _is_image(path)]
    if len(rows) < len(paths):
        absent = len(paths) - len(rows)
        warnings.warn(f"{absent} images of the column {x_col!r} are not there, left out", stacklevel=3)
    if mode not in NUMBERED:
        return FrameRows(names, paths, [], [()] * len(names), _targets(frame, y_col, mode), rows)
    known, labels = _numbered(
        [_row_label(label, mode, y_col) for label in _column(frame, y_col)], rows, classes
    )
    if mode == "binary" and len(known) != 2:
        raise misuse(f"flow_from_dataframe: expected 2 classes with class_mode 'binary'; got {len(known)}")
    numbers = [label[0] if len(label) == 1 else label for label in labels]
    return FrameRows(names, paths, known, numbers, None, [row for row in rows if labels[row]])


def _row_label(label: Any, mode: str, column: str) -> list[str]:
    """The classes of a row: one, or of "categorical" several."""
    found = list(label) if mode == "categorical" and isinstance(label, (list, tuple)) else [label]
    for each in found:
        if not isinstance(each, str):
            raise misuse(
                f"flow_from_dataframe: expected strings in the column {column!r} with class_mode {mode!r}; "
                f"got {each!r}"
            )
    return found


def _numbered(labels: list[list[str]], rows: list[int], classes: Any) -> tuple[list[str], list[list[int]]]:
    """The classes, and each row's as numbers."""
    known = sorted(set(classes or (each for row in rows for each in labels[row])))
    numbers = {name: number for number, name in enumerate(known)}
    return known, [[numbers[each] for each in label if each in numbers] for label in labels]


def _targets(frame: Any, y_col: Any, mode: str | None) -> Any:
    """The columns ``y_col``: side by side in one array ("raw"), or one array each."""
    if mode == "multi_output":
        if not isinstance(y_col, list):
            raise misuse(f"flow_from_dataframe: expected a list of columns as y_col; got {y_col!r}")
        return [_column(frame, each) for each in y_col]
    if mode != "raw":
        return None
    is_one = isinstance(y_col, str)
    return np.array(_column(frame, y_col) if is_one else [_column(frame, each) for each in y_col]).T


def _column(frame: Any, name: str) -> list[Any]:
    try:
        return list(frame[name])
    except KeyError:
        raise misuse(
            f"flow_from_dataframe: expected a column {name!r}; got {sorted(map(str, frame))}"
        ) from None


def _is_image(path: str) -> bool:
    return path.lower().endswith(ENDINGS) and os.path.isfile(path)
