"""``flowrt.sparse``: sparse tensors, under the names of later TensorFlow 1 versions."""

from flowrt.dataflow.accumulators import SparseConditionalAccumulator
from flowrt.functions.sparse_arithmetic import sparse_add as add
from flowrt.functions.sparse_arithmetic import sparse_concat as concat
from flowrt.functions.sparse_arithmetic import sparse_maximum as maximum
from flowrt.functions.sparse_arithmetic import sparse_minimum as minimum
from flowrt.functions.sparse_arithmetic import sparse_slice as slice
from flowrt.functions.sparse_arithmetic import sparse_softmax as softmax
from flowrt.functions.sparse_forms import sparse_expand_dims as expand_dims
from flowrt.functions.sparse_forms import sparse_eye as eye
from flowrt.functions.sparse_forms import sparse_from_dense as from_dense
from flowrt.functions.sparse_forms import sparse_mask as mask
from flowrt.functions.sparse_forms import sparse_merge as merge
from flowrt.functions.sparse_forms import sparse_reset_shape as reset_shape
from flowrt.functions.sparse_forms import sparse_split as split
from flowrt.functions.sparse_forms import sparse_to_indicator as to_indicator
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
from flowrt.functions.sparse_reductions import sparse_reduce_max as reduce_max
from flowrt.functions.sparse_reductions import sparse_reduce_max_sparse as reduce_max_sparse
from flowrt.functions.sparse_reductions import sparse_reduce_sum_sparse as reduce_sum_sparse
from flowrt.functions.sparse_reductions import sparse_segment_mean as segment_mean
from flowrt.functions.sparse_reductions import sparse_segment_sqrt_n as segment_sqrt_n
from flowrt.functions.sparse_reductions import sparse_segment_sum as segment_sum
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "SparseConditionalAccumulator", "SparseTensor", "add", "concat", "expand_dims", "eye",
    "fill_empty_rows", "from_dense", "mask", "matmul", "maximum", "merge", "minimum", "placeholder",
    "reduce_max", "reduce_max_sparse", "reduce_sum", "reduce_sum_sparse", "reorder", "reset_shape",
    "reshape", "retain", "segment_mean", "segment_sqrt_n", "segment_sum", "slice", "softmax",
    "sparse_dense_matmul", "split", "to_dense", "to_indicator", "transpose",
]  # fmt: skip

__getattr__ = missing_from("sparse")
