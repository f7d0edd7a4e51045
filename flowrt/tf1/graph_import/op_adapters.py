"""Ops that only nodes being imported have, and flowrt says by others: older and newer spellings, and ops that
converters fuse. See `v1_ops`.

Each has a rule that gives the node in its place, of the same name and with outputs in the same places, and
may add nodes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, final

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import as_dtype
from flowrt.errors import InvalidArgumentError, OpError, UnimplementedError
from flowrt.graph.construction.constant import const
from flowrt.graph.evaluate import located
from flowrt.graph.messages.graph_def import OUTPUT_SHAPES
from flowrt.graph.node import Node, Ref
from flowrt.graph.op_def import OpDef, parse_attrs, parse_signature, registered_ops
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.tf1.graph_import.import_branches import unused_name

Rule: TypeAlias = "Callable[[Adapter, Node], Node]"

ADAPTED: dict[str, OpDef] = {}
"""The ops by name."""

_RULES: dict[OpDef, Rule] = {}


def adapted(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """``nodes``, which have no output specs, with flowrt's ops in place of the `ADAPTED`; the same object if
    there are none. Raises `InvalidArgumentError` and `UnimplementedError`, with the node's name.
    """
    if not any(node.op in _RULES for node in nodes.values()):
        return nodes
    return Adapter(nodes).run()


@final
class Adapter:
    """Makes the nodes in place of others."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes, self._made = nodes, dict[str, Node]()
        self._taken = set(nodes)

    def run(self) -> dict[str, Node]:
        for node in self.nodes.values():
            rule = _RULES.get(node.op)
            if rule is None:
                self._made[node.name] = node
                continue
            try:
                made = rule(self, node)
            except OpError:
                raise
            except Exception as error:  # what no program writes: an attribute that is missing, or a list
                message = f"expected inputs and attributes that match the op; got {error!r}"
                raise located(node, InvalidArgumentError(message)) from error
            self._made[made.name] = made
        return self._made

    def become(self, node: Node, op: str, inputs: tuple[Ref, ...], **attrs: Any) -> Node:
        """``node`` with another op; of its attributes those with an underscore stay."""
        kept = {key: value for key, value in node.attrs.items() if key.startswith("_")}
        return node.replace(op=registered_ops()[op], inputs=inputs, attrs=_complete(op, {**kept, **attrs}))

    def add(self, node: Node, part: str, op: str, inputs: tuple[Ref, ...], **attrs: Any) -> Ref:
        """Output 0 of a new node, which is called ``node/part`` and has its control inputs."""
        name = unused_name(f"{node.name}/{part}", self._taken)
        definition = registered_ops()[op]
        made = node.beside(name, definition, inputs, node.controls, _complete(op, attrs))
        self._made[name] = made
        return name, 0

    def constant(self, node: Node, part: str, value: Any, dtype: Any = np.int32) -> Ref:
        """A new constant for ``node``. It waits for an input, to be in the same frame and branch."""
        name = unused_name(f"{node.name}/{part}", self._taken)
        array = np.asarray(value, dtype)
        attrs = {"value": array, "dtype": as_dtype(array.dtype)}
        waits = (node.inputs[0][0],) if node.inputs else node.controls
        self._made[name] = node.beside(name, const, (), waits, attrs)
        return name, 0

    def known(self, node: Node, position: int) -> Any:
        """The value of an input that is a constant, as a list or a number."""
        self.check(node, position + 1)
        producer = self.nodes.get(node.inputs[position][0])
        while producer is not None and producer.op.name == "Identity":
            producer = self.nodes.get(producer.inputs[0][0])
        if producer is None or producer.op is not const:
            argument = node.op.inputs[position].name
            raise located(node, UnimplementedError(f"expected input {argument!r} to be a constant"))
        return producer.attrs["value"].tolist()

    def check(self, node: Node, count: int) -> None:
        """Raise `InvalidArgumentError` for fewer inputs."""
        if len(node.inputs) < count:
            message = f"expected at least {count} inputs; got {len(node.inputs)}"
            raise located(node, InvalidArgumentError(message))


def _complete(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """``attrs`` with the defaults of the others."""
    defaults = {key: attr.default for key, attr in registered_ops()[op].attrs.items() if not attr.required}
    return {**defaults, **attrs}


def adapter(name: str, signature: str, attrs: str = "") -> Callable[[Rule], Rule]:
    """A decorator: the function is the rule of the op ``name``."""

    def define(rule: Rule) -> Rule:
        inputs, outputs, types = parse_signature(signature, {"T": dtypes.ANY})
        used = {argument.type_attr for argument in (*inputs, *outputs)}
        types = {variable: types[variable] for variable in types if variable in used}
        ADAPTED[name] = op = replace(
            no_op, name=name, inputs=inputs, outputs=outputs, types=types, attrs=parse_attrs(attrs),
            doc="TensorFlow's.",
        )  # fmt: skip
        _RULES[op] = _checked(rule, len(inputs))
        return rule

    return define


def _checked(rule: Rule, count: int) -> Rule:
    def checked(a: Adapter, node: Node) -> Node:
        if not any(argument.is_list for argument in node.op.inputs) and len(node.inputs) != count:
            message = f"expected {count} inputs; got {len(node.inputs)}"
            raise located(node, InvalidArgumentError(message))
        left_out = {key: _DEFAULTS[key] for key in node.op.types if key in _DEFAULTS}
        return rule(a, node.replace(attrs={**left_out, **node.attrs}))

    return checked


_DEFAULTS = dict.fromkeys(("Tidx", "Tsegmentids", "Tnumsegments"), dtypes.int32)
"""Types that a SavedModel leaves out."""


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


_BATCH_NORM = "epsilon: float = 0.0001, exponential_avg_factor: float = 1.0, data_format: string = 'NHWC', "
_BATCH_NORM += "is_training: bool = True"
_STATISTICS = "batch_mean: {0}, batch_variance: {0}, reserve_space_1: {0}, reserve_space_2: {0}"


def _batch_norm(a: Adapter, node: Node) -> Node:
    attrs = {key: value for key, value in node.attrs.items() if not key.startswith("_")}
    attrs.setdefault("U", attrs["T"])
    return a.become(_outputs_of(node, 5), "FusedBatchNormV3", node.inputs, **attrs)


def _outputs_of(node: Node, count: int) -> Node:
    """``node`` without told shapes, if it gets another number of outputs."""
    told = node.attrs.get(OUTPUT_SHAPES, ())
    if len(told) <= count:
        return node.replace(attrs={k: v for k, v in node.attrs.items() if k != OUTPUT_SHAPES})
    return node.replace(attrs={**node.attrs, OUTPUT_SHAPES: told[:count]})


adapter(
    "FusedBatchNorm",
    f"x: T, scale: T, offset: T, mean: T, variance: T -> y: T, {_STATISTICS.format('T')}",
    _BATCH_NORM,
)(_batch_norm)
adapter(
    "FusedBatchNormV2",
    f"x: T, scale: U in FLOATING, offset: U, mean: U, variance: U -> y: T, {_STATISTICS.format('U')}",
    _BATCH_NORM,
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


# --- ops that converters fuse: convolution or product, bias, activation

_ACTIVATIONS = ("Relu", "Relu6", "Elu", "Sigmoid", "Tanh", "LeakyRelu", "Softplus")
_FUSED = (
    "num_args: int, fused_ops: list(string) = [], epsilon: float = 0.0001, leakyrelu_alpha: float = 0.2, "
)
_FUSED += "num_host_args: int = 0"
_CONV = (
    "strides: list(int), padding: string, explicit_paddings: list(int) = [], data_format: string = 'NHWC', "
)
_CONV += (
    "dilations: list(int) = [1, 1, 1, 1], use_cudnn_on_gpu: bool = True, filter_format: string = 'HWIO', "
)
_CONV += "TArgs: list(type) = []"


_TAKES = {**dict.fromkeys(_ACTIVATIONS, 0), "BiasAdd": 1, "FusedBatchNorm": 4, "Prelu": 1, "Add": 1}
"""The inputs that each takes of the arguments."""


def _then(a: Adapter, node: Node, made: Ref, arguments: tuple[Ref, ...]) -> Node:
    """``node`` as what follows ``made``: the ops that its attribute names, one after the other."""
    names = list(node.attrs["fused_ops"])
    if sum(_TAKES.get(name, len(arguments) + 1) for name in names) != len(arguments):
        message = f"expected fused operations that can be expanded, with their arguments; got {names}"
        raise located(node, UnimplementedError(f"{message} of {len(arguments)}"))
    for i, name in enumerate(names):
        given, arguments = arguments[: _TAKES[name]], arguments[_TAKES[name] :]
        op, inputs, attrs = _spelled(a, node, name, made, given)
        if i == len(names) - 1:
            return a.become(node, op, inputs, **attrs)
        made = a.add(node, name, op, inputs, **attrs)
    return a.become(node, "Identity", (made,), T=node.attrs["T"])


def _spelled(
    a: Adapter, node: Node, name: str, x: Ref, given: tuple[Ref, ...]
) -> tuple[str, tuple[Ref, ...], dict[str, Any]]:
    """The op, inputs and attributes of one fused operation on ``x``."""
    attrs = {"T": node.attrs["T"]}
    layout = {"data_format": node.attrs["data_format"]} if "data_format" in node.attrs else {}
    if name == "Prelu":
        below = a.add(
            node, "Prelu/relu_of_neg", "Relu", (a.add(node, "Prelu/neg", "Neg", (x,), **attrs),), **attrs
        )
        above = a.add(node, "Prelu/relu", "Relu", (x,), **attrs)
        return "Sub", (above, a.add(node, "Prelu/mul", "Mul", (given[0], below), **attrs)), attrs
    if name == "FusedBatchNorm":
        norm = {"U": node.attrs["T"], "epsilon": node.attrs["epsilon"], "is_training": False}
        return "FusedBatchNormV3", (x, *given), {**attrs, **layout, **norm}
    if name == "BiasAdd":
        return name, (x, *given), {**attrs, **layout}
    if name == "LeakyRelu":
        return name, (x,), {**attrs, "alpha": node.attrs["leakyrelu_alpha"]}
    return ("AddV2" if name == "Add" else name), (x, *given), attrs


def _fused_convolution(op: str) -> Rule:
    def rule(a: Adapter, node: Node) -> Node:
        a.check(node, 2)
        if node.attrs["num_host_args"] or node.attrs["filter_format"] != "HWIO":
            raise located(node, UnimplementedError("expected a filter in HWIO, and no arguments on the host"))
        names = ("T", "strides", "padding", "explicit_paddings", "data_format", "dilations")
        attrs = {key: node.attrs[key] for key in names if key in ("T", *registered_ops()[op].attrs)}
        made = a.add(node, op, op, node.inputs[:2], **attrs)
        return _then(a, node, made, node.inputs[2:])

    return rule


adapter("_FusedConv2D", "input: T, filter: T, args: num_args * T -> output: T", f"{_CONV}, {_FUSED}")(
    _fused_convolution("Conv2D")
)
for _name in ("FusedDepthwiseConv2dNative", "_FusedDepthwiseConv2dNative"):
    adapter(_name, "input: T, filter: T, args: num_args * T -> output: T", f"{_CONV}, {_FUSED}")(
        _fused_convolution("DepthwiseConv2dNative")
    )


@adapter(
    "_FusedMatMul",
    "a: T, b: T, args: num_args * T -> product: T",
    f"transpose_a: bool = False, transpose_b: bool = False, {_FUSED}",
)
def _fused_matmul(a: Adapter, node: Node) -> Node:
    a.check(node, 2)
    flags = {key: node.attrs[key] for key in ("T", "transpose_a", "transpose_b")}
    return _then(a, node, a.add(node, "MatMul", "MatMul", node.inputs[:2], **flags), node.inputs[2:])


@adapter("Prelu", "input: T, alpha: T -> output: T")
def _prelu(a: Adapter, node: Node) -> Node:
    op, inputs, attrs = _spelled(a, node, "Prelu", node.inputs[0], node.inputs[1:])
    return a.become(node, op, inputs, **attrs)


@adapter(
    "_FusedBatchNormEx",
    "x: T, scale: U in FLOATING, offset: U, mean: U, variance: U, side_input: num_side_inputs * T -> y: T, "
    "batch_mean: U, batch_variance: U, reserve_space_1: U, reserve_space_2: U, reserve_space_3: U",
    f"{_BATCH_NORM}, num_side_inputs: int = 0, activation_mode: string = 'Identity'",
)
def _fused_batch_norm(a: Adapter, node: Node) -> Node:
    a.check(node, 5)
    if node.attrs["is_training"]:
        raise located(node, UnimplementedError("expected is_training False: a fused one is of inference"))
    names = ("T", "U", "epsilon", "data_format", "is_training")
    made = a.add(node, "norm", "FusedBatchNormV3", node.inputs[:5], **{key: node.attrs[key] for key in names})
    kind = {"T": node.attrs["T"]}
    if node.inputs[5:]:
        made = a.add(node, "add", "AddV2", (made, node.inputs[5]), **kind)
    op = node.attrs["activation_mode"]
    if op not in {"Identity", *_ACTIVATIONS} - {"LeakyRelu", "Prelu"}:
        raise located(node, UnimplementedError(f"expected an activation that can be expanded; got {op!r}"))
    return a.become(_outputs_of(node, 1), op, (made,), **kind)
