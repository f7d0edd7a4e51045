"""Ops that converters fuse: a convolution, product or normalization, bias, activation."""

from __future__ import annotations

from typing import Any

from flowrt.errors import UnimplementedError
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref
from flowrt.graph.op_def import registered_ops
from flowrt.tf1.graph_import.older_spellings import BATCH_NORM
from flowrt.tf1.graph_import.op_adapters import Adapter, Rule, adapter, outputs_of

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
    f"{BATCH_NORM}, num_side_inputs: int = 0, activation_mode: string = 'Identity'",
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
    return a.become(outputs_of(node, 1), op, (made,), **kind)
