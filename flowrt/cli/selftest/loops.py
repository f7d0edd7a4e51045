"""Section ``loops``: every op that loops can compute, as a compiled loop of the device, against the reference
interpreter on NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.cli.selftest.ops import Call, build_calls, difference, reference
from flowrt.cli.selftest.target import Result, Target, describe_error
from flowrt.device.llvm import host_jit
from flowrt.executor.kernels.cuda_kernel import CudaKernel
from flowrt.executor.kernels.fused_kernel import FusedKernel
from flowrt.executor.kernels.fused_program import supports
from flowrt.graph.construction.graph import Graph
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.passes.fusion.fuse import fuse


def check_loops(target: Target) -> Result:
    """Compile and run the first sample of each op that is a loop."""
    if not target.device.executor.compiles_loops():
        why = host_jit.why_unavailable() if target.device.spec.device_type == "CPU" else None
        left_out = f"left out: {why or 'nothing is compiled for this device'}"
        return Result(left_out, (why,) if why and host_jit.is_installed() else ())
    checked: set[str] = set()
    failures = []
    with Graph():
        for call in build_calls(target):
            name = call.operation.node.op.name
            loop = None if name in checked else loop_of(call)
            if loop is not None:
                checked.add(name)
                wrong = check_loop(target, call, loop)
                if wrong is not None:
                    failures.append(f"{name}: {wrong}")
    return Result(f"{len(checked)} ops, {len(failures)} failed", tuple(failures))


def loop_of(call: Call) -> Node | None:
    """The operation as a group with only itself; None if it cannot be fused."""
    operations = [*(tensor.op for tensor in call.operation.inputs), call.operation]
    nodes = {operation.name: operation.node for operation in operations}
    subgraph = Subgraph(nodes, fetches=tuple([tensor.ref for tensor in call.operation.outputs]))
    return next((node for node in fuse(subgraph, supports, each=True) if "group" in node.attrs), None)


def check_loop(target: Target, call: Call, loop: Node) -> str | None:
    """The error in the results of ``loop``, or None."""
    try:
        found = run_loop(target, loop, [np.asarray(v) for v in inputs_of(call, loop)])
    except Exception as error:  # noqa: BLE001 (the other loops are worth running)
        return describe_error(error)
    expected = reference(call, list(call.operation.outputs))
    pairs = zip(found, expected, strict=True)
    return next((wrong for got, wanted in pairs if (wrong := difference(got, wanted, True))), None)


def inputs_of(call: Call, loop: Node) -> list[Any]:
    values = {tensor.ref: value for tensor, value in call.feeds.items()}
    return [values[ref] for ref in loop.attrs["group"].inputs]


def run_loop(target: Target, loop: Node, inputs: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
    """The results of ``loop`` on the device, as arrays of the host."""
    device = target.device
    kernel = CudaKernel(loop, device) if device.is_asynchronous else FusedKernel(loop)
    with device.activate():
        results = kernel(tuple([device.to_device(array) for array in inputs]))
    return [device.to_host(result) for result in results]
