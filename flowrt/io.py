"""``flowrt.io``: files, under the names of later TensorFlow 1 versions."""

from flowrt.functions.parsing import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
    decode_csv,
    parse_example,
    parse_single_example,
)
from flowrt.functions.sequence_examples import parse_single_sequence_example
from flowrt.graph.ops.text.files import matching_files, read_file, write_file
from flowrt.graph.ops.text.strings import decode_base64, decode_raw, encode_base64
from flowrt.image.codecs import (
    decode_and_crop_jpeg,
    decode_bmp,
    decode_gif,
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
    extract_jpeg_shape,
    is_jpeg,
)
from flowrt.python_io import TFRecordCompressionType, TFRecordOptions, TFRecordWriter, tf_record_iterator
from flowrt.tf1 import io_gfile as gfile
from flowrt.tf1.missing_names import missing_from
from flowrt.train.checkpoints.graph_file import write_graph

__all__ = [
    "FixedLenFeature", "FixedLenSequenceFeature", "TFRecordCompressionType", "TFRecordOptions",
    "TFRecordWriter", "VarLenFeature", "decode_and_crop_jpeg", "decode_base64", "decode_bmp", "decode_csv",
    "decode_gif", "decode_image", "decode_jpeg", "decode_png", "decode_raw", "encode_base64", "encode_jpeg",
    "encode_png", "extract_jpeg_shape", "gfile", "is_jpeg", "matching_files", "parse_example",
    "parse_single_example", "parse_single_sequence_example", "read_file", "tf_record_iterator", "write_file",
    "write_graph",
]  # fmt: skip


__getattr__ = missing_from("io")
