"""``flowrt.sparse``: sparse tensors, under the names of later TensorFlow 1 versions."""

from flowrt.functions.sparse_arithmetic import sparse_add as add
from flowrt.functions.sparse_arithmetic import sparse_concat as concat
from flowrt.functions.sparse_arithmetic import sparse_maximum as maximum
from flowrt.functions.sparse_arithmetic import sparse_minimum as minimum
from flowrt.functions.sparse_arithmetic import sparse_slice as slice
from flowrt.functions.sparse_arithmetic import sparse_softmax as softmax
from flowrt.functions.sparse_functions import sparse_fill_empty_rows as fill_empty_rows
from flowrt.functions.sparse_functions import sparse_placeholder as placeholder
from flowrt.functions.sparse_functions import sparse_reduce_sum as reduce_sum
from flowrt.functions.sparse_functions import sparse_reorder as reorder
from flowrt.functions.sparse_functions import sparse_reshape as reshape
from flowrt.functions.sparse_functions import sparse_retain as retain
from flowrt.functions.sparse_functions import sparse_tensor_dense_matmul as matmul
from flowrt.functions.sparse_functions import sparse_tensor_dense_matmul as sparse_dense_matmul
from flowrt.functions.sparse_functions import sparse_tensor_to_dense as to_dense
from flowrt.functions.sparse_functions import sparse_transpose as transpose
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "SparseTensor", "add", "concat", "fill_empty_rows", "matmul", "maximum", "minimum", "placeholder",
    "reduce_sum", "reorder", "reshape", "retain", "slice", "softmax", "sparse_dense_matmul", "to_dense",
    "transpose",
]  # fmt: skip

__getattr__ = missing_from("sparse")
