"""Damaged inputs for everything that reads what another process or a file says.

    python -m tests.fuzz --inputs 1000000 [--seed 7] [--first 500000] [--only 123456] [--readers onnx tfjs]

Each input is a good one with a few changes; its number and the seed make it again (``--only``). It must be
taken or refused by an `OpError`: any other exception has escaped. Memory must be flat from a tenth on. A line
is printed for each `PIECE` inputs: a run that was cut off goes on with ``--first``.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import json
import random
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtocolMessage

import flowrt as tf
import flowrt.onnx
from flowrt.distribute.elastic.elastic_messages import Epoch, Join, decode_message, encode_message
from flowrt.distribute.machines.session_graph import SessionGraph
from flowrt.distribute.wire.messages import Message, decode, encode, encode_error, lost, read_graph
from flowrt.errors import OpError
from flowrt.graph.construction.graph import Graph
from flowrt.graph.pipeline.schedule_file import format_schedule, parse_schedule
from flowrt.graph.pipeline.schedules import order
from flowrt.graph.text.graph_text import parse_subgraph
from flowrt.protos import cluster_pb2 as pb
from flowrt.protos import graph_pb2, meta_graph_pb2
from flowrt.rendezvous.channel import framing
from flowrt.saved_model.frozen_graph import load_frozen_graph
from flowrt.saved_model.loader import load_model
from flowrt.saved_model.tfjs import load_graph_model
from flowrt.storage.slice_checkpoint import SliceCheckpoint
from flowrt.storage.sstable import read_table, write_table
from flowrt.storage.tensor_bundle import TensorBundle
from flowrt.tf1.graph_import.import_graph_def import import_graph_def
from flowrt.train.checkpoints.checkpoint import write_checkpoint
from flowrt.train.checkpoints.checkpoint_format import decode_manifest
from tests import damaged_messages
from tests.onnx import damaged_models
from tests.saved_model import test_tfjs
from tests.storage.tables import table_of
from tests.train.checkpoint_cases import SMALL

PIECE = 50_000

MAX_GROWTH = 4 << 20
"""Bytes that the process may grow by after a tenth of the inputs: caches fill up."""

TEXT = "%a = Const() {value=f32[3](1.0, 2.0, 3.0)} : f32[3]\n%b = Square(%a) : f32[3]"


BUNDLE = Path(__file__).parent / "storage" / "fixtures" / "all"
"""A checkpoint that TensorFlow wrote."""
SLICES = BUNDLE.with_name("version_1")
"""One of version 1."""
BUNDLE_DATA, BUNDLE_KEYS = ".data-00000-of-00001", (b"", b"texts", b"by_rows")


class Target(NamedTuple):
    """A reader, good inputs, and its share of all inputs. ``kind``: the inputs are such messages. Half of the
    damaged ones then still are: of damaged bytes it is one in twenty.
    """

    name: str
    share: int
    samples: Sequence[bytes]
    read: Callable[[bytes, Random], object]
    kind: type[ProtocolMessage] | None = None

    def input(self, random: Random) -> bytes:
        sample, other = random.choice(self.samples), random.choice(self.samples)
        if self.kind is None or random.random() < 0.5:
            return damaged(sample, other, random)
        message = self.kind.FromString(sample)
        damaged_messages.change(message, random)
        return message.SerializeToString()


def damaged(sample: bytes, other: bytes, random: Random) -> bytes:
    """``sample`` with one to four changes; pieces of ``other`` may come into it."""
    content = bytearray(sample)
    for _ in range(random.randint(1, 4)):
        at, length = random.randint(0, len(content)), random.randint(0, 8)
        match random.randrange(6):
            case 0 if content:
                content[at % len(content)] ^= 1 << random.randrange(8)
            case 1:
                content[at : at + length] = random.randbytes(random.randint(0, 8))
            case 2:
                del content[at : at + length]
            case 3:
                content[at:at] = content[at : at + 8 * length]
            case 4:
                start = random.randint(0, len(other))
                content[at:at] = other[start : start + 8 * length]
            case _:
                del content[at:]
    return bytes(content)


# --- the readers


def _read_frames(data: bytes, random: Random) -> None:
    """As it comes, and with checksums that are right."""
    head = framing.HEAD_BYTES
    if random.random() < 0.5 and len(data) > head:
        arrays, header_bytes = struct.unpack_from("<HI", data, 6)
        rest = data[head : head + 8 * arrays + header_bytes]
        summed = data[:12] + zlib.crc32(rest).to_bytes(4, "little")
        data = summed + zlib.crc32(summed).to_bytes(4, "little") + data[head:]
    decoder = framing.FrameDecoder(_allocate)
    at = 0
    while at < len(data):
        size = random.randint(1, 100)
        decoder.feed(data[at : at + size])
        at += size


def _allocate(nbytes: int) -> Any:
    """Arrays of any size that is allowed: pages that nothing touches take no memory."""
    if nbytes > 1 << 30:
        raise MemoryError
    return np.empty(nbytes, np.uint8)


def _read_message(data: bytes, random: Random) -> None:
    payload = [np.zeros(random.choice((0, 8, 20000)), np.uint8) for _ in range(random.randrange(3))]
    message = decode(data, payload).message
    if message is not None and type(message.body) in (pb.RegisterGraph, pb.ExtendSession, pb.MakeCallable):
        read_graph(message)


def _read_extension(data: bytes, random: Random) -> None:
    message = decode(data, []).message
    if message is not None and type(message.body) is pb.ExtendSession:
        SessionGraph().extended(message).extended(message)


def _read_graph_def(data: bytes, random: Random) -> None:
    try:
        message = graph_pb2.GraphDef.FromString(data)
    except DecodeError:
        return
    with Graph():
        import_graph_def(message, name="")


def _read_manifest(data: bytes, random: Random) -> None:
    """``data`` without its checksum, which comes before it, or with one that is wrong."""
    crc = zlib.crc32(data) if random.random() < 0.9 else 1
    data = b'{"crc32": "%08x",' % crc + data
    decode_manifest(data, "a manifest")


def _read_schedule(data: bytes, random: Random) -> None:
    parse_schedule(data.decode("utf-8", "replace"))


def _read_table(data: bytes, random: Random) -> None:
    """``data`` is how a block is compressed, and the block; its checksum is right."""
    read_table(table_of(data[1:], data[0] if data else 0), "a table")


@functools.cache
def _table(path: Path) -> dict[bytes, bytes]:
    """A good one: to be copied before it is damaged."""
    return dict(sorted(read_table(path.read_bytes(), path.name).items()))


def _read_bundle(data: bytes, random: Random) -> None:
    """``data`` is the number of a key and its message in a checkpoint: the header's or a tensor's."""
    table = dict(_table(BUNDLE.with_suffix(".index")))
    table[BUNDLE_KEYS[data[0] % 3 if data else 0]] = data[1:]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "m.index").write_bytes(write_table(sorted(table.items())))
        Path(folder, "m.data-00000-of-00001").write_bytes(BUNDLE.with_suffix(BUNDLE_DATA).read_bytes())
        bundle = TensorBundle(f"{folder}/m")
        for name in bundle.entries:
            with suppress(FileNotFoundError):
                for piece in bundle.pieces(name):
                    piece.array()


def _read_slices(data: bytes, random: Random) -> None:
    """``data`` is the number of an entry in a checkpoint of version 1, and the entry: the list or a slice."""
    table = dict(_table(SLICES))
    keys = list(table)
    table[keys[data[0] % len(keys) if data else 0]] = data[1:]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m")
        path.write_bytes(write_table(sorted(table.items())))
        checkpoint = SliceCheckpoint(str(path))
        for name in checkpoint.entries:
            for piece in checkpoint.pieces(name):
                piece.array()


def _read_saved_model(data: bytes, random: Random) -> None:
    """The graph and its signatures: variables are not read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "saved_model.pb").write_bytes(data)
        load_model(folder).close()


def _read_tfjs(data: bytes, random: Random) -> None:
    """``data`` is the topology with its manifest; the weights beside it are those that it had."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (_graph_model() | {"model.json": data}).items():
            Path(folder, name).write_bytes(content)
        load_graph_model(f"{folder}/model.json").close()


def _read_frozen(data: bytes, random: Random) -> None:
    """As bytes, or as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.pbtxt" if data[:4] == b"node" else "m.pb")
        path.write_bytes(data)
        load_frozen_graph(path).close()


def _read_meta_graph(data: bytes, random: Random) -> None:
    with tempfile.TemporaryDirectory() as folder, Graph():
        Path(folder, "m.meta").write_bytes(data)
        tf.train.import_meta_graph(f"{folder}/m.meta")


@functools.cache
def _session() -> Any:
    """A session with a variable for each tensor of the sample."""
    with Graph() as graph:
        tf.get_variable("w", [2, 3])
        tf.get_variable("b", [3], tf.float64)
        return tf.Session(graph=graph)


def _read_safetensors(data: bytes, random: Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.safetensors")
        path.write_bytes(data)
        tf.train.load_safetensors(path, {"w": "w", "b": "b"}, _session())


def _read_onnx(data: bytes, random: Random) -> None:
    """``data``, or, for half of what is damaged, a good model with some fields changed, which parses. Built,
    not run: sizes that are asked for may be any.
    """
    good = damaged_models.samples()
    if data not in good and random.random() < 0.5:
        data = damaged_models.changed(random.choice(good), random.choice(good), random)
    flowrt.onnx.load(data).as_graph_model().close()


def _read_elastic(data: bytes, random: Random) -> None:
    decode_message(data)


def _safetensors() -> list[bytes]:
    header = (
        b'{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},'
        b'"b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]}}'
    )
    return [len(header).to_bytes(8, "little") + header + bytes(30)]


def _meta_graphs() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder, Graph():
        tf.get_variable("w", [2, 3])
        tf.train.Saver(file_format="tensorflow").export_meta_graph(f"{folder}/m.meta")
        return [Path(folder, "m.meta").read_bytes()]


@functools.cache
def _graph_model() -> dict[str, bytes]:
    """The files of a good one, by their names."""
    with tempfile.TemporaryDirectory() as folder:
        test_tfjs.write(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _saved_models() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder, Graph(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 3], name="x")
        y = tf.identity(tf.matmul(x, tf.ones([3, 2])), name="y")
        tf.saved_model.simple_save(session, f"{folder}/m", {"x": x}, {"y": y})
        return [Path(folder, "m", "saved_model.pb").read_bytes()]


def _graph_defs() -> list[bytes]:
    found = []
    with Graph() as graph:
        x = tf.placeholder(tf.float32, [None, 3])
        y = tf.reduce_sum(tf.nn.relu(tf.matmul(x, tf.ones([3, 2]))[:, :1]))
        found.append(graph.as_graph_def().SerializeToString())
        tf.cond(y > 0, lambda: tf.reshape(y, [1]), lambda: tf.zeros([1]))
        tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)])
        found.append(graph.as_graph_def(add_shapes=True).SerializeToString())
    return found


def _as_text(graph_def: bytes) -> bytes:
    return str(graph_pb2.GraphDef.FromString(graph_def)).encode()


def _manifest() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(f"{folder}/p", SMALL, max_shard_bytes=40)
        body = json.loads(Path(folder, "p.index.json").read_bytes())
    del body["crc32"]
    return json.dumps(body)[1:].encode()


@functools.cache
def _targets() -> list[Target]:
    graph = parse_subgraph(TEXT)
    fed = pb.ExtendSession(session="s", version=0, positions=[0, 1])
    extension = encode(6, Message(fed, (), graph)).header
    messages = [
        encode(1, Message(pb.Hello(protocol=1, version="1", task="/job:a/task:0", incarnation=5))),
        encode(2, Message(pb.RecvTensor(step=9, keys=["a;b;c;d;0:0"]))),
        encode(3, Message(pb.RunGraph(graph=1, step=2), [np.ones(3), np.arange(20)])),
        encode(4, Message(pb.Done(), [np.array([b"a", b"bc"], object)]), is_answer=True),
        encode(5, Message(pb.RegisterGraph(session="s"), [], graph)),
        encode_error(7, lost("/job:a/task:1", "reset"), ""),
    ]
    arrays = [np.arange(100, dtype=np.uint8), np.zeros(0, np.uint8)]
    pieces = *framing.encode(0, b"header", arrays), *framing.encode_checked(b"header", arrays)[0]
    schedules = [format_schedule(order(name, 2, 4)).encode() for name in ("gpipe", "1f1b")]
    entries, listed = _table(BUNDLE.with_suffix(".index")), _table(SLICES).values()
    elastic = Join("1", "worker 0", "h", "h:1"), Epoch(1, 0, ["worker 0"], ["h:1"], 7)
    compressed = b"\1\x11\x0c\0\1\5a\x05\x01\x1c" + struct.pack("<II", 0, 1)
    block = b"\0\1\5aaaaaa\1\1\2bcc" + struct.pack("<II", 0, 1)
    return [
        Target("frames", 30, [b"".join(map(bytes, pieces)), bytes(framing.encode(2, b"")[0])], _read_frames),
        Target("messages", 30, [message.header for message in messages], _read_message, pb.Envelope),
        Target("manifests", 15, [_manifest()], _read_manifest),
        Target("schedules", 15, schedules, _read_schedule),
        Target("extensions", 5, [extension], _read_extension, pb.Envelope),
        Target("graph_defs", 5, _graph_defs(), _read_graph_def, graph_pb2.GraphDef),
        Target("tables", 5, [b"\0" + block, compressed], _read_table),
        Target("bundles", 2, [bytes([i]) + entries[key] for i, key in enumerate(BUNDLE_KEYS)], _read_bundle),
        Target("slices", 2, [bytes([i]) + value for i, value in enumerate(listed)], _read_slices),
        Target("saved_models", 2, _saved_models(), _read_saved_model, meta_graph_pb2.SavedModel),
        Target("frozen", 2, [data for g in _graph_defs() for data in (g, _as_text(g))], _read_frozen),
        Target("meta_graphs", 2, _meta_graphs(), _read_meta_graph, meta_graph_pb2.MetaGraphDef),
        Target("tfjs", 2, [_graph_model()["model.json"]], _read_tfjs),
        Target("safetensors", 2, _safetensors(), _read_safetensors),
        Target("onnx", 5, damaged_models.samples(), _read_onnx),
        Target("elastic", 5, [encode_message(message) for message in elastic], _read_elastic),
    ]


# --- the run


class Found(NamedTuple):
    """``escaped``: (number, target, traceback)."""

    inputs: Counter[str]
    refused: Counter[str]
    escaped: list[tuple[int, str, str]]
    grown: int


def run(
    numbers: range,
    seed: int,
    say: Callable[[str], object] = lambda text: None,
    readers: Sequence[str] | None = None,
) -> Found:
    """Read the inputs with these ``numbers``, by ``readers`` or all; ``say`` is told about each `PIECE`."""
    targets = [target for target in _targets() if readers is None or target.name in readers]
    turns = [target for target in targets for _ in range(target.share)]
    inputs, refused, escaped = Counter[str](), Counter[str](), list[tuple[int, str, str]]()
    warm, before = numbers.start + len(numbers) // 10, 0
    for number in numbers:
        if number == warm:
            before = _memory()
        target = turns[number % len(turns)]
        source = random.Random(f"{seed}/{number}")
        data = target.input(source)
        inputs[target.name] += 1
        try:
            target.read(data, source)
        except OpError:
            refused[target.name] += 1
        except Exception:  # noqa: BLE001 (reported)
            escaped.append((number, target.name, traceback.format_exc()))
        if (number + 1 - numbers.start) % PIECE == 0:
            say(f"seed {seed}: to {number:,}: {len(escaped)} escaped, {_memory() >> 20} MiB")
    return Found(inputs, refused, escaped, _memory() - before)


_HEAP_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class _Heap(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns: bytes, and numbers of pieces."""

    _fields_ = [(name, ctypes.c_size_t) for name in _HEAP_FIELDS]


def _memory() -> int:
    """Bytes in use: of C's heap, and of Python's blocks, about 64 each. Resident memory says less: an input
    that takes much once leaves 5 to 20 MiB of the heap free, in pieces that are not given back.
    """
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Heap
    heap = mallinfo2()
    return int(heap.uordblks + heap.hblkhd) + 64 * sys.getallocatedblocks()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--only", type=int)
    parser.add_argument("--readers", nargs="+", choices=[target.name for target in _targets()])
    given = parser.parse_args(arguments)
    first, count = (given.first, given.inputs) if given.only is None else (given.only, 1)
    numbers = range(first, first + count)
    began = time.monotonic()
    found = run(numbers, given.seed, lambda text: print(text, flush=True), given.readers)
    for name, count in found.inputs.items():
        print(f"{name:12} {count:9,} inputs, {found.refused[name]:9,} refused")
    for number, name, text in found.escaped[:10]:
        again = f"--seed {given.seed} --only {number}"
        if given.readers:
            again += f" --readers {' '.join(given.readers)}"
        print(f"\n{name}: python -m tests.fuzz {again}\n{text}")
    print(
        f"seed {given.seed}: {len(numbers):,} inputs in {time.monotonic() - began:.0f} s, "
        f"{len(found.escaped)} escaped, grown by {found.grown >> 10} KiB"
    )
    grows = given.only is None and found.grown > MAX_GROWTH
    return 1 if found.escaped or grows else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
