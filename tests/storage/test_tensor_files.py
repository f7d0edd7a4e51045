"""Checkpoints as operations write, read and merge them: slices, parts of devices, what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.op_def import op_def
from flowrt.storage import tensor_files

FIXTURES = Path(__file__).parent / "fixtures"
ERRORS = tf.errors


def save(prefix: Path, names: list[str], places: list[str], *arrays: Any) -> None:
    tensor_files.save(str(prefix), names, places, [np.asarray(a) for a in arrays])


def read(prefix: Path | str, name: str, place: str = "", dtype: Any = tf.float32) -> Any:
    return tensor_files.restored(tensor_files.open_tensors(str(prefix)), name, place, dtype)


def test_slices_are_one_tensor(tmp_path: Path) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(6, 4)
    names, places = ["w", "t", "w"], ["6 4 0,2:-", "", "6 4 2,4:-"]
    save(tmp_path / "m", names, places, whole[:2], np.array([b"a", b""], object), whole[2:])
    np.testing.assert_array_equal(read(tmp_path / "m", "w"), whole)
    np.testing.assert_array_equal(read(tmp_path / "m", "w", "6 4 1,3:2,2"), whole[1:4, 2:])
    assert read(tmp_path / "m", "t", dtype=tf.string).tolist() == [b"a", b""]
    assert sorted(tf.train.list_variables(str(tmp_path / "m"))) == [("t", [2]), ("w", [6, 4])]


def test_parts_are_merged(tmp_path: Path) -> None:
    whole = np.arange(8, dtype=np.float32).reshape(4, 2)
    for i, name in enumerate("ab"):
        folder = tmp_path / "m_temp" / "part"
        save(Path(f"{folder}-{i}"), [name, "w"], ["", f"4 2 {2 * i},2:-"], i, whole[2 * i : 2 * i + 2])
    prefixes = [f"{tmp_path}/m_temp/part-{i}" for i in (0, 1)]
    tensor_files.merge(prefixes, str(tmp_path / "m"), True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "m.data-00000-of-00002", "m.data-00001-of-00002", "m.index",
    ]  # fmt: skip
    np.testing.assert_array_equal(read(tmp_path / "m", "w"), whole)
    assert read(tmp_path / "m", "b", dtype=tf.int64) == 1
    with pytest.raises(ERRORS.DataLossError, match="is in another file too"):
        tensor_files.merge([str(tmp_path / "m"), str(tmp_path / "m")], str(tmp_path / "n"), False)


@pytest.mark.parametrize("prefix", ["all", "sharded-7", "version_1"])
def test_partitioned_variables_of_tensorflows_are_read_in_part(prefix: str) -> None:
    whole = np.arange(70, dtype=np.float32).reshape(35, 2)
    np.testing.assert_array_equal(read(FIXTURES / prefix, "by_rows", "35 2 10,20:1,1"), whole[10:30, 1:])


@pytest.mark.parametrize(
    ("name", "place", "dtype", "error", "said"),
    [
        ("v", "", tf.float32, ERRORS.NotFoundError, "tensor 'v': there is none"),
        ("w", "", tf.int32, ERRORS.DTypeError, "tensor 'w': expected int32; it is float32"),
        ("w", "3 0,2", tf.float32, ERRORS.InvalidArgumentError, r"has shape \[2\]; expected a slice '3 0,2'"),
        ("w", "2 1,2", tf.float32, ERRORS.InvalidArgumentError, "as '10 4 0,5:-'; got '2 1,2'"),
        ("w", "2 x,2", tf.float32, ERRORS.InvalidArgumentError, "got '2 x,2'"),
        ("w", "2 -:-", tf.float32, ERRORS.InvalidArgumentError, "got '2 -:-'"),
    ],
)
def test_what_is_not_there(tmp_path: Path, name: str, place: str, dtype: Any, error: Any, said: str) -> None:
    save(tmp_path / "m", ["w"], [""], np.zeros(2, np.float32))
    with pytest.raises(error, match=said):
        read(tmp_path / "m", name, place, dtype)
    with pytest.raises(ERRORS.InvalidArgumentError, match=r"slice '2 0,2'; got shape \[1\]"):
        save(tmp_path / "n", ["w"], ["2 0,2"], np.zeros(1, np.float32))
    with pytest.raises(ERRORS.NotFoundError, match="No such file"):
        read(tmp_path / "no", "w")


def test_files_as_operations(tmp_path: Path) -> None:
    with tf.Graph(), tf.Session() as session:
        path = f"{tmp_path}/a/b.txt"
        session.run(tf.write_file(path, b"x\0y"))
        assert session.run(tf.read_file(path)) == b"x\0y"
        assert session.run(tf.matching_files([f"{tmp_path}/a/*", f"{tmp_path}/no"])).tolist() == [
            path.encode()
        ]
        with pytest.raises(ERRORS.NotFoundError, match=r"no\.txt: No such file"):
            session.run(tf.read_file(f"{tmp_path}/no.txt"))
        with pytest.raises(ERRORS.InvalidArgumentError, match="expected one path"):
            session.run(tf.read_file(tf.placeholder_with_default([b"a"], None)))
        name = op_def("ShardedFilename")("m", 3, 12)
        assert session.run(name) == b"m-00003-of-00012"
        with pytest.raises(ERRORS.UnimplementedError, match="version 1, which flowrt only reads"):
            session.run(op_def("Save")("m", ["a"], [tf.constant(1.0)]))
