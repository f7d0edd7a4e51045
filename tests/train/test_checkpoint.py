"""The checkpoint store: round trips, and what is left after every way in which a save or a file can break."""

import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import flowrt.dtypes
from flowrt.errors import (
    DataLossError,
    DTypeError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnimplementedError,
)
from flowrt.train.checkpoints.checkpoint import write_checkpoint
from flowrt.train.checkpoints.open_checkpoint import checkpoint_exists, read_checkpoint, remove_checkpoint
from flowrt.train.checkpoints.pieces import plan_shards
from flowrt.train.checkpoints.shard_reader import ShardReader
from tests.train.checkpoint_cases import OTHER, SMALL, assert_equal, files, shard_paths

in_one_directory = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def seal(rest: bytes) -> bytes:
    """Manifest bytes whose checksum is right, whatever they say."""
    return b'{"crc32": "%08x",' % zlib.crc32(rest) + rest


def edit_manifest(prefix: str, change: Callable[[dict], object]) -> None:
    path = Path(f"{prefix}.index.json")
    body = json.loads(path.read_bytes())
    del body["crc32"]
    change(body)
    path.write_bytes(seal(json.dumps(body)[1:].encode()))


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return str(tmp_path / "model.ckpt-1")


# Round trips

NUMBERS = [d.np for d in flowrt.dtypes.ALL if not d.np.hasobject]
ELEMENTS = {
    np.dtype(ml_dtypes.bfloat16): st.floats(-100, 100).map(ml_dtypes.bfloat16),
    np.dtype(object): st.binary(max_size=5),
}


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = draw(st.sampled_from([*NUMBERS, np.dtype(object)]))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    if dtype in ELEMENTS:
        array = np.empty(shape, dtype)
        flat = draw(st.lists(ELEMENTS[dtype], min_size=array.size, max_size=array.size))
        array.reshape(-1)[:] = flat
    else:
        array = np.array(draw(hnp.arrays(dtype, shape)))
    if dtype.itemsize > 1 and dtype.kind in "iufc" and draw(st.booleans()):
        array = array.astype(dtype.newbyteorder(">"))
    layouts = [lambda a: a, lambda a: a.T, lambda a: a[::-1] if a.ndim else a, np.asfortranarray]
    return draw(st.sampled_from(layouts))(array)


@in_one_directory
@given(tensors=st.dictionaries(st.text(max_size=5), arrays(), max_size=4), limit=st.integers(1, 200))
def test_what_is_read_is_what_was_written(tmp_path, tensors, limit):
    prefix = str(tmp_path / "p")
    write_checkpoint(prefix, tensors, max_shard_bytes=limit)
    assert_equal(read_checkpoint(prefix), tensors)
    assert len(shard_paths(prefix)) <= len(tensors)  # the checkpoint before it is gone


def test_read_arrays_are_the_readers_own(prefix):
    write_checkpoint(prefix, SMALL)
    reader = ShardReader(prefix)
    reader.get_tensor("w")[...] = 0
    reader.get_tensor("c")[...] = 0
    assert_equal({name: reader.get_tensor(name) for name in SMALL}, SMALL)


def test_text_is_stored_as_utf8(prefix):
    write_checkpoint(prefix, {"o": np.array(["é", b"x"], object), "u": np.array("é"), "s": np.array([b"yz"])})
    got = read_checkpoint(prefix)
    assert [got[name].tolist() for name in "ous"] == [["é".encode(), b"x"], "é".encode(), [b"yz"]]


def test_shards_are_safetensors_files_that_others_can_read(prefix):
    tensors = {"w": SMALL["w"], "b": np.ones(3, ml_dtypes.bfloat16), "t": np.array([True, False])}
    write_checkpoint(prefix, tensors)
    (path,) = shard_paths(prefix)
    assert_equal(dict(sorted(safetensors.numpy.load_file(path).items())), dict(sorted(tensors.items())))


def test_shards_are_filled_in_order_up_to_the_limit():
    sizes = {"a": 4, "b": 4, "c": 9, "d": 0, "e": 8}
    assert list(plan_shards(sizes, 8)) == [["a", "b"], ["c"], ["d", "e"]]
    assert list(plan_shards({}, 8)) == []


def test_the_reader_tells_names_shapes_and_dtypes(prefix):
    write_checkpoint(prefix, SMALL, max_shard_bytes=1)
    reader = ShardReader(prefix)
    assert reader.get_variable_to_shape_map() == {"w": [2, 3], "c": [2], "s": [1, 2], "step": []}
    dtypes = reader.get_variable_to_dtype_map()
    assert [dtypes[name].name for name in SMALL] == ["float32", "complex128", "string", "int64"]
    assert reader.has_tensor("w")
    assert not reader.has_tensor("v")
    assert len(shard_paths(prefix)) == 4
    assert_equal(read_checkpoint(prefix, ["step", "w"]), {"step": SMALL["step"], "w": SMALL["w"]})


def test_the_last_directory_is_created_and_a_deeper_one_is_not(tmp_path):
    write_checkpoint(tmp_path / "new" / "m", SMALL)
    assert checkpoint_exists(tmp_path / "new" / "m")
    with pytest.raises(InvalidArgumentError, match="parent directory"):
        write_checkpoint(tmp_path / "a" / "b" / "m", SMALL)


def test_a_prefix_without_a_directory_is_in_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_checkpoint("m", SMALL)
    write_checkpoint("m", OTHER)
    assert_equal(read_checkpoint("m"), OTHER)
    remove_checkpoint("m")
    assert os.listdir() == []


def test_a_checkpoint_can_be_moved_with_its_directory_and_renamed_with_its_files(tmp_path):
    write_checkpoint(tmp_path / "a" / "m", SMALL)
    shutil.move(tmp_path / "a", tmp_path / "b")
    for path in (tmp_path / "b").iterdir():
        path.rename(path.with_name("best" + path.name[1:]))
    assert_equal(read_checkpoint(tmp_path / "b" / "best"), SMALL)


# Wrong arguments


@pytest.mark.parametrize("bad", ["", "a/", "a/..", ".", "a\0b", None, 3])
def test_a_prefix_without_a_file_name_is_refused(bad):
    with pytest.raises(InvalidArgumentError, match="checkpoint prefix"):
        write_checkpoint(bad, SMALL)
    for call in (read_checkpoint, remove_checkpoint):
        with pytest.raises(InvalidArgumentError, match="checkpoint prefix"):
            call(bad)


@pytest.mark.parametrize("directory", ["a/", "a/..", "."])
def test_a_directory_is_no_checkpoint(directory):
    assert not checkpoint_exists(directory)


@pytest.mark.parametrize("bad", ["", "a\0b", None, 3])
def test_what_is_no_path_is_refused_as_a_checkpoint(bad):
    with pytest.raises(InvalidArgumentError, match="checkpoint prefix"):
        checkpoint_exists(bad)


@pytest.mark.parametrize(
    "tensors, error",
    [
        ({"__metadata__": np.ones(2)}, InvalidArgumentError),
        ({"\ud800": np.ones(2)}, InvalidArgumentError),
        ({1: np.ones(2)}, InvalidArgumentError),
        ({"x": [1, 2]}, DTypeError),
        ({"x": np.array([1, b"a"], object)}, DTypeError),
        ({"x": np.array(["\ud800"], object)}, DTypeError),
        ({"x": np.array(["2020"], "datetime64[D]")}, DTypeError),
        ({"x": np.ones(2, np.longdouble)}, DTypeError),
    ],
)
def test_what_cannot_be_stored_is_refused_before_a_file_is_touched(prefix, tensors, error):
    write_checkpoint(prefix, SMALL)
    before = files(prefix)
    with pytest.raises(error, match="checkpoint"):
        write_checkpoint(prefix, SMALL | tensors)
    assert files(prefix) == before
    assert_equal(read_checkpoint(prefix), SMALL)


def test_a_shard_limit_below_one_byte_is_refused(prefix):
    with pytest.raises(InvalidArgumentError, match="max_shard_bytes"):
        write_checkpoint(prefix, SMALL, max_shard_bytes=0)


def test_a_missing_tensor_is_answered_with_the_nearest_names(prefix):
    write_checkpoint(prefix, {"dense/kernel": np.ones(2), "dense/bias": np.ones(2), "z": np.ones(2)})
    with pytest.raises(NotFoundError, match=r"got 'dense/kernal'. Nearest: dense/kernel"):
        read_checkpoint(prefix, ["dense/kernal"])


def test_a_missing_checkpoint_or_shard_is_not_found(prefix):
    with pytest.raises(NotFoundError, match=r"model.ckpt-1.index.json"):
        read_checkpoint(prefix)
    write_checkpoint(prefix, SMALL, max_shard_bytes=1)
    lost = shard_paths(prefix)[2]
    lost.unlink()
    with pytest.raises(NotFoundError, match=lost.name):
        read_checkpoint(prefix)
    assert_equal(read_checkpoint(prefix, ["w"]), {"w": SMALL["w"]})


def test_removing_takes_all_files_of_this_prefix_and_no_others(prefix):
    write_checkpoint(prefix, SMALL, max_shard_bytes=1)
    write_checkpoint(prefix + "0", OTHER, max_shard_bytes=1)
    remove_checkpoint(prefix)
    assert not checkpoint_exists(prefix)
    assert all(name.startswith("model.ckpt-10.") for name in files(prefix))
    assert_equal(read_checkpoint(prefix + "0"), OTHER)
    remove_checkpoint(prefix)
    remove_checkpoint(os.path.join(os.path.dirname(prefix), "no", "such"))


# Damage


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_every_flipped_byte_and_every_truncation_is_data_loss(prefix, step):
    """Every fifth in the suite."""
    write_checkpoint(prefix, SMALL, max_shard_bytes=40)
    paths = [Path(f"{prefix}.index.json"), *shard_paths(prefix)]
    assert len(paths) == 4
    for path in paths:
        whole = path.read_bytes()
        places = range(0, len(whole), step)
        flipped = (whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :] for i in places)
        truncated = (whole[:i] for i in places)
        for damaged in (*flipped, *truncated, whole + b"\n", whole + b"\0"):
            path.write_bytes(damaged)
            with pytest.raises(DataLossError, match=path.name):
                read_checkpoint(prefix)
        path.write_bytes(whole)
    assert_equal(read_checkpoint(prefix), SMALL)


def test_a_truncated_shard_is_told_by_its_size_before_it_is_read(prefix):
    write_checkpoint(prefix, SMALL)
    (path,) = shard_paths(prefix)
    size = path.stat().st_size
    os.truncate(path, size - 3)
    with pytest.raises(DataLossError, match=f"tensor 'w': expected {size} bytes; got {size - 3}"):
        read_checkpoint(prefix)


def test_swapped_shards_are_data_loss(prefix):
    write_checkpoint(prefix, {"a": np.zeros(4), "b": np.ones(4)}, max_shard_bytes=1)
    one, two = shard_paths(prefix)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    with pytest.raises(DataLossError, match="expected CRC-32"):
        read_checkpoint(prefix)


def header(text: object, data: bytes = b"") -> bytes:
    encoded = json.dumps(text).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


@pytest.mark.parametrize(
    "shard",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 2**40) + b"{}",
        header([]),
        header({}),
        header({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 2**40]}}, bytes(8)),
        header({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 8]}}, bytes(8)),
        header({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        header({"x": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}}, bytes(8)),
        header({"x": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        header({"y": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    ],
)
def test_a_shard_that_contradicts_the_manifest_is_data_loss_even_with_its_checksum_right(prefix, shard):
    write_checkpoint(prefix, {"x": np.zeros(2, np.float32)})
    (path,) = shard_paths(prefix)
    path.write_bytes(shard)
    crc32 = [f"{zlib.crc32(shard):08x}"] if shard else []
    edit_manifest(prefix, lambda m: m["shards"][0].update(bytes=len(shard), crc32=crc32))
    with pytest.raises(DataLossError, match=r"model\.ckpt-1"):
        read_checkpoint(prefix)


@pytest.mark.parametrize(
    "blob", [bytes(1), bytes(15), bytes(17), struct.pack("<QQ", 2**63, 2**63), b"\xff" * 20]
)
def test_string_lengths_that_do_not_fit_are_data_loss(prefix, blob):
    write_checkpoint(prefix, {"x": np.frombuffer(blob, np.uint8)})
    pieces = [{"offset": [0], "shape": [2], "shard": 0}]
    edit_manifest(prefix, lambda m: m["tensors"]["x"].update(dtype="string", shape=[2], pieces=pieces))
    with pytest.raises(DataLossError, match=r"tensor 'x'.*string"):
        read_checkpoint(prefix)


@pytest.mark.parametrize("save_id", ["../../../etc/x", "/etc/x", "0" * 15, "0" * 16 + "/", "A" * 16, 5, None])
def test_a_manifest_cannot_point_outside_its_prefix(prefix, save_id):
    write_checkpoint(prefix, SMALL)
    edit_manifest(prefix, lambda m: m.update(save_id=save_id))
    with pytest.raises(DataLossError, match="save_id"):
        ShardReader(prefix)


@pytest.mark.parametrize(
    "shape", [[2**62, 2**62, 0], [-1], [True], [1.0], ["2"], [2**64], [0] * 65, [10**9], None, {}, [[1]]]
)
def test_a_shape_that_cannot_be_is_refused_before_it_is_allocated(prefix, shape):
    write_checkpoint(prefix, {"x": np.zeros(2)})
    edit_manifest(prefix, lambda m: m["tensors"]["x"].update(shape=shape))
    with pytest.raises(DataLossError, match=r"index.json.*: expected"):
        ShardReader(prefix)


def test_a_later_version_says_so(prefix):
    write_checkpoint(prefix, SMALL)
    edit_manifest(prefix, lambda m: m.update(version=3))
    with pytest.raises(UnimplementedError, match="expected version 1 or 2; got 3"):
        read_checkpoint(prefix)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def places(value: object) -> Iterator[tuple[object, object]]:
    """Every (container, key) of a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        yield value, key
        yield from places(inner)


@in_one_directory
@given(data=st.data())
def test_any_change_of_the_manifest_ends_in_a_typed_error_or_the_same_values(tmp_path, data):
    prefix = str(tmp_path / "p")
    write_checkpoint(prefix, SMALL, max_shard_bytes=40)

    def change(body: dict) -> None:
        for _ in range(data.draw(st.integers(1, 3))):
            container, key = data.draw(st.sampled_from(list(places(body))))
            if data.draw(st.booleans()):
                container[key] = data.draw(JSON)
            else:
                del container[key]
            if not body:
                return

    edit_manifest(prefix, change)
    read_or_typed_error(prefix)


@in_one_directory
@given(text=st.binary(max_size=60) | st.just(b"[" * 100_000) | st.just(b'"version":' + b"9" * 5000 + b"}"))
def test_any_text_as_manifest_ends_in_data_loss(tmp_path, text):
    prefix = str(tmp_path / "p")
    for manifest in (text, seal(text)):
        Path(f"{prefix}.index.json").write_bytes(manifest)
        with pytest.raises(DataLossError, match=r"index\.json"):
            ShardReader(prefix)


def read_or_typed_error(prefix: str) -> None:
    try:
        got = read_checkpoint(prefix)
    except OpError:
        return
    for name in set(got) & set(SMALL):
        assert got[name].ravel().tolist() == SMALL[name].ravel().tolist()
