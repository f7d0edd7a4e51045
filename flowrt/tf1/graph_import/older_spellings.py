"""Ops that flowrt has under another name or with other arguments: TensorFlow's older ones, and newer ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import UnimplementedError
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref
from flowrt.graph.op_def import registered_ops
from flowrt.tf1.graph_import import reference_ops
from flowrt.tf1.graph_import.op_adapters import Adapter, Rule, adapter, outputs_of

BATCH_NORM = "epsilon: float = 0.0001, exponential_avg_factor: float = 1.0, data_format: string = 'NHWC', "
BATCH_NORM += "is_training: bool = True"


# --- rules without effect


@adapter("DisableCopyOnRead", "resource: resource ->")
def _nothing(a: Adapter, node: Node) -> Node:
    controls = tuple(dict.fromkeys([*node.controls, *(name for name, _ in node.inputs)]))
    return a.become(node, "NoOp", ()).replace(controls=controls)


# --- tables: older ops have strings as handles


def _table_rule(op: str) -> Rule:
    def rule(a: Adapter, node: Node) -> Node:
        definition = registered_ops()[op]
        given = {
            key: value
            for key, value in node.attrs.items()
            if key in definition.attrs or key in definition.types
        }
        return a.become(node, op, node.inputs, **given)

    return rule


_TABLE = "container: string = '', shared_name: string = '', use_node_name_sharing: bool = False, "
_TABLE += "key_dtype: type, value_dtype: type"
for _name in ("HashTable", "MutableHashTable"):
    adapter(_name, "-> table_handle: string", _TABLE)(_table_rule(f"{_name}V2"))
adapter(
    "LookupTableFind", "table_handle: string, keys: Tin in ANY, default_value: Tout in ANY -> values: Tout"
)(_table_rule("LookupTableFindV2"))
adapter("LookupTableSize", "table_handle: string -> size: int64")(_table_rule("LookupTableSizeV2"))
adapter("InitializeTable", "table_handle: string, keys: Tkey in ANY, values: Tval in ANY ->")(
    _table_rule("InitializeTableV2")
)
adapter(
    "InitializeTableFromTextFile",
    "table_handle: string, filename: string ->",
    "key_index: int, value_index: int, vocab_size: int = -1, delimiter: string = '\\t', offset: int = 0",
)(_table_rule("InitializeTableFromTextFileV2"))
adapter("LookupTableImport", "table_handle: string, keys: Tin in ANY, values: Tout in ANY ->")(
    _table_rule("LookupTableImportV2")
)


# --- older and newer spellings


_STATISTICS = "batch_mean: {0}, batch_variance: {0}, reserve_space_1: {0}, reserve_space_2: {0}"


def _batch_norm(a: Adapter, node: Node) -> Node:
    attrs = {key: value for key, value in node.attrs.items() if not key.startswith("_")}
    attrs.setdefault("U", attrs["T"])
    return a.become(outputs_of(node, 5), "FusedBatchNormV3", node.inputs, **attrs)


adapter(
    "FusedBatchNorm",
    f"x: T, scale: T, offset: T, mean: T, variance: T -> y: T, {_STATISTICS.format('T')}",
    BATCH_NORM,
)(_batch_norm)
adapter(
    "FusedBatchNormV2",
    f"x: T, scale: U in FLOATING, offset: U, mean: U, variance: U -> y: T, {_STATISTICS.format('U')}",
    BATCH_NORM,
)(_batch_norm)


@adapter(
    "BatchNormWithGlobalNormalization",
    "t: T, m: T, v: T, beta: T, gamma: T -> result: T",
    "variance_epsilon: float, scale_after_normalization: bool",
)
def _global_normalization(a: Adapter, node: Node) -> Node:
    t, mean, variance, beta, gamma = node.inputs
    kind = {"T": node.attrs["T"]}
    epsilon = a.constant(node, "epsilon", node.attrs["variance_epsilon"], node.attrs["T"].np)
    scale = a.add(node, "rsqrt", "Rsqrt", (a.add(node, "add", "AddV2", (variance, epsilon), **kind),), **kind)
    if node.attrs["scale_after_normalization"]:
        scale = a.add(node, "scale", "Mul", (scale, gamma), **kind)
    shift = a.add(node, "sub", "Sub", (beta, a.add(node, "mul", "Mul", (mean, scale), **kind)), **kind)
    return a.become(node, "AddV2", (a.add(node, "scaled", "Mul", (t, scale), **kind), shift), **kind)


@adapter("Concat", "concat_dim: int32, values: N * T -> output: T")
def _concat(a: Adapter, node: Node) -> Node:
    a.check(node, 2)
    attrs = {"T": node.attrs["T"], "N": node.attrs["N"], "Tidx": dtypes.int32}
    return a.become(node, "ConcatV2", (*node.inputs[1:], node.inputs[0]), **attrs)


@adapter(
    "Gather",
    "params: Tparams in ANY, indices: Tindices in INDEX -> output: Tparams",
    "validate_indices: bool = True",
)
def _gather(a: Adapter, node: Node) -> Node:
    axis = a.constant(node, "axis", 0)
    kinds = {key: node.attrs[key] for key in ("Tparams", "Tindices")}
    return a.become(node, "GatherV2", (*node.inputs, axis), **kinds, Taxis=dtypes.int32)


@adapter("ClipByValue", "t: T, clip_value_min: T, clip_value_max: T -> output: T")
def _clip(a: Adapter, node: Node) -> Node:
    kind = {"T": node.attrs["T"]}
    t, low, high = node.inputs
    return a.become(node, "Maximum", (a.add(node, "Minimum", "Minimum", (t, high), **kind), low), **kind)


@adapter("BiasAddV1", "value: T, bias: T -> output: T")
def _bias_add(a: Adapter, node: Node) -> Node:
    return a.become(node, "BiasAdd", node.inputs, T=node.attrs["T"])


@adapter("Mod", "x: T, y: T -> z: T")
def _mod(a: Adapter, node: Node) -> Node:
    return a.become(node, "TruncateMod", node.inputs, T=node.attrs["T"])


@adapter("Snapshot", "input: T -> output: T")
def _snapshot(a: Adapter, node: Node) -> Node:
    return a.become(node, "Identity", node.inputs, T=node.attrs["T"])


@adapter("Reverse", "tensor: T, dims: bool -> output: T")
def _reverse(a: Adapter, node: Node) -> Node:
    axes = [i for i, chosen in enumerate(a.known(node, 1)) if chosen]
    kinds = {"T": node.attrs["T"], "Tidx": dtypes.int32}
    return a.become(node, "ReverseV2", (node.inputs[0], a.constant(node, "axis", axes)), **kinds)


@adapter("ParallelDynamicStitch", "indices: N * int32, data: N * T -> merged: T")
def _stitch(a: Adapter, node: Node) -> Node:
    return a.become(node, "DynamicStitch", node.inputs, T=node.attrs["T"], N=node.attrs["N"])


@adapter(
    "BatchMatMulV3",
    "x: Ta in NUMERIC, y: Tb in NUMERIC -> output: Tout in NUMERIC",
    "adj_x: bool = False, adj_y: bool = False",
)
def _batch_matmul(a: Adapter, node: Node) -> Node:
    wanted = node.attrs["Tout"]
    inputs = tuple(
        ref
        if node.attrs[key] == wanted
        else a.add(node, f"cast_{key}", "Cast", (ref,), SrcT=node.attrs[key], DstT=wanted)
        for key, ref in zip(("Ta", "Tb"), node.inputs, strict=True)
    )
    flags = {key: node.attrs[key] for key in ("adj_x", "adj_y")}
    return a.become(node, "BatchMatMulV2", inputs, T=wanted, **flags)


@adapter(
    "MaxPoolV2",
    "input: T, ksize: int32, strides: int32 -> output: T",
    "padding: string, data_format: string = 'NHWC'",
)
def _max_pool(a: Adapter, node: Node) -> Node:
    sizes = {"ksize": tuple(a.known(node, 1)), "strides": tuple(a.known(node, 2))}
    kept = {key: node.attrs[key] for key in ("T", "padding", "data_format")}
    return a.become(node, "MaxPool", node.inputs[:1], **kept, **sizes)


@adapter("UniqueV2", "x: T, axis: Taxis in INDEX -> y: T, idx: out_idx in INDEX", "out_idx: type = int32")
def _unique(a: Adapter, node: Node) -> Node:
    if a.known(node, 1) not in ([], [0]):
        raise located(node, UnimplementedError("expected the elements of a vector: axis [] or [0]"))
    return a.become(node, "Unique", node.inputs[:1], T=node.attrs["T"], out_idx=node.attrs["out_idx"])


def _main_diagonal(op: str, names: str) -> Rule:
    """The rule of an op that has as many diagonals as inputs say: only the main one."""

    def rule(a: Adapter, node: Node) -> Node:
        count = {"MatrixSetDiag": 2}.get(op, 1)
        for position, name in enumerate(names.split(), count):
            value, plain = a.known(node, position), {"k": 0, "padding_value": 0}.get(name, -1)
            if value not in (plain, [plain], [plain, plain]):
                raise located(node, UnimplementedError(f"expected {name} {plain}; got {value}"))
        return a.become(node, op, node.inputs[:count], T=node.attrs["T"])

    return rule


for _version, _attrs in (("V2", ""), ("V3", "align: string = 'RIGHT_LEFT'")):
    adapter(
        f"MatrixDiag{_version}",
        "diagonal: T, k: int32, num_rows: int32, num_cols: int32, padding_value: T -> output: T",
        _attrs,
    )(_main_diagonal("MatrixDiag", "k num_rows num_cols padding_value"))
    adapter(f"MatrixDiagPart{_version}", "input: T, k: int32, padding_value: T -> diagonal: T", _attrs)(
        _main_diagonal("MatrixDiagPart", "k padding_value")
    )
    adapter(f"MatrixSetDiag{_version}", "input: T, diagonal: T, k: int32 -> output: T", _attrs)(
        _main_diagonal("MatrixSetDiag", "k")
    )


@adapter(
    "TensorListConcat",
    "input_handle: variant -> tensor: element_dtype in ANY, lengths: int64",
    "element_dtype: type, element_shape: shape = None",
)
def _list_concat(a: Adapter, node: Node) -> Node:
    shape = a.constant(node, "element_shape", _format_shape(node.attrs["element_shape"]))
    inputs = (*node.inputs, shape, a.constant(node, "leading_dims", [], np.int64))
    kinds = {"element_dtype": node.attrs["element_dtype"], "shape_type": dtypes.int32}
    return a.become(node, "TensorListConcatV2", inputs, **kinds)


@adapter(
    "TensorListScatter",
    "tensor: element_dtype in ANY, indices: int32, element_shape: shape_type in INDEX -> "
    "output_handle: variant",
)
def _list_scatter(a: Adapter, node: Node) -> Node:
    inputs = (*node.inputs, a.constant(node, "num_elements", -1))
    kinds = {key: node.attrs[key] for key in ("element_dtype", "shape_type")}
    return a.become(node, "TensorListScatterV2", inputs, **kinds)


def _optional(a: Adapter, node: Node) -> Node:
    """An empty list. What a branch keeps for its gradient is an optional: of a graph without the gradient
    nothing reads it, and the ops that would are refused.
    """
    kinds = {"element_dtype": dtypes.float32, "shape_type": dtypes.int32}
    inputs = a.constant(node, "element_shape", -1), a.constant(node, "max_num_elements", 0)
    return a.become(node, "EmptyTensorList", inputs, **kinds)


adapter("OptionalNone", "-> optional: variant")(_optional)
adapter("OptionalFromValue", "components: *Toutput_types in ANY -> optional: variant")(_optional)


def _format_shape(shape: Any) -> Any:
    return -1 if shape is None else [-1 if size is None else size for size in shape]


# --- segments of gathered rows

_SEGMENTS = "data: T, indices: Tidx in INDEX, segment_ids: Tsegmentids in INDEX"


def _gathered(a: Adapter, node: Node) -> Ref:
    data, indices = node.inputs[:2]
    kinds = {"Tparams": node.attrs["T"], "Tindices": node.attrs["Tidx"], "Taxis": dtypes.int32}
    return a.add(node, "gather", "GatherV2", (data, indices, a.constant(node, "axis", 0)), **kinds)


def _segments(kind: str, with_count: bool) -> Rule:
    """The rule of sums over segments, and of these over their lengths or the roots of these."""

    def rule(a: Adapter, node: Node) -> Node:
        rows = _gathered(a, node)
        number, ids = {"T": node.attrs["T"]}, (node.inputs[2], *node.inputs[3:])
        op = "UnsortedSegmentSum" if with_count else "SegmentSum"
        kinds = {**number, "Tindices": node.attrs["Tsegmentids"]}
        if with_count:
            kinds["Tnumsegments"] = node.attrs["Tnumsegments"]
        if kind == "Sum":
            return a.become(node, op, (rows, *ids), **kinds)
        total = a.add(node, "sum", op, (rows, *ids), **kinds)
        ones = a.add(node, "ones", "OnesLike", (rows,), **number)
        length = a.add(node, "length", op, (ones, *ids), **kinds)
        one = a.constant(node, "one", 1, node.attrs["T"].np)
        length = a.add(node, "at_least_one", "Maximum", (length, one), **number)
        if kind == "SqrtN":
            length = a.add(node, "root", "Sqrt", (length,), **number)
        return a.become(node, "RealDiv", (total, length), **number)

    return rule


for _kind in ("Sum", "Mean", "SqrtN"):
    adapter(f"SparseSegment{_kind}", f"{_SEGMENTS} -> output: T", "sparse_gradient: bool = False")(
        _segments(_kind, False)
    )
    adapter(
        f"SparseSegment{_kind}WithNumSegments",
        f"{_SEGMENTS}, num_segments: Tnumsegments in INDEX -> output: T",
        "sparse_gradient: bool = False",
    )(_segments(_kind, True))


@adapter("AdjustContrastv2", "images: T, contrast_factor: float32 -> output: T")
def _contrast(a: Adapter, node: Node) -> Node:
    images, factor = node.inputs
    kind = {"T": node.attrs["T"]}
    if node.attrs["T"] is not dtypes.float32:
        factor = a.add(node, "factor", "Cast", (factor,), SrcT=dtypes.float32, DstT=node.attrs["T"])
    axes = a.constant(node, "axes", [-3, -2])
    mean = a.add(node, "mean", "Mean", (images, axes), **kind, Tidx=dtypes.int32, keep_dims=True)
    far = a.add(node, "sub", "Sub", (images, mean), **kind)
    return a.become(node, "AddV2", (a.add(node, "mul", "Mul", (far, factor), **kind), mean), **kind)


# --- elements of variables: all of the new value is written


def _scatter_rule(function: str) -> Rule:
    def rule(a: Adapter, node: Node) -> Node:
        a.check(node, 3)
        variable, indices, updates = node.inputs
        number = node.attrs["T"]
        kinds = {"T": number, "Tindices": node.attrs["Tindices"]}
        on_handle = node.op.name.startswith("Resource")
        if on_handle:
            variable = a.add(node, "read", "ReadVariableOp", (variable,), dtype=number)
        value = a.add(node, "value", f"TensorScatter{function}", (variable, indices, updates), **kinds)
        if on_handle:
            return a.become(node, "AssignVariableOp", (node.inputs[0], value), dtype=number)
        kept = {key: value for key, value in node.attrs.items() if key.startswith("_")}
        attrs = {**kept, "T": number, "validate_shape": True}
        return node.replace(op=reference_ops.ASSIGN, inputs=(node.inputs[0], value), attrs=attrs)

    return rule


for _function in ("Update", "Add", "Sub"):
    _arguments, _locking = "indices: Tindices in INDEX, updates: T", "use_locking: bool = True"
    adapter(f"ScatterNd{_function}", f"ref: T, {_arguments} -> output_ref: T", _locking)(
        _scatter_rule(_function)
    )
    adapter(f"ResourceScatterNd{_function}", f"ref: resource, {_arguments} ->", _locking)(
        _scatter_rule(_function)
    )


# --- arguments that became attributes, and attributes that became arguments


@adapter(
    "NonMaxSuppression",
    "boxes: float32, scores: float32, max_output_size: int32 -> selected_indices: int32",
    "iou_threshold: float = 0.5",
)
def _suppression(a: Adapter, node: Node) -> Node:
    threshold = a.constant(node, "iou_threshold", node.attrs["iou_threshold"], np.float32)
    kinds = {"T": dtypes.float32, "T_threshold": dtypes.float32}
    return a.become(node, "NonMaxSuppressionV2", (*node.inputs, threshold), **kinds)


@adapter("InTopK", "predictions: float32, targets: T in INDEX -> precision: bool", "k: int")
def _in_top_k(a: Adapter, node: Node) -> Node:
    k = a.constant(node, "k", node.attrs["k"], node.attrs["T"].np)
    return a.become(node, "InTopKV2", (*node.inputs, k), T=node.attrs["T"])


@adapter("DrawBoundingBoxes", "images: T, boxes: float32 -> output: T")
def _draw(a: Adapter, node: Node) -> Node:
    colors = a.constant(node, "colors", np.zeros((0, 0)), np.float32)
    return a.become(node, "DrawBoundingBoxesV2", (*node.inputs, colors), T=node.attrs["T"])


def _block_rule(a: Adapter, node: Node) -> Node:
    block = a.constant(node, "block_shape", [node.attrs["block_size"]] * 2)
    kinds = {"T": node.attrs["T"], "Tblock_shape": dtypes.int32}
    return a.become(node, f"{node.op.name}ND", (node.inputs[0], block, node.inputs[1]), **kinds)


adapter("SpaceToBatch", "input: T, paddings: Tpaddings in INDEX -> output: T", "block_size: int")(_block_rule)
adapter("BatchToSpace", "input: T, crops: Tidx in INDEX -> output: T", "block_size: int")(_block_rule)


@adapter("AccumulateNV2", "inputs: N * T -> sum: T", "shape: shape")
def _accumulate(a: Adapter, node: Node) -> Node:
    return a.become(node, "AddN", node.inputs, T=node.attrs["T"], N=node.attrs["N"])


for _name in ("GuaranteeConst", "DebugGradientIdentity"):
    adapter(_name, "input: T -> output: T")(_snapshot)


def _regex_rule(op: str, arguments: str) -> Rule:
    def rule(a: Adapter, node: Node) -> Node:
        texts = {name: a.known(node, i).decode() for i, name in enumerate(arguments.split(), 1)}
        kept = {key: node.attrs[key] for key in registered_ops()[op].attrs if key in node.attrs}
        return a.become(node, op, node.inputs[:1], **texts, **kept)

    return rule


adapter(
    "RegexReplace", "input: string, pattern: string, rewrite: string -> output: string",
    "replace_global: bool = True",
)(_regex_rule("StaticRegexReplace", "pattern rewrite"))  # fmt: skip
adapter("RegexFullMatch", "input: string, pattern: string -> output: bool")(
    _regex_rule("StaticRegexFullMatch", "pattern")
)


@adapter("LookupTableInsert", "table_handle: string, keys: Tin in ANY, values: Tout in ANY ->")
def _insert(a: Adapter, node: Node) -> Node:
    return a.become(node, "LookupTableInsertV2", node.inputs, Tin=node.attrs["Tin"], Tout=node.attrs["Tout"])


for _version, _of in (("", "T"), ("V2", "U")):

    @adapter(
        f"FusedBatchNormGrad{_version}",
        f"y_backprop: T, x: T, scale: {_of} in FLOATING, reserve_space_1: {_of}, reserve_space_2: {_of} -> "
        f"x_backprop: T, scale_backprop: {_of}, offset_backprop: {_of}, reserve_space_3: {_of}, "
        f"reserve_space_4: {_of}",
        "epsilon: float = 0.0001, data_format: string = 'NHWC', is_training: bool = True",
    )
    def _batch_norm_gradient(a: Adapter, node: Node) -> Node:
        """The gradient of `FusedBatchNormV3`, which is there in place of the forward op."""
        attrs = {key: value for key, value in node.attrs.items() if not key.startswith("_")}
        attrs.setdefault("U", attrs["T"])
        return a.become(node, "FusedBatchNormGradV3", (*node.inputs, node.inputs[3]), **attrs)
