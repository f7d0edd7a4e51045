"""Ops of TensorFlow 1 that only nodes being imported have: control flow by dead tensors, and arrays and
stacks with handles.

They are not registered and have neither rules nor kernels: `flowrt.tf1.graph_import.import_control_flow` and
`flowrt.tf1.graph_import.import_lists` replace all of them.
"""

from __future__ import annotations

from flowrt.graph.op_def import OpDef
from flowrt.tf1.composed_ops.composition import imported_op

V1_OPS: dict[str, OpDef] = {}


def _define(name: str, signature: str, attrs: str = "") -> OpDef:
    V1_OPS[name] = op = imported_op(name, signature, attrs)
    return op


# --- control flow

SWITCH = _define("Switch", "data: T, pred: bool -> output_false: T, output_true: T")
MERGE = _define("Merge", "inputs: N * T -> output: T, value_index: int32")
ENTER = _define(
    "Enter",
    "data: T -> output: T",
    attrs="frame_name: string, is_constant: bool = False, parallel_iterations: int = 10",
)
EXIT = _define("Exit", "data: T -> output: T")
NEXT_ITERATION = _define("NextIteration", "data: T -> output: T")
LOOP_COND = _define("LoopCond", "input: bool -> output: bool")
CONTROL_TRIGGER = _define("ControlTrigger", "->")

# --- arrays: a handle identifies one, a flow (a number that is never read) orders accesses

TENSOR_ARRAY = _define(
    "TensorArrayV3",
    "size: int32 -> handle: resource, flow: float32",
    attrs="dtype: type, element_shape: shape = None, dynamic_size: bool = False, "
    "clear_after_read: bool = True, identical_element_shapes: bool = False, tensor_array_name: string = ''",
)
WRITE = _define(
    "TensorArrayWriteV3", "handle: resource, index: int32, value: T, flow_in: float32 -> flow_out: float32"
)
READ = _define("TensorArrayReadV3", "handle: resource, index: int32, flow_in: float32 -> value: dtype")
GATHER = _define(
    "TensorArrayGatherV3",
    "handle: resource, indices: int32, flow_in: float32 -> value: dtype",
    attrs="element_shape: shape = None",
)
SCATTER = _define(
    "TensorArrayScatterV3",
    "handle: resource, indices: int32, value: T, flow_in: float32 -> flow_out: float32",
)
CONCAT = _define(
    "TensorArrayConcatV3",
    "handle: resource, flow_in: float32 -> value: dtype, lengths: int64",
    attrs="element_shape_except0: shape = None",
)
SPLIT = _define(
    "TensorArraySplitV3", "handle: resource, value: T, lengths: int64, flow_in: float32 -> flow_out: float32"
)
SIZE = _define("TensorArraySizeV3", "handle: resource, flow_in: float32 -> size: int32")
CLOSE = _define("TensorArrayCloseV3", "handle: resource ->")
ARRAY_GRAD = _define(
    "TensorArrayGradV3",
    "handle: resource, flow_in: float32 -> grad_handle: resource, flow_out: float32",
    attrs="source: string",
)

# --- stacks, which have what a gradient reads of a loop

STACK = _define(
    "StackV2", "max_size: int32 -> handle: resource", attrs="elem_type: type, stack_name: string = ''"
)
PUSH = _define("StackPushV2", "handle: resource, elem: T -> output: T", attrs="swap_memory: bool = False")
POP = _define("StackPopV2", "handle: resource -> elem: elem_type")
CLOSE_STACK = _define("StackCloseV2", "handle: resource ->")

ON_HANDLES = (
    TENSOR_ARRAY, WRITE, READ, GATHER, SCATTER, CONCAT, SPLIT, SIZE, CLOSE, ARRAY_GRAD,
    STACK, PUSH, POP, CLOSE_STACK,
)  # fmt: skip
