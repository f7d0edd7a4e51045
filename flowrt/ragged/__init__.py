"""``flowrt.ragged``: rows of different lengths. See `flowrt.RaggedTensor`.

parts_of_strings    strings split into rows, and operations on single strings
segments            ids and ends of rows, values stacked by partition, placeholders
"""

from flowrt.graph.ops.ragged import reducing as _reducing  # gives reduce_sum its ragged form
from flowrt.graph.ops.ragged.elementwise import map_flat_values
from flowrt.graph.ops.ragged.ragged_tensor import RaggedTensor
from flowrt.graph.ops.ragged.rows import boolean_mask, constant, constant_value, range, where
from flowrt.graph.ops.ragged.rows import stack_rows as stack
from flowrt.graph.ops.ragged.values import RaggedTensorValue
from flowrt.ragged import parts_of_strings as _strings
from flowrt.ragged.segments import (
    placeholder,
    row_splits_to_segment_ids,
    segment_ids_to_row_splits,
    stack_dynamic_partitions,
)
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "RaggedTensor", "RaggedTensorValue", "boolean_mask", "constant", "constant_value", "map_flat_values",
    "placeholder", "range", "row_splits_to_segment_ids", "segment_ids_to_row_splits", "stack",
    "stack_dynamic_partitions", "where",
]  # fmt: skip

__getattr__ = missing_from("ragged")
