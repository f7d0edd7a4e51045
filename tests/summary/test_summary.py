"""Summary ops and the writer: what a training script reports is what a reader of the file finds."""

import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

import flowrt.graph.ops.surface.all  # noqa: F401  # defines every op
from flowrt import dtypes, summary
from flowrt.errors import AlreadyExistsError, DTypeError, FailedPreconditionError, InvalidArgumentError
from flowrt.executor.session.session import Session
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.ops.elementwise.arithmetic import add
from flowrt.graph.ops.text.summaries import bucket_limits, encode_png, fill_histogram
from flowrt.protos.event_pb2 import HistogramProto
from flowrt.protos.graph_pb2 import GraphDef
from flowrt.protos.step_stats_pb2 import RunMetadata
from flowrt.summary.event_file import read_events


@pytest.fixture(autouse=True)
def graph():
    with Graph() as graph:
        yield graph


def values(tensor, feeds=None):
    """The values in a fetched summary."""
    with Session() as session:
        return list(summary.Summary.FromString(session.run(tensor, feeds)).value)


def events(logdir):
    """All events but the files' versions, in the order of the files' names."""
    files = sorted(Path(logdir).glob("events.out.tfevents.*"))
    return [e for file in files for e in read_events(file) if e.WhichOneof("what") != "file_version"]


# --- ops


def test_a_scalar_has_its_operations_name_as_tag(graph):
    with graph.name_scope("train"):
        loss = summary.scalar("loss", convert_to_tensor(2.5))
    assert loss.op.name == "train/loss"
    assert loss.shape.as_list() == []
    (value,) = values(loss)
    assert (value.tag, value.simple_value) == ("train/loss", 2.5)


def test_a_second_scalar_of_one_name_gets_a_tag_of_its_own():
    pair = [summary.scalar("loss", convert_to_tensor(float(i))) for i in range(2)]
    assert [values(x)[0].tag for x in pair] == ["loss", "loss_1"]


def test_a_tag_is_cleaned_and_a_family_comes_first():
    loss = summary.scalar("/my loss (%)", convert_to_tensor(1), family="train")
    assert loss.op.name == "train/my_loss____"
    assert values(loss)[0].tag == "train/train/my_loss____"


@pytest.mark.parametrize("dtype", sorted(dtypes.REAL, key=lambda d: d.name), ids=lambda d: d.name)
def test_a_scalar_may_have_any_real_dtype(dtype):
    x = placeholder(dtype, [])
    (value,) = values(summary.scalar("x", x), {x: 3})
    assert value.simple_value == 3


def test_a_scalar_of_complex_numbers_is_refused():
    with pytest.raises(DTypeError, match="expected one of"):
        summary.scalar("x", convert_to_tensor(1j))


def test_a_histogram_counts_every_value_in_the_bucket_that_contains_it():
    x = np.array([-3e12, -1, -1, 0, 1e-14, 0.5, 2.5, 1e25])
    (value,) = values(summary.histogram("h", convert_to_tensor(x)))
    found = value.histo
    assert (found.min, found.max, found.num) == (x.min(), x.max(), 8)
    assert found.sum == pytest.approx(x.sum())
    assert found.sum_squares == pytest.approx((x * x).sum())
    assert sum(found.bucket) == 8
    ends = np.array([-np.inf, *found.bucket_limit])
    for low, high, count in zip(ends[:-1], ends[1:], found.bucket, strict=True):
        assert count == ((low <= x) & (x < high)).sum()


def test_the_buckets_are_tensorflows():
    limits = bucket_limits()
    positive = limits[limits > 0]
    assert len(limits) == 2 * len(positive) + 1
    np.testing.assert_array_equal(limits, -limits[::-1])
    np.testing.assert_allclose(positive[1:-1] / positive[:-2], 1.1)
    assert positive[0] == 1e-12
    assert 1e20 / 1.1 <= positive[-2] < 1e20


def test_a_histogram_keeps_one_empty_bucket_between_full_ones():
    message = HistogramProto()
    fill_histogram(message, np.array([1.0, 2.0, 3.0]))
    assert list(message.bucket) == [0, 1, 0, 1, 0, 1, 0]  # what TensorFlow 2.21 writes for these
    assert message.bucket_limit[0] == 0.917246389039776
    assert message.bucket_limit[-1] == np.finfo(np.float64).max


def test_the_histogram_of_nothing_is_empty():
    (value,) = values(summary.histogram("h", convert_to_tensor(np.array([], np.float32))))
    assert (value.histo.num, list(value.histo.bucket)) == (0, [0])


@pytest.mark.parametrize(("bad", "name"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_a_histogram_refuses_values_that_are_not_finite(bad, name):
    with pytest.raises(InvalidArgumentError, match=f"'h'.*expected finite values; got {name}"):
        values(summary.histogram("h", convert_to_tensor([1.0, bad])))


def test_text_is_a_tensor_for_the_text_plugin():
    (value,) = values(summary.text("notes", convert_to_tensor(["# a", "b"])))
    assert list(value.tensor.string_val) == [b"# a", b"b"]
    assert value.metadata.plugin_data.plugin_name == "text"
    with pytest.raises(DTypeError, match="expected strings; got float32"):
        summary.text("notes", convert_to_tensor(1.0))


def decode_png(data):
    """Pixels of a PNG whose rows are not filtered."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length)[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    width, height, depth, color = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    assert depth == 8
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, {0: 1, 2: 3, 6: 4}[color])


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_png_holds_the_pixels(channels):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels)).astype(np.uint8)
    np.testing.assert_array_equal(decode_png(encode_png(pixels)), pixels)


def test_images_are_scaled_as_tensorflow_does():
    signed = np.linspace(-1, 2, 36).reshape(2, 2, 3, 3).astype(np.float32)
    first, second = values(summary.image("im", convert_to_tensor(signed)))
    assert (first.tag, second.tag) == ("im/image/0", "im/image/1")
    assert (first.image.height, first.image.width, first.image.colorspace) == (2, 3, 3)
    expected = [1, 11, 22, 33, 44, 55, 66, 77, 88, 98, 109, 120, 131, 142, 153, 164, 175, 186]
    assert decode_png(first.image.encoded_image_string).ravel().tolist() == expected
    assert decode_png(second.image.encoded_image_string).ravel().tolist()[::17] == [69, 255]


def test_bytes_are_taken_as_they_are_and_bad_pixels_are_red():
    raw = np.arange(6, dtype=np.uint8).reshape(1, 2, 3, 1)
    (value,) = values(summary.image("im", convert_to_tensor(raw), max_outputs=1))
    assert value.tag == "im/image"
    assert decode_png(value.image.encoded_image_string).ravel().tolist() == [0, 1, 2, 3, 4, 5]
    bad = np.zeros((1, 1, 2, 3), np.float32)
    bad[0, 0, 1, 1] = np.nan
    (value,) = values(summary.image("im", convert_to_tensor(bad)))
    assert decode_png(value.image.encoded_image_string).tolist() == [[[0, 0, 0], [255, 0, 0]]]


def test_images_of_another_shape_are_refused():
    with pytest.raises(InvalidArgumentError, match="expected images of shape"):
        summary.image("im", convert_to_tensor(np.zeros([2, 3, 3])))


def test_merge_all_takes_the_collection():
    assert summary.merge_all() is None
    summary.scalar("a", convert_to_tensor(1.0))
    summary.histogram("b", convert_to_tensor([2.0]))
    summary.scalar("c", convert_to_tensor(3.0), collections=["other"])
    assert [v.tag for v in values(summary.merge_all())] == ["a", "b"]
    assert [v.tag for v in values(summary.merge_all("other"))] == ["c"]
    assert [v.tag for v in values(summary.merge_all(scope="b"))] == ["b"]


def test_a_merge_of_equal_tags_is_refused():
    a = summary.scalar("a", convert_to_tensor(1.0))
    with pytest.raises(InvalidArgumentError, match="got 'a' twice"):
        values(summary.merge([a, a]))


# --- writer


def test_what_is_added_is_in_the_file_with_step_and_time(tmp_path):
    x = placeholder("float32", [])
    loss = summary.scalar("loss", x)
    with Session() as session, summary.FileWriter(tmp_path) as writer:
        for step in range(3):
            writer.add_summary(session.run(loss, {x: step / 2}), step)
        writer.add_summary(
            summary.Summary(value=[summary.Summary.Value(tag="m", simple_value=7)]), np.int64(9)
        )
    found = [(e.step, e.summary.value[0].tag, e.summary.value[0].simple_value) for e in events(tmp_path)]
    assert found == [(0, "loss", 0.0), (1, "loss", 0.5), (2, "loss", 1.0), (9, "m", 7.0)]
    assert all(1.6e9 < e.wall_time < 1e10 for e in events(tmp_path))


def test_a_tags_metadata_is_written_once(tmp_path):
    with summary.FileWriter(tmp_path) as writer, Session() as session:
        note = session.run(summary.text("t", convert_to_tensor("x")))
        for step in range(2):
            writer.add_summary(note, step)
    assert [e.summary.value[0].HasField("metadata") for e in events(tmp_path)] == [True, False]


def test_a_graph_can_be_read_back(tmp_path, graph):
    add(convert_to_tensor(1.0), 2.0, name="three")
    summary.FileWriter(tmp_path, graph).close()
    (event,) = events(tmp_path)
    assert [node.name for node in GraphDef.FromString(event.graph_def).node][-1] == "three"


def test_run_metadata_has_a_tag_of_its_own(tmp_path):
    with summary.FileWriter(tmp_path) as writer:
        writer.add_run_metadata(RunMetadata(), "step 1", 1)
        with pytest.raises(AlreadyExistsError, match="got 'step 1' again"):
            writer.add_run_metadata(RunMetadata(), "step 1", 2)
        writer.add_session_log(summary.SessionLog(status=summary.SessionLog.START), 3)
    assert [(e.step, e.WhichOneof("what")) for e in events(tmp_path)] == [
        (1, "tagged_run_metadata"),
        (3, "session_log"),
    ]


def test_a_closed_writer_refuses_and_a_reopened_one_goes_on(tmp_path):
    writer = summary.FileWriter(tmp_path, filename_suffix=".x")
    writer.close()
    with pytest.raises(FailedPreconditionError, match="expected an open writer"):
        writer.add_summary(b"", 0)
    writer.reopen()
    writer.add_summary(b"", 1)
    writer.close()
    assert [e.step for e in events(tmp_path)] == [1]
    assert len(list(tmp_path.glob("*.x"))) == 2


@pytest.mark.parametrize(
    ("bad", "error"), [(3, DTypeError), ("text", DTypeError), (b"\xff\xff", InvalidArgumentError)]
)
def test_what_is_no_summary_is_refused_and_the_writer_goes_on(tmp_path, bad, error):
    with summary.FileWriter(tmp_path) as writer:
        with pytest.raises(error, match="add_summary: expected"):
            writer.add_summary(bad, 0)
        writer.add_summary(b"", 1)
    assert [e.step for e in events(tmp_path)] == [1]


def test_what_is_no_graph_is_refused(tmp_path):
    with pytest.raises(DTypeError, match="expected a Graph or a GraphDef; got 'x'"):
        summary.FileWriter(tmp_path, "x")


def test_several_threads_may_write(tmp_path):
    with summary.FileWriter(tmp_path) as writer:
        threads = [
            threading.Thread(target=lambda i=i: [writer.add_summary(b"", i * 50 + k) for k in range(50)])
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(e.step for e in events(tmp_path)) == list(range(200))


def test_the_cache_has_one_writer_a_directory(tmp_path):
    one = summary.FileWriterCache.get(str(tmp_path / "a"))
    try:
        assert summary.FileWriterCache.get(tmp_path / "a") is one
        assert summary.FileWriterCache.get(tmp_path / "b") is not one
        one.add_summary(b"", 1)
    finally:
        summary.FileWriterCache.clear()
    assert [e.step for e in events(tmp_path / "a")] == [1]
    assert summary.FileWriterCache.get(tmp_path / "a") is not one
    summary.FileWriterCache.clear()
