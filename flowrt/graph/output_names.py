"""The names that TensorFlow gives the outputs of ops: inside functions, GraphDef names a tensor
"node:output:index", not "node:number".

Rule: what is not listed here has the names of flowrt's own signature; one output without a name is "output".
An op that is written as another (`flowrt.graph.graph_def.WRITTEN_AS`) has that one's names.
`tests/graph/test_functions_in_tensorflow.py` compares all with TensorFlow's, where it is installed.
"""

from __future__ import annotations

from flowrt.graph.op_def import OpDef

_OPS_BY_OUTPUTS = {
    "y": """
        Abs Acos Acosh Asin Asinh Atan Atanh Cast Ceil ComplexAbs ConjugateTranspose Cos Cosh Digamma Erf Erfc
        Erfinv Exp Expm1 Floor Inv Invert InvertPermutation IsFinite IsInf IsNan Lgamma Log Log1p LogicalNot
        Neg OnesLike Reciprocal Rint Round Rsqrt Sigmoid Sign Sin Sinh Sqrt Square Tan Tanh
        TensorListZerosLike Transpose ZerosLike
        """,
    "z": """
        Add AddV2 ApproximateEqual Atan2 BitwiseAnd BitwiseOr BitwiseXor Div DivNoNan Equal FloorDiv FloorMod
        Greater GreaterEqual LeftShift Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mul MulNoNan
        NotEqual Polygamma Pow RealDiv ReciprocalGrad RightShift RsqrtGrad SigmoidGrad SqrtGrad
        SquaredDifference Sub TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy
        """,
    "activations": "Elu LeakyRelu Relu Relu6 Selu Softplus Softsign",
    "backprops": "EluGrad LeakyReluGrad Relu6Grad ReluGrad SeluGrad SoftplusGrad SoftsignGrad",
    "average": "ResourceAccumulatorTakeGradient",
    "band": "MatrixBandPart",
    "bins": "Bincount",
    "components": "IteratorGetNext QueueDequeueManyV2 QueueDequeueUpToV2 QueueDequeueV2",
    "dense": "SparseToDense",
    "diagonal": "DiagPart MatrixDiagPart",
    "e v": "SelfAdjointEigV2",
    "handle": """
        Barrier EmptyTensorList FIFOQueueV2 GetSessionHandleV2 IteratorV2 OneShotIterator PaddingFIFOQueueV2
        PriorityQueueV2 RandomShuffleQueueV2 ResourceConditionalAccumulator SparseConditionalAccumulator
        TensorListReserve
        """,
    "index": "Where",
    "indices values shape": "SparseAccumulatorTakeGradient",
    "is_closed": "QueueIsClosedV2",
    "is_initialized": "VarIsInitializedOp",
    "item": "TensorListGetItem",
    "length": "TensorListLength",
    "logsoftmax": "LogSoftmax",
    "loss backprop": "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
    "merged": "DynamicStitch",
    "num_accumulated": "ResourceAccumulatorNumAccumulated",
    "out": "Complex CumulativeLogsumexp Cumprod Cumsum HistogramFixedWidth",
    "out idx": "ListDiff",
    "output_handle": """
        TensorListFromTensor TensorListPushBack TensorListResize TensorListScatterIntoExistingList
        TensorListScatterV2 TensorListSetItem TensorListSplit
        """,
    "output_handle tensor": "TensorListPopBack",
    "outputs": "DynamicPartition",
    "precision": "InTopKV2",
    "product": "Cross MatMul",
    "q r": "Qr",
    "r0": "BroadcastArgs",
    "r0 r1": "BroadcastGradientArgs",
    "resource": "VarHandleOp",
    "s u v": "Svd",
    "sign log_abs_determinant": "LogMatrixDeterminant",
    "size": "QueueSizeV2",
    "softmax": "Softmax",
    "sum": "AddN TensorListAdd",
    "summary": "HistogramSummary ImageSummary MergeSummary ScalarSummary TensorSummaryV2",
    "tensor": "TensorListStack _Recv",
    "tensor lengths": "TensorListConcatV2",
    "ts": "Timestamp",
    "value": "GetSessionTensor ReadVariableOp",
    "values": "TensorListGather",
    "values indices": "TopKV2",
    "x_backprop scale_backprop offset_backprop reserve_space_4 reserve_space_5": "FusedBatchNormGradV3",
    "y batch_mean batch_variance reserve_space_1 reserve_space_2 reserve_space_3": "FusedBatchNormV3",
    "y idx": "Unique",
    "y idx count": "UniqueWithCounts",
}
_OUTPUTS = {op: tuple(outputs.split()) for outputs, ops in _OPS_BY_OUTPUTS.items() for op in ops.split()}


def output_names(op: OpDef) -> tuple[str, ...]:
    """The names of the outputs of ``op``, one an argument of its signature."""
    found = _OUTPUTS.get(op.name)
    if found is not None:
        return found
    names = tuple(argument.name for argument in op.outputs)
    return ("output",) if names == ("output_0",) else names
