"""`CodeCache`: what is kept and found again, damage, whose a file is, eviction, and several processes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from flowrt.device.llvm import code_cache
from flowrt.device.llvm.code_cache import HEADER, UNFINISHED, UNFINISHED_FOR_S, CodeCache

ROOT = Path(__file__).resolve().parent.parent.parent
MIB = 1 << 20
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def key(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def make(folder: Path, limit_bytes: int = MIB) -> CodeCache:
    return CodeCache(folder / "cache", limit_bytes)


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "cache").iterdir()}


# --- what is kept


def test_what_is_put_is_found_by_another_cache_of_the_folder(tmp_path: Path) -> None:
    make(tmp_path).put(key(1), b"code")
    assert make(tmp_path).get(key(1)) == b"code"
    assert make(tmp_path).get(key(2)) is None


def test_the_last_put_counts(tmp_path: Path) -> None:
    cache = make(tmp_path)
    cache.put(key(1), b"old")
    cache.put(key(1), b"")
    assert cache.get(key(1)) == b""
    assert names(tmp_path) == {key(1)}


def test_without_a_folder_nothing_is_kept() -> None:
    cache = CodeCache(None, MIB)
    cache.put(key(1), b"code")
    assert cache.get(key(1)) is None


# --- damage


@same_folder
@given(place=st.integers(0, HEADER.size + 4), change=st.integers(1, 255))
def test_an_entry_with_any_byte_changed_is_absent_and_removed(
    tmp_path: Path, place: int, change: int
) -> None:
    content = bytearray(entry_of(tmp_path, b"code!"))
    content[place] ^= change
    check_removed(tmp_path, bytes(content))


@same_folder
@given(length=st.integers(0, HEADER.size + 4))
def test_a_shortened_entry_is_absent_and_removed(tmp_path: Path, length: int) -> None:
    check_removed(tmp_path, entry_of(tmp_path, b"code!")[:length])


def test_a_lengthened_entry_is_absent_and_removed(tmp_path: Path) -> None:
    check_removed(tmp_path, entry_of(tmp_path, b"code!") + b"\0")


def test_an_entry_under_another_key_is_absent_and_removed(tmp_path: Path) -> None:
    make(tmp_path).put(key(2), b"other")
    check_removed(tmp_path, (tmp_path / "cache" / key(2)).read_bytes())


def entry_of(folder: Path, payload: bytes) -> bytes:
    make(folder).put(key(1), payload)
    return (folder / "cache" / key(1)).read_bytes()


def check_removed(folder: Path, content: bytes) -> None:
    cache, path = make(folder), folder / "cache" / key(1)
    path.write_bytes(content)
    path.chmod(0o600)
    assert cache.get(key(1)) is None
    assert not path.exists()
    cache.put(key(1), b"again")
    assert cache.get(key(1)) == b"again"


# --- whose a file is


def test_the_folder_and_its_entries_are_the_users_alone(tmp_path: Path) -> None:
    make(tmp_path).put(key(1), b"code")
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "cache" / key(1)).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_may_write_is_not_used(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path).put(key(1), b"code")
    (tmp_path / "cache").chmod(mode)
    cache = make(tmp_path)
    assert cache.get(key(1)) is None
    cache.put(key(2), b"code")
    assert names(tmp_path) == {key(1)}
    assert "is not used" in caplog.text
    assert "FLOWRT_CACHE_DIR" in caplog.text


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_an_entry_that_others_may_write_is_not_used(tmp_path: Path, mode: int) -> None:
    cache = make(tmp_path)
    cache.put(key(1), b"code")
    (tmp_path / "cache" / key(1)).chmod(mode)
    assert cache.get(key(1)) is None


def test_another_users_entry_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make(tmp_path)
    cache.put(key(1), b"code")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache.get(key(1)) is None
    assert make(tmp_path).get(key(1)) is None  # nor is the folder


def test_a_link_or_a_pipe_is_no_entry(tmp_path: Path) -> None:
    entry_of(tmp_path, b"code")
    cache = make(tmp_path)
    os.mkfifo(tmp_path / "cache" / key(3))
    assert cache.get(key(3)) is None  # and it did not wait for a writer
    (tmp_path / "cache" / key(2)).symlink_to(tmp_path / "cache" / key(1))
    assert cache.get(key(2)) is None


def test_a_folder_is_no_entry_and_the_cache_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limit = 2 * (HEADER.size + 100)
    cache, taken = make(tmp_path, limit), tmp_path / "cache" / key(1)
    (taken / "inside").mkdir(parents=True)
    assert cache.get(key(1)) is None
    cache.put(key(1), b"code")
    assert [said.getMessage() for said in caplog.records] == [
        f"expected an entry of compiled code; {taken} is a folder. Remove it"
    ]
    for number in range(2, 9):
        cache.put(key(number), bytes(100))
    assert cache.get(key(8)) == bytes(100)
    assert (taken / "inside").exists()


# --- where it cannot be


def test_where_the_folder_cannot_be_made_all_goes_on_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file is in its place")
    cache = make(tmp_path)
    cache.put(key(1), b"code")
    assert cache.get(key(1)) is None
    assert len(caplog.records) == 1
    assert "FLOWRT_CACHE_DIR" in caplog.text


def test_where_nothing_can_be_written_all_goes_on_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make(tmp_path)

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(code_cache.os, "replace", refuse)
    cache.put(key(1), b"code")
    cache.put(key(2), b"code")
    assert cache.get(key(1)) is None
    assert len(caplog.records) == 1
    assert "FLOWRT_CACHE_DIR" in caplog.text
    assert names(tmp_path) == set()  # nothing unfinished either


def test_where_the_folder_was_removed_all_goes_on_without(tmp_path: Path) -> None:
    cache = make(tmp_path)
    (tmp_path / "cache").rmdir()
    assert cache.get(key(1)) is None
    cache.put(key(1), b"code")
    assert cache.get(key(1)) is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FLOWRT_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, Path("/a/b")),
        ({"FLOWRT_CACHE_DIR": "", "HOME": "/h"}, None),
        ({"FLOWRT_CACHE_DIR": "~/kept", "HOME": "/h"}, Path("/h/kept")),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, Path("/x/flowrt")),
        ({"XDG_CACHE_HOME": "not/absolute", "HOME": "/h"}, Path("/h/.cache/flowrt")),
        ({"HOME": "/h"}, Path("/h/.cache/flowrt")),
    ],
)
def test_the_environment_chooses_the_folder(
    environment: dict[str, str], expected: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FLOWRT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert code_cache.cache_folder() == expected


def test_where_there_is_no_such_home_all_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FLOWRT_CACHE_DIR", "~nobody-has-this-name/kept")
    cache = code_cache.code_cache.__wrapped__()
    cache.put(key(1), b"code")
    assert cache.get(key(1)) is None
    (said,) = caplog.records
    assert said.getMessage().endswith(" home directory. FLOWRT_CACHE_DIR can name another folder")


# --- eviction


def test_what_was_unused_for_the_longest_time_goes_first(tmp_path: Path) -> None:
    cache = make(tmp_path, 10 * (HEADER.size + 100))
    for number in range(10):
        cache.put(key(number), bytes(100))
        os.utime(tmp_path / "cache" / key(number), (number + 1, number + 1))
    assert cache.get(key(0)) == bytes(100)  # used now
    fresh = make(tmp_path, 10 * (HEADER.size + 100))
    fresh.put(key(10), bytes(100))
    assert names(tmp_path) == {key(number) for number in (0, *range(2, 11))}


@same_folder
@given(sizes=st.lists(st.integers(0, 5000), max_size=60))
def test_the_folder_stays_bounded(tmp_path: Path, sizes: list[int]) -> None:
    cache = make(tmp_path, 16_000)
    for number, size in enumerate(sizes):
        cache.put(key(number), bytes(size))
        nbytes = sum(path.stat().st_size for path in (tmp_path / "cache").iterdir())
        assert nbytes <= 16_000


def test_a_payload_above_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = make(tmp_path, 1000)
    cache.put(key(1), b"code")
    cache.put(key(2), bytes(1000))
    assert names(tmp_path) == {key(1)}


def test_eviction_leaves_what_is_not_the_caches(tmp_path: Path) -> None:
    cache = make(tmp_path, 1000)
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    for number in range(20):
        cache.put(key(number), bytes(500))
    assert "notes.txt" in names(tmp_path)


def test_what_a_killed_writer_left_goes_in_time(tmp_path: Path) -> None:
    cache = make(tmp_path)
    old, new = (tmp_path / "cache" / f"{name}{UNFINISHED}" for name in ("old", "new"))
    old.write_bytes(b"par")
    new.write_bytes(b"par")
    then = time.time() - 2 * UNFINISHED_FOR_S
    os.utime(old, (then, then))
    cache.put(key(1), b"code")
    assert names(tmp_path) == {key(1), new.name}


# --- several processes

WRITER = """
import hashlib, random, sys
from pathlib import Path
from flowrt.device.llvm.code_cache import CodeCache
cache, seed = CodeCache(Path(sys.argv[1]), 200_000), int(sys.argv[2])
chance = random.Random(seed)
print("begun", flush=True)
for _ in range(int(sys.argv[3])):
    name = chance.randrange(40)
    key, payload = hashlib.sha256(b"%d" % name).hexdigest(), b"%d " % name * 5000
    found = cache.get(key)
    assert found in (None, payload), (name, found[:40])
    if found is None or chance.random() < 0.5:
        cache.put(key, payload)
assert cache._folder is not None
"""


def start_writer(folder: Path, seed: int, n_rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder / "cache"), str(seed), str(n_rounds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_that_write_read_and_evict_at_once_see_whole_entries(tmp_path: Path) -> None:
    writers = [start_writer(tmp_path, seed, 400) for seed in range(3)]
    for writer in writers:
        _, errors = writer.communicate(timeout=200)
        assert writer.returncode == 0, errors
        assert not errors  # no entry was taken for damaged
    assert len(names(tmp_path)) <= 15


def test_a_writer_killed_at_any_time_leaves_whole_entries(tmp_path: Path) -> None:
    for seed in range(5):
        writer = start_writer(tmp_path, seed, 1_000_000)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.01 * seed)  # at different places; what is asserted holds wherever it dies
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=200)
    cache = CodeCache(tmp_path / "cache", 200_000)
    for number in range(40):
        name = hashlib.sha256(b"%d" % number).hexdigest()
        is_there = (tmp_path / "cache" / name).exists()
        assert (cache.get(name) is not None) == is_there
