"""``flowrt.python_io``: TFRecord files, written and read by Python.

tf_records    `TFRecordWriter`, `tf_record_iterator`
"""

from flowrt.python_io.tf_records import TFRecordCompressionType as TFRecordCompressionType
from flowrt.python_io.tf_records import TFRecordOptions as TFRecordOptions
from flowrt.python_io.tf_records import TFRecordWriter as TFRecordWriter
from flowrt.python_io.tf_records import tf_record_iterator as tf_record_iterator
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("python_io")
