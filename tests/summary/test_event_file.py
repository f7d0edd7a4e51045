"""Event files: their bytes, their checksums, their names, and what a reader says to a damaged one."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt import errors
from flowrt.protos.event_pb2 import Event, Summary
from flowrt.storage.checksums import masked_crc32c
from flowrt.storage.records import encode_record
from flowrt.summary import event_file
from flowrt.summary.event_file import EventFileWriter, read_events

# The payload 10 01 is an Event with step 1 and nothing else; the bytes around it are those TensorFlow writes.
STEP_1_RECORD = (
    bytes.fromhex("0200000000000000") + bytes.fromhex("78270b34") + b"\x10\x01" + bytes.fromhex("766423ad")
)


def scalar(step: int, value: float = 0.5) -> Event:
    return Event(step=step, summary=Summary(value=[Summary.Value(tag="loss", simple_value=value)]))


def only_file(logdir: Path) -> Path:
    (path,) = logdir.iterdir()
    return path


def steps(path: Path) -> list[int]:
    """The steps of a file's events after the one with the file version."""
    first, *rest = read_events(path)
    assert first.file_version == "brain.Event:2"
    assert first.wall_time > 0
    return [event.step for event in rest]


# --- writing --------------------------------------------------------------------------------------


def test_a_record_has_its_golden_bytes() -> None:
    assert encode_record(Event(step=1).SerializeToString()) == STEP_1_RECORD


def test_events_come_back_as_they_were_written(tmp_path: Path) -> None:
    written = [scalar(step, step / 8) for step in range(30)]
    written.append(Event(wall_time=2.5, step=7, graph_def=bytes(100_000)))
    writer = EventFileWriter(tmp_path)
    for event in written:
        writer.add_event(event)
    writer.close()
    assert list(read_events(only_file(tmp_path)))[1:] == written


def test_a_file_is_named_by_time_host_and_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file.time, "time", lambda: 1234.9)
    monkeypatch.setattr(event_file.platform, "node", lambda: "host")
    EventFileWriter(tmp_path / "a" / "b", filename_suffix=".eval").close()
    assert only_file(tmp_path / "a" / "b").name == "events.out.tfevents.0000001234.host.eval"


def test_writers_of_one_second_get_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_file.time, "time", lambda: 1234.0)
    writers = [EventFileWriter(tmp_path) for _ in range(3)]
    for step, writer in enumerate(writers):
        writer.add_event(scalar(step))
        writer.close()
    assert [steps(path) for path in sorted(tmp_path.iterdir())] == [[0], [1], [2]]


def test_a_new_file_holds_its_version_at_once(tmp_path: Path) -> None:
    writer = EventFileWriter(tmp_path)
    assert steps(only_file(tmp_path)) == []
    writer.close()


def test_events_wait_until_the_queue_is_full(tmp_path: Path) -> None:
    writer = EventFileWriter(tmp_path, max_queue=3)
    seen = []
    for step in range(4):
        writer.add_event(scalar(step))
        seen.append(steps(only_file(tmp_path)))
    assert seen == [[], [], [0, 1, 2], [0, 1, 2]]
    writer.flush()
    assert steps(only_file(tmp_path)) == [0, 1, 2, 3]
    writer.close()


def test_events_wait_no_longer_than_flush_secs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(event_file.time, "monotonic", lambda: now)
    writer = EventFileWriter(tmp_path, max_queue=100, flush_secs=5)
    seen = []
    for step, now in enumerate([1001.0, 1004.9, 1005.0, 1009.9, 1010.0]):  # noqa: B007 (the clock reads it)
        writer.add_event(scalar(step))
        seen.append(len(steps(only_file(tmp_path))))
    assert seen == [0, 0, 3, 3, 5]
    writer.close()


def test_a_changed_event_does_not_change_the_file(tmp_path: Path) -> None:
    writer, event = EventFileWriter(tmp_path), scalar(1)
    writer.add_event(event)
    event.step = 2
    writer.close()
    assert steps(only_file(tmp_path)) == [1]


def test_a_closed_writer_refuses_events_until_it_is_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = EventFileWriter(tmp_path)
    writer.reopen()  # nothing to do
    writer.close()
    writer.close()
    writer.flush()
    with pytest.raises(errors.FailedPreconditionError, match="reopen"):
        writer.add_event(scalar(0))
    assert steps(only_file(tmp_path)) == []
    writer.reopen()
    writer.add_event(scalar(1))
    writer.close()
    assert [steps(path) for path in sorted(tmp_path.iterdir())] == [[], [1]]
    assert writer.get_logdir() == str(tmp_path)


def test_a_script_that_never_closes_its_writer_loses_nothing(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from flowrt.protos.event_pb2 import Event\n"
        "from flowrt.summary.event_file import EventFileWriter\n"
        "writer = EventFileWriter(sys.argv[1])\n"
        "writer.add_event(Event(step=3))\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True, timeout=200)
    assert steps(only_file(tmp_path)) == [3]


def test_a_dropped_writer_loses_nothing(tmp_path: Path) -> None:
    writer = EventFileWriter(tmp_path)
    writer.add_event(scalar(4))
    del writer
    assert steps(only_file(tmp_path)) == [4]


def test_threads_share_a_writer(tmp_path: Path) -> None:
    writer = EventFileWriter(tmp_path, max_queue=2)

    def write(first: int) -> None:
        for step in range(first, first + 100):
            writer.add_event(scalar(step))

    threads = [threading.Thread(target=write, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert sorted(steps(only_file(tmp_path))) == list(range(400))


def test_only_events_are_accepted(tmp_path: Path) -> None:
    writer = EventFileWriter(tmp_path)
    with pytest.raises(errors.DTypeError, match=r"expected a flowrt\.Event message; got Summary"):
        writer.add_event(Summary())  # type: ignore[arg-type]
    writer.close()
    assert steps(only_file(tmp_path)) == []


def test_a_logdir_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for logdir in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(errors.FailedPreconditionError, match="cannot create an event file in"):
            EventFileWriter(logdir)


def test_a_full_disk_loses_no_event(tmp_path: Path) -> None:
    """A limit on the file size stands for the full disk: writing stops half way through a record."""
    writer = EventFileWriter(tmp_path, max_queue=1)
    path = only_file(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 25, hard))
        with pytest.raises(errors.ResourceExhaustedError, match="cannot write"):
            writer.add_event(scalar(0))
        with pytest.raises(errors.ResourceExhaustedError, match="cannot write"):
            writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.add_event(scalar(1))
    writer.close()
    assert steps(path) == [0, 1]


# --- damage ---------------------------------------------------------------------------------------


def read_until_error(path: Path) -> tuple[list[Event], errors.DataLossError | None]:
    events = []
    try:
        for event in read_events(path):
            events.append(event)  # noqa: PERF402 (keeps what came before the error)
    except errors.DataLossError as error:
        return events, error
    return events, None


@pytest.fixture
def small_file(tmp_path: Path) -> tuple[Path, list[Event], list[int]]:
    """A file, its events, and the offset of every record and of the file's end."""
    path, events, offsets = tmp_path / "small", [scalar(step) for step in range(3)], [0]
    for event in events:
        offsets.append(offsets[-1] + len(encode_record(event.SerializeToString())))
    path.write_bytes(b"".join(encode_record(event.SerializeToString()) for event in events))
    return path, events, offsets


def test_damage_at_any_byte_ends_the_whole_records_before_it(
    small_file: tuple[Path, list[Event], list[int]],
) -> None:
    path, events, offsets = small_file
    whole = path.read_bytes()
    for position in range(len(whole)):
        record = sum(offset <= position for offset in offsets) - 1
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[position] ^= mask
            path.write_bytes(damaged)
            read, error = read_until_error(path)
            assert read == events[:record]
            assert error is not None
            assert f"damaged record at byte {offsets[record]}:" in error.message


def test_a_file_cut_at_any_byte_ends_after_its_whole_records(
    small_file: tuple[Path, list[Event], list[int]],
) -> None:
    path, events, offsets = small_file
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        read, error = read_until_error(path)
        record = sum(offset <= size for offset in offsets) - 1
        assert read == events[:record]
        if size in offsets:
            assert error is None
        else:
            assert error is not None
            assert f"incomplete record at byte {offsets[record]}:" in error.message


def test_the_rest_of_a_record_that_is_being_written_is_waited_for(
    small_file: tuple[Path, list[Event], list[int]],
) -> None:
    path, events, offsets = small_file
    whole = path.read_bytes()
    for size in range(offsets[-2] + 1, len(whole)):
        path.write_bytes(whole[:size])
        reading = read_events(path, patience_s=60)
        read = [next(reading) for _ in events[:-1]]  # it has seen how long the file is by now

        def write_the_rest(size: int = size) -> None:
            for i in range(size, len(whole)):
                with path.open("ab") as file:
                    file.write(whole[i : i + 1])

        writer = threading.Thread(target=write_the_rest)
        writer.start()
        read += reading
        writer.join()
        assert read == events


def test_a_file_that_nobody_has_written_to_for_long_is_not_waited_for(
    small_file: tuple[Path, list[Event], list[int]],
) -> None:
    path, _, _ = small_file
    path.write_bytes(path.read_bytes()[:-1])
    os.utime(path, (0, 0))
    with pytest.raises(errors.DataLossError, match="incomplete record"):
        list(read_events(path, patience_s=10_000_000))


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_typed_error_or_in_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "events"
    path.write_bytes(data)
    read, error = read_until_error(path)
    assert read == []
    assert (error is None) == (data == b"")


def test_a_huge_length_with_a_right_checksum_takes_no_memory(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**63)
    (tmp_path / "huge").write_bytes(length + struct.pack("<I", masked_crc32c(length)) + bytes(100))
    with pytest.raises(errors.DataLossError, match="incomplete record at byte 0"):
        list(read_events(tmp_path / "huge"))


def test_a_whole_record_that_is_no_event_is_data_loss(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(STEP_1_RECORD + encode_record(b"\xff\xff"))
    with pytest.raises(errors.DataLossError, match=f"record at byte {len(STEP_1_RECORD)}: expected an Event"):
        list(read_events(tmp_path / "other"))


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="nothing_here"):
        next(read_events(tmp_path / "nothing_here"))
    with pytest.raises(errors.FailedPreconditionError, match="cannot read"):
        next(read_events(tmp_path))
