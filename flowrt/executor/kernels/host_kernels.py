"""Host kernels: libraries and compiled loops that are faster than the generic kernels of operations.

They are registered by the operation's definition and chosen when a program is bound; operations do not depend
on them. A kernel has the signature of the operation's own, ``kernel(xp, *inputs, out=None, **attrs)``, and
returns the same, up to the order of summation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from flowrt.device.onednn import onednn
from flowrt.executor.kernels.onednn_kernels import MIN_PRODUCT, ONEDNN_KERNELS
from flowrt.executor.kernels.pool_kernels import POOL_KERNELS
from flowrt.executor.kernels.random_kernels import RANDOM_KERNELS
from flowrt.graph.node import Node, TensorSpec, static_shape
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.linalg.matmul import batch_matmul, matmul_op
from flowrt.graph.shapes import is_static

Kernel: TypeAlias = Callable[..., Any]

LOOP_KERNELS: Mapping[OpDef, Kernel] = {**POOL_KERNELS, **RANDOM_KERNELS}

PRODUCTS = frozenset({matmul_op, batch_matmul})


def host_kernel(node: Node, specs: Sequence[TensorSpec], has_loops: bool) -> Kernel | None:
    """The host's kernel for ``node`` on inputs of ``specs``, or None to use the operation's own.
    ``has_loops``: whether loops may be compiled; those that the node needs are, if its shapes are static.
    Raises errors of the compiler.
    """
    op = node.op
    if op in ONEDNN_KERNELS and not _is_small(node, specs) and onednn.is_available():
        return partial(ONEDNN_KERNELS[op], op)
    if not has_loops or op not in LOOP_KERNELS:
        return None
    kernel = partial(LOOP_KERNELS[op], op)
    _prepare(kernel, node, specs)
    return kernel


def _is_small(node: Node, specs: Sequence[TensorSpec]) -> bool:
    """Whether it is a product that stays with BLAS: then nothing else is even loaded. A multiplication and an
    addition cost 2.
    """
    if node.op not in PRODUCTS or not all(is_static(spec.shape) for spec in (*specs, *node.outputs)):
        return False
    return node.op.cost is not None and node.op.cost(specs, node.outputs) <= 2 * MIN_PRODUCT


def _prepare(kernel: Kernel, node: Node, specs: Sequence[TensorSpec]) -> None:
    """Have the loops compiled, by a call on zeros. What is a shape among the inputs is the output's."""
    (output,) = node.outputs
    if not all(is_static(spec.shape) for spec in (*specs, output)):
        return
    arguments = [
        static_shape(output) if argument.on_host else np.zeros(static_shape(spec), spec.dtype.np)
        for argument, spec in zip(node.op.inputs, specs, strict=True)
    ]
    attrs = {key: node.attrs[key] for key in node.op.kernel_attrs}
    if node.op.state is not None:
        attrs["state"] = node.op.state(node)
    kernel(np, *arguments, **attrs)
