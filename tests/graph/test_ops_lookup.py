"""Lookup tables: when they have entries, what a key finds, files of entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.op_def import op_def

ERRORS = tf.errors


def table(mutable: bool = False, keys: Any = tf.string, values: Any = tf.int64) -> Any:
    return op_def("MutableHashTableV2" if mutable else "HashTableV2")(key_dtype=keys, value_dtype=values)


def find(handle: Any, keys: Any, default: Any) -> Any:
    return op_def("LookupTableFindV2")(handle, keys, default)


def test_a_table_is_initialized_once() -> None:
    with tf.Graph(), tf.Session() as session:
        handle = table()
        found = find(handle, [[b"b", b"x"]], np.int64(-1))
        with pytest.raises(ERRORS.FailedPreconditionError, match="has no entries yet"):
            session.run(found)
        initialize = op_def("InitializeTableV2")
        session.run(initialize(handle, [b"a", b"b"], np.array([1, 2])))
        session.run(initialize(handle, [b"a"], np.array([9])))
        assert session.run(found).tolist() == [[2, -1]]
        assert session.run(op_def("LookupTableSizeV2")(handle)) == 2
        with pytest.raises(ERRORS.InvalidArgumentError, match="expected one value of b'a'; got 1 and 2"):
            session.run(initialize(table(), [b"a", b"a"], np.array([1, 2])))


def test_a_mutable_table_changes() -> None:
    with tf.Graph(), tf.Session() as session:
        handle = table(True, tf.int64, tf.string)
        insert, remove = op_def("LookupTableInsertV2"), op_def("LookupTableRemoveV2")
        session.run(insert(handle, np.array([1, 2]), [b"a", b"b"]))
        session.run(insert(handle, np.array([2, 3]), [b"c", b"d"]))
        session.run(remove(handle, np.array([1])))
        assert session.run(find(handle, np.array([1, 2, 3]), b"-")).tolist() == [b"-", b"c", b"d"]
        export = op_def("LookupTableExportV2")(handle, Tkeys=tf.int64, Tvalues=tf.string)
        assert [x.tolist() for x in session.run(export)] == [[2, 3], [b"c", b"d"]]
        session.run(op_def("LookupTableImportV2")(handle, np.array([7]), [b"e"]))
        assert session.run(op_def("LookupTableSizeV2")(handle)) == 1


def test_entries_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("one\t1\ntwo\t2\nthree\t3\n")
    from_file = op_def("InitializeTableFromTextFileV2")
    with tf.Graph(), tf.Session() as session:
        columns = table()
        session.run(from_file(columns, str(path), key_index=0, value_index=1, offset=1))
        assert session.run(find(columns, [b"one", b"three"], np.int64(0))).tolist() == [0, 3]
        lines = table(keys=tf.int64, values=tf.string)
        session.run(from_file(lines, str(path), key_index=-1, value_index=-2, vocab_size=2))
        assert session.run(find(lines, np.array([1, 2]), b"")).tolist() == [b"two\t2", b""]
        for given, error, said in (
            ({"key_index": 0, "value_index": 5}, ERRORS.InvalidArgumentError, "expected 6 columns"),
            ({"key_index": 1, "value_index": 0}, ERRORS.DTypeError, "expected int64; "),
            (
                {"key_index": 0, "value_index": 1, "vocab_size": 9},
                ERRORS.InvalidArgumentError,
                "expected 9 lines",
            ),
        ):
            with pytest.raises(error, match=said):
                session.run(from_file(table(), str(path), **given))
        with pytest.raises(ERRORS.NotFoundError, match="No such file"):
            session.run(from_file(table(), f"{path}.no", key_index=-1, value_index=-2))
