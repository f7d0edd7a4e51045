"""The wire form of every message, held by golden bytes written by hand from the protobuf encoding.

A golden byte string is a row of fields: a tag (field number << 3 | wire type: 0 varint, 1 eight bytes, 2
length and bytes, 5 four bytes) and the value. The numbers are TensorFlow's: changing one breaks every file
that exists.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from flowrt import dtypes
from flowrt.protos import event_pb2, graph_pb2, step_stats_pb2
from flowrt.protos.event_pb2 import (
    Event,
    HistogramProto,
    SessionLog,
    Summary,
    SummaryMetadata,
    TaggedRunMetadata,
)
from flowrt.protos.graph_pb2 import (
    AttrValue,
    FunctionDef,
    FunctionDefLibrary,
    GraphDef,
    NameAttrList,
    NodeDef,
    OpDef,
    TensorProto,
    TensorShapeProto,
    VersionDef,
)
from flowrt.protos.step_stats_pb2 import (
    AllocationDescription,
    AllocatorMemoryUsed,
    CostGraphDef,
    NodeExecStats,
    NodeOutput,
    RunMetadata,
    StepStats,
    TensorDescription,
)

ROOT = Path(__file__).parents[2]
DATA_TYPES = """
INVALID FLOAT DOUBLE INT32 UINT8 INT16 INT8 STRING COMPLEX64 INT64 BOOL QINT8 QUINT8 QINT32 BFLOAT16 QINT16
QUINT16 UINT16 COMPLEX128 HALF RESOURCE VARIANT UINT32 UINT64 FLOAT8_E5M2 FLOAT8_E4M3FN FLOAT8_E4M3FNUZ
FLOAT8_E4M3B11FNUZ FLOAT8_E5M2FNUZ INT4 UINT4
"""  # in the order of their numbers
FILES = (graph_pb2, step_stats_pb2, event_pb2)


def field(number: int, value: bytes) -> bytes:
    """A field of bytes, both its number and its length below 128 / 16."""
    return bytes([number << 3 | 2, len(value)]) + value


def double(number: int, value: float) -> bytes:
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


GOLDEN: list[tuple[str, Message, bytes]] = [
    (
        "shape",
        TensorShapeProto(dim=[TensorShapeProto.Dim(size=2), TensorShapeProto.Dim(size=-1, name="n")]),
        b"\x12\x02\x08\x02" + b"\x12\x0e\x08" + b"\xff" * 9 + b"\x01\x12\x01n",
    ),
    ("unknown rank", TensorShapeProto(unknown_rank=True), b"\x18\x01"),
    (
        "tensor content",
        TensorProto(
            dtype=1,
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
            version_number=3,
            tensor_content=b"\0\0\x80\x3f",
        ),
        b"\x08\x01" + b"\x12\x04\x12\x02\x08\x01" + b"\x18\x03" + b"\x22\x04\0\0\x80\x3f",
    ),
    ("float_val", TensorProto(float_val=[1.0, 2.0]), b"\x2a\x08\0\0\x80\x3f\0\0\0\x40"),
    ("double_val", TensorProto(double_val=[1.0]), b"\x32\x08\0\0\0\0\0\0\xf0\x3f"),
    ("int_val", TensorProto(int_val=[7, 300]), b"\x3a\x03\x07\xac\x02"),
    ("string_val", TensorProto(string_val=[b"a", b""]), b"\x42\x01a\x42\x00"),
    ("scomplex_val", TensorProto(scomplex_val=[1.0, 0.0]), b"\x4a\x08\0\0\x80\x3f\0\0\0\0"),
    ("int64_val", TensorProto(int64_val=[-1]), b"\x52\x0a" + b"\xff" * 9 + b"\x01"),
    ("bool_val", TensorProto(bool_val=[True, False]), b"\x5a\x02\x01\x00"),
    ("dcomplex_val", TensorProto(dcomplex_val=[1.0, 0.0]), b"\x62\x10\0\0\0\0\0\0\xf0\x3f" + b"\0" * 8),
    ("half_val", TensorProto(half_val=[0x3C00]), b"\x6a\x02\x80\x78"),
    ("uint32_val", TensorProto(uint32_val=[5]), b"\x82\x01\x01\x05"),
    ("uint64_val", TensorProto(uint64_val=[2**64 - 1]), b"\x8a\x01\x0a" + b"\xff" * 9 + b"\x01"),
    ("float8_val", TensorProto(float8_val=b"\x38"), b"\x92\x01\x01\x38"),
    ("attr list", AttrValue(list=AttrValue.ListValue()), b"\x0a\x00"),
    ("attr s", AttrValue(s=b"x"), b"\x12\x01x"),
    ("attr i", AttrValue(i=5), b"\x18\x05"),
    ("attr f", AttrValue(f=1.0), b"\x25\0\0\x80\x3f"),
    ("attr b", AttrValue(b=False), b"\x28\x00"),
    ("attr type", AttrValue(type=14), b"\x30\x0e"),
    ("attr shape", AttrValue(shape=TensorShapeProto()), b"\x3a\x00"),
    ("attr tensor", AttrValue(tensor=TensorProto(dtype=3)), b"\x42\x02\x08\x03"),
    ("attr placeholder", AttrValue(placeholder="T"), b"\x4a\x01T"),
    (
        "attr func",
        AttrValue(func=NameAttrList(name="f", attr={"k": AttrValue(i=1)})),
        b"\x52\x0c\x0a\x01f\x12\x07\x0a\x01k\x12\x02\x18\x01",
    ),
    (
        "attr list of everything",
        AttrValue.ListValue(
            s=[b"x"],
            i=[1, 2],
            f=[1.0],
            b=[True],
            type=[1, 3],
            shape=[TensorShapeProto()],
            tensor=[TensorProto()],
            func=[NameAttrList()],
        ),
        b"\x12\x01x\x1a\x02\x01\x02\x22\x04\0\0\x80\x3f\x2a\x01\x01\x32\x02\x01\x03\x3a\x00\x42\x00\x4a\x00",
    ),
    (
        "node",
        NodeDef(
            name="y",
            op="Add",
            input=["a", "b:1", "^c"],
            device="/cpu:0",
            attr={"T": AttrValue(type=1)},
            experimental_debug_info=NodeDef.ExperimentalDebugInfo(
                original_node_names=["o"], original_func_names=["f"]
            ),
        ),
        b"\x0a\x01y\x12\x03Add\x1a\x01a\x1a\x03b:1\x1a\x02^c\x22\x06/cpu:0"
        b"\x2a\x07\x0a\x01T\x12\x02\x30\x01\x32\x06\x0a\x01o\x12\x01f",
    ),
    ("versions", VersionDef(producer=9, min_consumer=2, bad_consumers=[3]), b"\x08\x09\x10\x02\x1a\x01\x03"),
    (
        "op arg",
        OpDef.ArgDef(
            name="x", description="d", type=1, type_attr="T", number_attr="N", type_list_attr="L", is_ref=True
        ),
        b"\x0a\x01x\x12\x01d\x18\x01\x22\x01T\x2a\x01N\x32\x01L\x80\x01\x01",
    ),
    (
        "op attr",
        OpDef.AttrDef(
            name="N",
            type="int",
            default_value=AttrValue(i=1),
            description="d",
            has_minimum=True,
            minimum=1,
            allowed_values=AttrValue(i=2),
        ),
        b"\x0a\x01N\x12\x03int\x1a\x02\x18\x01\x22\x01d\x28\x01\x30\x01\x3a\x02\x18\x02",
    ),
    (
        "op",
        OpDef(
            name="A",
            input_arg=[OpDef.ArgDef()],
            output_arg=[OpDef.ArgDef()],
            attr=[OpDef.AttrDef()],
            summary="s",
            description="d",
            deprecation=graph_pb2.OpDeprecation(version=1, explanation="e"),
            is_aggregate=True,
            is_stateful=True,
            is_commutative=True,
            allows_uninitialized_input=True,
            control_output=["c"],
            is_distributed_communication=True,
        ),
        b"\x0a\x01A\x12\x00\x1a\x00\x22\x00\x2a\x01s\x32\x01d\x42\x05\x08\x01\x12\x01e\x80\x01\x01\x88\x01\x01"
        b"\x90\x01\x01\x98\x01\x01\xa2\x01\x01c\xa8\x01\x01",
    ),
    (
        "function",
        FunctionDef(
            signature=OpDef(),
            node_def=[NodeDef()],
            ret={"r": "n:o:0"},
            attr={"a": AttrValue(i=1)},
            control_ret={"c": "n"},
            arg_attr={1: FunctionDef.ArgAttrs(attr={"k": AttrValue(b=True)})},
            resource_arg_unique_id={2: 7},
        ),
        b"\x0a\x00\x1a\x00"
        + field(4, b"\x0a\x01r\x12\x05n:o:0")
        + field(5, b"\x0a\x01a\x12\x02\x18\x01")
        + field(6, b"\x0a\x01c\x12\x01n")
        + field(7, b"\x08\x01\x12\x09\x0a\x07\x0a\x01k\x12\x02\x28\x01")
        + field(8, b"\x08\x02\x10\x07"),
    ),
    (
        "library",
        FunctionDefLibrary(
            function=[FunctionDef()],
            gradient=[graph_pb2.GradientDef(function_name="f", gradient_func="g")],
            registered_gradients=[graph_pb2.RegisteredGradient(gradient_func="g", registered_op_type="t")],
        ),
        b"\x0a\x00\x12\x06\x0a\x01f\x12\x01g\x1a\x06\x0a\x01g\x12\x01t",
    ),
    (
        "graph",
        GraphDef(
            node=[NodeDef(name="a")], library=FunctionDefLibrary(), version=1, versions=VersionDef(producer=9)
        ),
        b"\x0a\x03\x0a\x01a\x12\x00\x18\x01\x22\x02\x08\x09",
    ),
    (
        "allocation",
        AllocationDescription(
            requested_bytes=1,
            allocated_bytes=2,
            allocator_name="c",
            allocation_id=4,
            has_single_reference=True,
            ptr=6,
        ),
        b"\x08\x01\x10\x02\x1a\x01c\x20\x04\x28\x01\x30\x06",
    ),
    (
        "allocator memory",
        AllocatorMemoryUsed(
            allocator_name="c",
            total_bytes=2,
            peak_bytes=3,
            live_bytes=4,
            allocator_bytes_in_use=5,
            allocation_records=[step_stats_pb2.AllocationRecord(alloc_micros=1, alloc_bytes=2)],
        ),
        b"\x0a\x01c\x10\x02\x18\x03\x20\x04\x28\x05\x32\x04\x08\x01\x10\x02",
    ),
    (
        "node output",
        NodeOutput(
            slot=1,
            tensor_description=TensorDescription(
                dtype=1, shape=TensorShapeProto(), allocation_description=AllocationDescription()
            ),
        ),
        b"\x08\x01\x1a\x06\x08\x01\x12\x00\x22\x00",
    ),
    (
        "node stats",
        NodeExecStats(
            node_name="n",
            all_start_micros=2,
            op_start_rel_micros=3,
            op_end_rel_micros=4,
            all_end_rel_micros=5,
            memory=[AllocatorMemoryUsed()],
            output=[NodeOutput()],
            timeline_label="l",
            scheduled_micros=9,
            thread_id=10,
            referenced_tensor=[AllocationDescription()],
            memory_stats=step_stats_pb2.MemoryStats(
                temp_memory_size=1, persistent_memory_size=3, persistent_tensor_alloc_ids=[5]
            ),
            all_start_nanos=13,
            op_start_rel_nanos=14,
            op_end_rel_nanos=15,
            all_end_rel_nanos=16,
            scheduled_nanos=17,
        ),
        b"\x0a\x01n\x10\x02\x18\x03\x20\x04\x28\x05\x32\x00\x3a\x00\x42\x01l\x48\x09\x50\x0a\x5a\x00"
        b"\x62\x07\x08\x01\x18\x03\x2a\x01\x05\x68\x0d\x70\x0e\x78\x0f\x80\x01\x10\x88\x01\x11",
    ),
    (
        "step stats",
        StepStats(
            dev_stats=[
                step_stats_pb2.DeviceStepStats(
                    device="d", node_stats=[NodeExecStats()], thread_names={1: "t"}
                )
            ]
        ),
        b"\x0a\x0c\x0a\x01d\x12\x00\x1a\x05\x08\x01\x12\x01t",
    ),
    (
        "cost graph",
        CostGraphDef(
            node=[
                CostGraphDef.Node(
                    name="n",
                    device="d",
                    id=3,
                    input_info=[CostGraphDef.Node.InputInfo(preceding_node=1, preceding_port=2)],
                    output_info=[
                        CostGraphDef.Node.OutputInfo(
                            size=1, alias_input_port=2, shape=TensorShapeProto(), dtype=4
                        )
                    ],
                    temporary_memory_size=6,
                    is_final=True,
                    control_input=[8],
                    compute_cost=9,
                    persistent_memory_size=12,
                    compute_time=14,
                    memory_time=15,
                    inaccurate=True,
                )
            ],
            cost=[CostGraphDef.AggregatedCost(cost=1.0, dimension="d")],
        ),
        field(
            1,
            b"\x0a\x01n\x12\x01d\x18\x03\x22\x04\x08\x01\x10\x02\x2a\x08\x08\x01\x10\x02\x1a\x00\x20\x04\x30\x06"
            b"\x38\x01\x42\x01\x08\x48\x09\x60\x0c\x70\x0e\x78\x0f\x88\x01\x01",
        )
        + field(2, b"\x0d\0\0\x80\x3f\x12\x01d"),
    ),
    (
        "run metadata",
        RunMetadata(
            step_stats=StepStats(),
            cost_graph=CostGraphDef(),
            partition_graphs=[GraphDef()],
            function_graphs=[
                RunMetadata.FunctionGraphs(
                    partition_graphs=[GraphDef()],
                    pre_optimization_graph=GraphDef(),
                    post_optimization_graph=GraphDef(),
                )
            ],
        ),
        b"\x0a\x00\x12\x00\x1a\x00\x22\x06\x0a\x00\x12\x00\x1a\x00",
    ),
    (
        "histogram",
        HistogramProto(min=1, max=2, num=3, sum=4, sum_squares=5, bucket_limit=[6], bucket=[7]),
        b"".join(double(i, i) for i in range(1, 6))
        + field(6, struct.pack("<d", 6))
        + field(7, struct.pack("<d", 7)),
    ),
    (
        "summary simple",
        Summary(value=[Summary.Value(tag="t", simple_value=1.0)]),
        b"\x0a\x08\x0a\x01t\x15\0\0\x80\x3f",
    ),
    (
        "summary image",
        Summary.Value(image=Summary.Image(height=1, width=2, colorspace=3, encoded_image_string=b"png")),
        b"\x22\x0b\x08\x01\x10\x02\x18\x03\x22\x03png",
    ),
    ("summary histo", Summary.Value(histo=HistogramProto()), b"\x2a\x00"),
    (
        "summary audio",
        Summary.Value(
            audio=Summary.Audio(
                sample_rate=1.0, num_channels=2, length_frames=3, encoded_audio_string=b"w", content_type="c"
            )
        ),
        b"\x32\x0f\x0d\0\0\x80\x3f\x10\x02\x18\x03\x22\x01w\x2a\x01c",
    ),
    (
        "summary tensor",
        Summary.Value(
            node_name="n",
            tensor=TensorProto(),
            metadata=SummaryMetadata(
                plugin_data=SummaryMetadata.PluginData(plugin_name="p", content=b"c"),
                display_name="d",
                summary_description="s",
                data_class=event_pb2.DATA_CLASS_TENSOR,
            ),
        ),
        b"\x3a\x01n\x42\x00\x4a\x10\x0a\x06\x0a\x01p\x12\x01c\x12\x01d\x1a\x01s\x20\x02",
    ),
    ("event version", Event(wall_time=1.0, file_version="v"), b"\x09\0\0\0\0\0\0\xf0\x3f\x1a\x01v"),
    ("event graph", Event(step=5, graph_def=b"g"), b"\x10\x05\x22\x01g"),
    ("event summary", Event(summary=Summary()), b"\x2a\x00"),
    (
        "event session log",
        Event(session_log=SessionLog(status=SessionLog.CHECKPOINT, checkpoint_path="p", msg="m")),
        b"\x3a\x08\x08\x03\x12\x01p\x1a\x01m",
    ),
    (
        "event run metadata",
        Event(tagged_run_metadata=TaggedRunMetadata(tag="t", run_metadata=b"r")),
        b"\x42\x06\x0a\x01t\x12\x01r",
    ),
    (
        "event meta graph",
        Event(meta_graph_def=b"m", source_metadata=event_pb2.SourceMetadata(writer="w")),
        b"\x4a\x01m\x52\x03\x0a\x01w",
    ),
]


@pytest.mark.parametrize(
    ("message", "encoded"), [case[1:] for case in GOLDEN], ids=[case[0] for case in GOLDEN]
)
def test_a_message_has_its_golden_bytes(message: Message, encoded: bytes) -> None:
    assert message.SerializeToString(deterministic=True) == encoded
    assert type(message).FromString(encoded) == message


def test_every_declared_field_stands_in_a_golden_message() -> None:
    declared = {
        field.full_name for file in FILES for field in _fields(file.DESCRIPTOR.message_types_by_name.values())
    }
    assert declared - {name for _, message, _ in GOLDEN for name in _set_fields(message)} == set()


def _fields(messages: Iterable[Descriptor]) -> Iterator[FieldDescriptor]:
    for message in messages:
        if not message.GetOptions().map_entry:
            yield from message.fields
            yield from _fields(message.nested_types)


def _set_fields(message: Message) -> Iterator[str]:
    for field, value in message.ListFields():
        yield field.full_name
        if field.message_type is None:
            continue
        is_map = field.message_type.GetOptions().map_entry
        for part in [value] if isinstance(value, Message) else value.values() if is_map else value:
            if isinstance(part, Message):
                yield from _set_fields(part)


def test_a_field_that_flowrt_does_not_read_passes_through() -> None:
    resource_handle = b"\x08\x14" + field(14, b"\x0a\x04/cpu")  # dtype DT_RESOURCE, resource_handle_val
    assert TensorProto.FromString(resource_handle).SerializeToString() == resource_handle


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda dtype: dtype.name)
def test_a_dtype_has_the_number_of_its_data_type(dtype: dtypes.DType) -> None:
    name = {"float32": "float", "float64": "double", "float16": "half"}.get(dtype.name, dtype.name)
    assert graph_pb2.DataType.Value(f"DT_{name.upper()}") == dtype.number


def test_data_types_have_tensorflows_numbers() -> None:
    names = DATA_TYPES.split()
    expected = {f"DT_{name}": number for number, name in enumerate(names)}
    expected |= {f"DT_{name}_REF": 100 + number for number, name in enumerate(names[:24]) if number}
    assert dict(graph_pb2.DataType.items()) == expected


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.DESCRIPTOR.name)
def test_a_file_is_registered_under_our_own_name(file: ModuleType) -> None:
    """Two packages with one file name or message name cannot be loaded into one process."""
    assert file.DESCRIPTOR.package == "flowrt"
    assert file.DESCRIPTOR.name.startswith("flowrt/protos/")


def test_the_generated_modules_are_those_of_the_proto_files(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="needs a protoc: grpcio-tools")
    names = [file.DESCRIPTOR.name for file in FILES]
    protoc = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I.",
        f"--descriptor_set_out={tmp_path / 'set'}",
        *names,
    ]
    subprocess.run(protoc, cwd=ROOT, check=True, timeout=200)
    compiled = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "set").read_bytes())
    committed = [
        descriptor_pb2.FileDescriptorProto.FromString(file.DESCRIPTOR.serialized_pb) for file in FILES
    ]
    for file in compiled.file:
        _drop_json_names(file.message_type)
    assert list(compiled.file) == committed


def _drop_json_names(messages: Iterable[descriptor_pb2.DescriptorProto]) -> None:
    """protoc puts them into a descriptor set, not into a module."""
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        _drop_json_names(message.nested_type)
