"""``contrib.learn.datasets``: tables in CSV files as arrays."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowrt.errors import DataLossError, NotFoundError
from flowrt.examples.tutorials.mnist.input_data import Datasets, read_data_sets
from flowrt.storage.durable_files import typed_os_errors
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "Dataset", "Datasets", "load_csv_with_header", "load_csv_without_header", "load_dataset", "load_iris",
    "maybe_download",
]  # fmt: skip


class Dataset(NamedTuple):
    """A table: ``data``, [examples, features], and ``target``, [examples]."""

    data: Any
    target: Any


def load_csv_with_header(
    filename: Any, target_dtype: Any, features_dtype: Any, target_column: int = -1
) -> Dataset:
    """The table in a file, the first line of which begins with the numbers of examples and features.

    Raises `NotFoundError` without the file, `DataLossError` with file and line for what is no number, and for
    other counts than those.
    """
    header, *rows = _read(filename)
    table = _table(filename, rows, 2, target_dtype, features_dtype, target_column)
    found = table.data.shape
    try:
        expected = int(header[0]), int(header[1])
    except (ValueError, IndexError):
        raise DataLossError(f"{filename}, line 1: expected two counts; got {header}") from None
    if found != expected:
        raise DataLossError(f"{filename}: expected {expected} numbers, by line 1; got {found}")
    return table


def load_csv_without_header(
    filename: Any, target_dtype: Any, features_dtype: Any, target_column: int = -1
) -> Dataset:
    """The table in a file without a header. Raises as `load_csv_with_header`."""
    return _table(filename, _read(filename), 1, target_dtype, features_dtype, target_column)


def _read(filename: Any) -> list[list[str]]:
    with typed_os_errors(str(filename)):
        text = Path(filename).read_text("utf-8")
    rows = list(csv.reader(text.splitlines()))
    if not rows:
        raise DataLossError(f"{filename}: expected lines of numbers; it is empty")
    return rows


def _table(
    filename: Any, rows: list[list[str]], first: int, target_dtype: Any, features_dtype: Any, column: int
) -> Dataset:
    data, target = [], []
    for line, row in enumerate(rows, first):
        try:
            target.append(np.asarray(row.pop(column), target_dtype))
            data.append(np.asarray(row, features_dtype))
        except (ValueError, IndexError) as error:
            raise DataLossError(f"{filename}, line {line}: {error}") from None
    if widths := {len(row) for row in data} - {len(data[0])} if data else set():
        raise DataLossError(f"{filename}: expected {len(data[0])} features in each line; got {min(widths)}")
    return Dataset(np.array(data, features_dtype), np.array(target, target_dtype))


def load_iris(data_path: Any = None) -> Dataset:
    """The iris flowers in a file as `load_csv_with_header` reads it. Raises `NotFoundError` without one:
    flowrt has no copy of the data.
    """
    if data_path is None:
        raise NotFoundError("load_iris: expected data_path, a CSV file; got None")
    return load_csv_with_header(data_path, np.int64, np.float64)


def load_dataset(name: str, size: str = "small", test_with_fake_data: bool = False) -> Any:
    """MNIST, as `read_data_sets` finds it in the folder MNIST-data.

    Raises `NotFoundError` for other names.
    """
    if name != "mnist":
        raise NotFoundError(f"load_dataset: expected 'mnist'; got {name!r}")
    return read_data_sets("MNIST-data", fake_data=test_with_fake_data)


def maybe_download(filename: str, work_directory: Any, source_url: str) -> str:
    """The path of ``filename`` in a folder. Raises `NotFoundError` if it is not there: nothing is
    downloaded.
    """
    path = os.path.join(work_directory, filename)
    if not os.path.exists(path):
        raise NotFoundError(f"maybe_download: {path} is not there: download it from {source_url}")
    return path


__getattr__ = missing_from("contrib.learn.data_files")
