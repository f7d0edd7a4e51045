"""Every registered op against its own definition: one generic test, no code an op.

For each sample of each op: the shape rule agrees with what the kernel returns (with and without ``out``);
dtypes are the declared ones; the kernel leaves its inputs alone; the vjp agrees with finite differences; the
jvp agrees with the vjp.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import dtypes
from flowrt.cli.selftest.ops import build_call, check_call
from flowrt.device.cuda.cuda import CudaExecutor
from flowrt.dtypes import as_dtype, resource, variant
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.derivatives.gradients import apply_vjp, gradients
from flowrt.graph.derivatives.jvp import apply_jvp
from flowrt.graph.evaluate import kernel_arguments
from flowrt.graph.op_def import (
    BY_EXECUTOR,
    NONDIFFERENTIABLE,
    Effect,
    OpDef,
    Rule,
    Sample,
    Ufunc,
    define_op,
    op_def,
    registered_ops,
)
from flowrt.graph.ops.base.identities import unchanged
from flowrt.graph.ops.surface import all as all_ops
from flowrt.graph.passes.placement.place import supports
from flowrt.graph.shapes import compatible
from tests.each import of_each_op
from tests.graph.evaluation import assert_equal, value_of, values_of

STEP = 1e-6

WITHOUT_SOME_GRADIENT = {
    "FusedBatchNormV3": "as in TensorFlow, the mean and variance that are given get none"
}
"""Ops that leave out the gradient of an input on which they depend, each with its reason."""

# Ops without a kernel: the executor itself does them. Asserted, so that no op joins by accident.
EXECUTOR_OPS = {"Const", "Placeholder", "_Feed", "_Send", "_Recv", "_Contribute"} | {
    "If", "Case", "While", "PartitionedCall", "_Case", "_Loop",
}  # fmt: skip
FUSED_OPS = {"_Fused", "_FusedRows", "_FusedConv", "_MatMulAdd"}
"""Groups of other ops, which passes make."""


def cases() -> list[Any]:
    return [
        pytest.param(op, sample, id=f"{op.name}-{position}")
        for op in registered_ops().values()
        for position, sample in enumerate(op.samples(np.random.default_rng(0)))
    ]


def build(op: OpDef, sample: Sample) -> tuple[Operation, list[Tensor]]:
    """The op on placeholders of known shape (constants for host inputs); the placeholders of its flat
    inputs.
    """
    arguments: list[Any] = []
    flat: list[Tensor] = []
    for argument, value in zip(op.inputs, sample.inputs, strict=True):
        values = value if argument.is_list else (value,)
        tensors = [constant(v) if argument.on_host else source(v) for v in values]
        flat += tensors
        arguments.append(tensors if argument.is_list else tensors[0])
    result = op(*arguments, **sample.attrs)
    operation = (
        result if isinstance(result, Operation) else (result[0] if isinstance(result, list) else result).op
    )
    return operation, flat


def source(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value  # samples of ops on resources make their handles themselves
    array = np.asarray(value)
    return placeholder(as_dtype(array.dtype), array.shape)


def flat_inputs(op: OpDef, sample: Sample) -> list[Any]:
    found: list[Any] = []
    for argument, value in zip(op.inputs, sample.inputs, strict=True):
        found += list(value) if argument.is_list else [value]
    return found


def feeds_of(flat: list[Tensor], values: list[Any]) -> dict[Tensor, Any]:
    return {t: v for t, v in zip(flat, values, strict=True) if t.op.type == "Placeholder"}


@of_each_op(cases())
def test_kernel_returns_what_the_shape_rule_says(op: OpDef, sample: Sample) -> None:
    with Graph():
        operation, flat = build(op, sample)
        values = flat_inputs(op, sample)
        copies = [np.array(v, copy=True) for v in values]
        results = values_of(list(operation.outputs), feeds_of(flat, values)) if operation.outputs else []
        for tensor, result in zip(operation.outputs, results, strict=True):
            if tensor.dtype.name in ("resource", "variant"):
                continue
            array = np.asarray(result)
            assert array.dtype == tensor.dtype.np, f"{tensor}: kernel gave {array.dtype}"
            assert compatible(array.shape, tensor.spec.shape), f"{tensor}: kernel gave {array.shape}"
        for value, copy in zip(values, copies, strict=True):
            np.testing.assert_array_equal(np.asarray(value), copy)


@of_each_op(cases())
def test_kernel_writes_the_same_into_out(op: OpDef, sample: Sample) -> None:
    if not op.takes_out or op.effect is not Effect.PURE:
        return
    with Graph():
        operation, flat = build(op, sample)
        values = [np.asarray(v) for v in flat_inputs(op, sample)]
        expected = [np.asarray(r) for r in values_of(list(operation.outputs), feeds_of(flat, values))]
        outs = [np.full(e.shape, 1, e.dtype) for e in expected]
        attrs = {k: operation.node.attrs[k] for k in op.kernel_attrs}
        several = len(outs) != 1 or op.outputs[0].is_list
        arguments = kernel_arguments(op, values, operation.node.attrs)
        with np.errstate(all="ignore"):
            op.kernel(np, *arguments, out=tuple(outs) if several else outs[0], **attrs)
        for out, e in zip(outs, expected, strict=True):
            assert_equal(out, e)


def differentiable(op: OpDef, sample: Sample) -> bool:
    if op.vjp is NONDIFFERENTIABLE or not sample.differentiable or op.effect is not Effect.PURE:
        return False
    arrays = [np.asarray(v) for v in flat_inputs(op, sample)]
    return any(a.dtype == np.float64 and a.size for a in arrays) and not any(
        a.dtype.kind == "c" for a in arrays
    )


def inexact(tensor: Tensor) -> bool:
    return tensor.dtype.np == np.float64


@of_each_op(cases())
def test_gradients_agree_with_finite_differences_and_with_the_jvp(op: OpDef, sample: Sample) -> None:
    if not differentiable(op, sample):
        return
    rng = np.random.default_rng(1)
    with Graph():
        operation, flat = build(op, sample)
        values = [np.asarray(v) for v in flat_inputs(op, sample)]
        feeds = feeds_of(flat, values)
        outputs = [t for t in operation.outputs if inexact(t)]
        shapes = [np.asarray(v).shape for v in values_of(outputs, feeds)]
        weights = [rng.standard_normal(s) for s in shapes]
        directions = [rng.standard_normal(v.shape) if v.dtype == np.float64 and t in feeds else None
                      for t, v in zip(flat, values, strict=True)]  # fmt: skip
        weight_of = dict(zip(outputs, weights, strict=True))
        dxs = apply_vjp(
            operation, [constant(weight_of[t]) if t in weight_of else None for t in operation.outputs]
        )
        used = [d if dx is not None else None for d, dx in zip(directions, dxs, strict=True)]
        reverse = 0.0
        for dx, tensor, direction in zip(dxs, flat, used, strict=True):
            if dx is None or direction is None:
                continue
            value = np.asarray(value_of(dx, feeds))
            assert value.shape == np.asarray(feeds[tensor]).shape, (
                f"gradient of {tensor} has shape {value.shape}"
            )
            reverse += float(np.sum(value * direction))

        def along(step: float, way: list[Any]) -> float:
            moved = {
                t: v if d is None or t not in feeds else v + step * d
                for t, v, d in zip(flat, values, way, strict=True) if t in feeds
            }  # fmt: skip
            results = values_of(outputs, moved)
            return float(sum(np.sum(np.asarray(r) * w) for r, w in zip(results, weights, strict=True)))

        def slope(way: list[Any]) -> float:
            return (along(STEP, way) - along(-STEP, way)) / (2 * STEP)

        np.testing.assert_allclose(
            reverse, slope(used), rtol=2e-5, atol=2e-6, err_msg="vjp against finite differences"
        )
        if op.name not in WITHOUT_SOME_GRADIENT:
            rest = [d if dx is None else None for d, dx in zip(directions, dxs, strict=True)]
            flatness = slope(rest) if any(d is not None for d in rest) else 0.0
            assert abs(flatness) < 1e-5, "an input without a gradient changes the output"

        tangents = [None if d is None else constant(d) for d in used]
        forward = 0.0
        for tensor, tangent in zip(operation.outputs, apply_jvp(operation, tangents), strict=True):
            if tangent is not None and tensor in weight_of:
                forward += float(np.sum(np.asarray(value_of(tangent, feeds)) * weight_of[tensor]))
        np.testing.assert_allclose(forward, reverse, rtol=1e-8, atol=1e-9, err_msg="jvp against vjp")


WITHOUT_SECOND_DERIVATIVE = {"Igamma", "Igammac"}
"""Their first derivative has a rule that raises, as TensorFlow's has none."""


@of_each_op(cases())
def test_second_derivatives_agree_with_differences_of_the_first(op: OpDef, sample: Sample) -> None:
    if not differentiable(op, sample) or op.name in WITHOUT_SECOND_DERIVATIVE:
        return
    rng = np.random.default_rng(2)
    with Graph():
        operation, flat = build(op, sample)
        values = [np.asarray(v) for v in flat_inputs(op, sample)]
        feeds = feeds_of(flat, values)
        ys = [t for t in operation.outputs if inexact(t)]
        weights = [constant(rng.standard_normal(np.asarray(v).shape)) for v in values_of(ys, feeds)]
        xs = [t for t in flat if inexact(t) and t in feeds]
        first = gradients(ys, xs, weights)
        pairs = [
            (x, g if isinstance(g, Tensor) else g.__flowrt_tensor__())
            for x, g in zip(xs, first, strict=True)
            if g is not None
        ]
        directions = {x: rng.standard_normal(feeds[x].shape) for x, _ in pairs}
        second = gradients([g for _, g in pairs], xs, [constant(directions[x]) for x, _ in pairs])
        sweep = {x: rng.standard_normal(feeds[x].shape) for x in xs}
        exact = 0.0
        for x, h in zip(xs, second, strict=True):
            if h is not None:
                exact += float(np.sum(np.asarray(value_of(h, feeds)) * sweep[x]))

        def slope(step: float) -> float:
            moved = {t: v + step * sweep[t] if t in sweep else v for t, v in feeds.items()}
            results = values_of([g for _, g in pairs], moved)
            return float(
                sum(np.sum(np.asarray(r) * directions[x]) for r, (x, _) in zip(results, pairs, strict=True))
            )

        numeric = (slope(STEP) - slope(-STEP)) / (2 * STEP)
        np.testing.assert_allclose(exact, numeric, rtol=1e-4, atol=1e-5)


def needs_a_session(op: OpDef) -> bool:
    """Whether it works on a session's object (a variable, an iterator, a Python function), which samples
    cannot give.
    """
    takes_one = any(argument.dtype is resource for argument in op.inputs)
    return op.effect is not Effect.PURE or op.state is not None or takes_one


def works_on_lists(op: OpDef) -> bool:
    """Whether it takes or gives lists of tensors, which samples cannot: see test_ops_tensor_lists.py."""
    return any(argument.dtype is variant for argument in (*op.inputs, *op.outputs))


def test_every_op_has_samples_unless_it_works_on_the_state_of_a_session() -> None:
    without = {o.name for o in registered_ops().values() if not list(o.samples(np.random.default_rng(0)))}
    assert (
        without - {o.name for o in registered_ops().values() if needs_a_session(o) or works_on_lists(o)}
        <= EXECUTOR_OPS | FUSED_OPS
    )


class Backwards(frozenset[dtypes.DType]):
    """As another process may have it: dtypes are hashed by their addresses."""

    def __iter__(self) -> Iterator[dtypes.DType]:
        return reversed(list(super().__iter__()))


def test_samples_are_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def described() -> list[Any]:
        samples = [(param.id, param.values[1]) for param in cases()]
        return [(i, [getattr(x, "dtype", None) for x in s.inputs], s.attrs.get("dtype")) for i, s in samples]

    found = described()
    for name in ("ANY", "COMPLEX", "FLOATING", "INDEX", "INEXACT", "INTEGER", "NUMERIC", "REAL"):
        monkeypatch.setattr(dtypes, name, Backwards(getattr(dtypes, name)))
    assert described() == found


def test_the_list_of_executor_ops_is_closed() -> None:
    assert {o.name for o in registered_ops().values() if o.kernel is BY_EXECUTOR} <= EXECUTOR_OPS
    assert not any(isinstance(o.shape, Rule) for o in registered_ops().values())


def test_an_op_is_not_half_defined() -> None:
    rules: dict[str, Any] = {"shape": unchanged, "vjp": NONDIFFERENTIABLE, "samples": lambda rng: ()}
    for missing in rules:
        given = {key: rule for key, rule in rules.items() if key != missing}
        with pytest.raises(InvalidArgumentError, match="'HalfAnOp'; one is missing"):
            define_op("HalfAnOp", "x: float32 -> float32", kernel=Ufunc("negative"), doc="", **given)
    assert "HalfAnOp" not in registered_ops()


def test_an_attr_is_not_named_as_what_kernels_are_lent() -> None:
    with pytest.raises(InvalidArgumentError, match="attrs of 'Scratch' with other names than workspace"):
        define_op(
            "Scratch",
            "x: float32 -> float32",
            attrs="workspace: float = 0.5",
            kernel=lambda xp, x, workspace=0.5: x * workspace,
            shape=unchanged,
            vjp=NONDIFFERENTIABLE,
            samples=lambda rng: (),
            doc="",
        )


@pytest.mark.parametrize("name", ["Less", "Shape", "RandomUniform", "Assert", "AssignVariableOp"])
def test_no_gradient_flows_through_what_cannot_have_one(name: str) -> None:
    assert op_def(name).vjp is op_def(name).jvp is NONDIFFERENTIABLE


def test_every_module_of_ops_is_loaded_by_all() -> None:
    folder = Path(all_ops.__file__).parent.parent
    files = [path for path in folder.rglob("*.py") if path.parent.name != "ragged"]  # it defines no ops
    modules = {path.stem for path in files} - {
        "__init__", "all", "axes", "batch_axis", "ctc_beam", "indexed_slices", "on_host",
    }  # fmt: skip
    assert modules == {name for name in vars(all_ops) if not name.startswith("_")} - {
        "control_flow",
        "constant",
    }


@pytest.mark.gpu
@pytest.mark.timeout(900)  # the first time, CuPy compiles more than a thousand kernels
def test_kernels_give_on_cupy_what_they_give_on_numpy() -> None:
    pytest.importorskip("cupy", reason="needs CuPy and a GPU")
    cupy = CudaExecutor(0, "/device:GPU:0").xp
    wrong = []
    for op in registered_ops().values():
        for sample in op.samples(np.random.default_rng(0)):
            arrays = [np.asarray(v) for v in flat_inputs(op, sample)]
            if (
                op.effect is not Effect.PURE
                or isinstance(op.kernel, Rule)
                or any(a.dtype == object for a in arrays)
            ):
                continue
            with Graph():
                operation, _ = build(op, sample)
            if not supports(operation.node, "GPU"):
                continue
            attrs = {k: operation.node.attrs[k] for k in op.kernel_attrs}
            with np.errstate(all="ignore"):
                here = op.kernel(np, *kernel_arguments(op, arrays, operation.node.attrs), **attrs)
            pairs = zip(op.inputs, sample.inputs, strict=True)
            on_host = [a.on_host for a, v in pairs for _ in (v if a.is_list else (v,))]
            moved = [a if h else cupy.asarray(a) for a, h in zip(arrays, on_host, strict=True)]
            there = op.kernel(cupy, *kernel_arguments(op, moved, operation.node.attrs), **attrs)
            several = isinstance(here, (list, tuple))
            for a, b in zip(here if several else [here], there if several else [there], strict=True):
                a, b = np.asarray(a), cupy.asnumpy(b)
                if op.up_to_phase:
                    a, b = np.abs(a), np.abs(b)
                if not np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
                    wrong.append(operation)
    assert wrong == []


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_a_gpu_computes_in_bfloat16_as_the_host_does() -> None:
    wrong = {}
    with tf.Session(graph=Graph(), config=tf.ConfigProto(allow_soft_placement=False)) as session:
        for op in registered_ops().values():
            for sample in op.samples(np.random.default_rng(0)):
                with session.graph.as_default(), contextlib.suppress(DTypeError):
                    call = build_call(op, _narrowed(op, sample), "/gpu:0")
                    if supports(call.operation.node, "GPU") and (
                        error := check_call(session, call, values_count=True)
                    ):
                        wrong[call.operation.name] = error
    assert wrong == {}


def _narrowed(op: OpDef, sample: Sample) -> Sample:
    """With bfloat16 instead of float32 and float64, but for inputs that stay on the host."""

    def narrowed(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [narrowed(v) for v in value]
        is_wide = np.asarray(value).dtype in (np.float32, np.float64)
        return value.astype(dtypes.bfloat16.np) if is_wide else value

    pairs = zip(op.inputs, sample.inputs, strict=True)
    return sample._replace(inputs=tuple(v if argument.on_host else narrowed(v) for argument, v in pairs))
