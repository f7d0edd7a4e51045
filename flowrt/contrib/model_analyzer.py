"""``slim.model_analyzer``: the sizes of a model's variables and operations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from flowrt.graph.construction.graph import Graph
from flowrt.variables.variable import Variable


def tensor_description(var: Any) -> str:
    """Dtype and shape, as ``(float32_ref 3x4)`` for a variable."""
    sizes = "x".join("?" if n is None else str(n) for n in var.shape.as_list())
    return f"({var.dtype.name}{'_ref' if isinstance(var, Variable) else ''} {sizes})"


def analyze_ops(graph: Graph, print_info: bool = False) -> int:
    """The elements of all outputs; one without a known shape counts as none."""
    if print_info:
        print("---------\nOperations: name -> (type shapes) [size]\n---------")  # noqa: T201
    total = 0
    for op in graph.get_operations():
        size = sum(map(_elements, op.outputs))
        total += size
        if print_info:
            described = ", ".join(map(tensor_description, op.outputs))
            print(f"{op.name}\t->\t{described}\t[{size}]")  # noqa: T201
    if print_info:
        print(f"---------\nTotal size: {total}")  # noqa: T201
    return total


def analyze_vars(variables: Iterable[Variable], print_info: bool = False) -> tuple[int, int]:
    """Elements and bytes."""
    if print_info:
        print("---------\nVariables: name (type shape) [size]\n---------")  # noqa: T201
    total_size = total_bytes = 0
    for var in variables:
        size = _elements(var)
        total_size, total_bytes = total_size + size, total_bytes + size * var.dtype.size
        if print_info:
            print(f"{var.name} {tensor_description(var)} [{size}, bytes: {size * var.dtype.size}]")  # noqa: T201
    if print_info:
        print(f"Total size of variables: {total_size}\nTotal bytes of variables: {total_bytes}")  # noqa: T201
    return total_size, total_bytes


def _elements(tensor: Any) -> int:
    return math.prod(tensor.shape.as_list()) if tensor.shape.is_fully_defined() else 0
