"""The loop rule of every op against its kernel: on its samples, on extreme values, on random variables.

A rule is built into a `LoopProgram`, which the NumPy interpreter of loops evaluates. Arithmetic agrees bit
for bit; what calls a function of loops (exp, erf, …) within `FUNCTION_ULP`, as the interpreter has NumPy's,
and below the smallest normal number anyhow: the kernel of sigmoid has no such results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from flowrt.dtypes import DType, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.evaluate import kernel_arguments
from flowrt.graph.op_def import NONDIFFERENTIABLE, Effect, OpDef, define_op, op_def, registered_ops
from flowrt.graph.op_facets import Loop, LoopPattern
from flowrt.graph.ops.surface import all as all_ops  # noqa: F401  (defines every op)
from flowrt.graph.resources.variables import VariableResource
from flowrt.loops.loop_program import DTYPES, FUNCTIONS, LoopBuilder, LoopProgram, Matrix, Store
from tests.each import of_each_op
from tests.loops.loop_reference import evaluate_loops

FUNCTION_ULP = 4

FAMILIES = {
    "arithmetic": "Add AddV2 Sub Mul Neg Abs Square SquaredDifference Maximum Minimum AddN Sign Reciprocal"
    " Inv",
    "quotients": "RealDiv Div FloorDiv TruncateDiv FloorMod TruncateMod Xdivy DivNoNan MulNoNan Xlogy"
    " Xlog1py",
    "comparison": "Less LessEqual Greater GreaterEqual Equal NotEqual IsNan IsInf IsFinite",
    "logic": "LogicalAnd LogicalOr LogicalNot BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift",
    "choice and dtype": "SelectV2 Cast ZerosLike OnesLike",
    "functions": "Exp Expm1 Log Log1p Sqrt Rsqrt Sigmoid Tanh Sin Cos Erf Pow",
    "rounding": "Floor Ceil Rint Round",
    "activations": "Relu Relu6 LeakyRelu Elu Selu Softplus Softsign BiasAdd",
    "gradients of functions": "TanhGrad SigmoidGrad SqrtGrad RsqrtGrad ReciprocalGrad",
    "gradients of activations": "ReluGrad Relu6Grad LeakyReluGrad EluGrad SeluGrad SoftplusGrad SoftsignGrad",
    "shapes": "BroadcastTo Reshape ExpandDims Squeeze",
    "gathers": "GatherV2 ResourceGather",
    "along rows": "Softmax LogSoftmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
    "assignments": "AssignVariableOp AssignAddVariableOp AssignSubVariableOp",
    "optimizers": "ResourceApplyGradientDescent ResourceApplyMomentum ResourceApplyAdagrad"
    " ResourceApplyAdadelta ResourceApplyRMSProp ResourceApplyCenteredRMSProp ResourceApplyAdam"
    " ResourceApplyFtrl",
}

QUOTIENTS = ["Div", "FloorDiv", "TruncateDiv", "FloorMod", "TruncateMod"]
"""Those that refuse integers of which a divisor is 0."""

EXTREMES: dict[str, list[Any]] = {
    "bool": [False, True],
    **{
        name: [np.iinfo(name).min, np.iinfo(name).min + 1, -33, -7, -1, 0, 1, 6, 31, 64, np.iinfo(name).max]
        for name in ("int32", "int64")
    },
    **{
        name: [
            *(math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -3.5, 6.0, 90.0, -90.0),
            *(s * v for s in (1, -1) for v in (info.max, info.tiny, info.smallest_subnormal, info.eps)),
        ]
        for name, info in (("float32", np.finfo("float32")), ("float64", np.finfo("float64")))
    },
}


class Case(NamedTuple):
    """One call of an op: flat inputs, and attrs with their defaults."""

    op: OpDef
    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any]

    @property
    def flat(self) -> list[Any]:
        return [v for value in self.inputs for v in (value if isinstance(value, tuple) else (value,))]


def with_loop(effect: Effect, pattern: LoopPattern = LoopPattern.ELEMENTWISE) -> list[OpDef]:
    return [
        op
        for op in registered_ops().values()
        if op.loop is not None
        and op.effect is effect
        and op.loop.pattern is pattern
        and op.name not in FAMILIES["shapes"].split()
    ]


def complete(op: OpDef, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {key: attr.default for key, attr in op.attrs.items() if not attr.required}
    lengths = {a.number_attr: len(v) for a, v in zip(op.inputs, inputs, strict=True) if a.number_attr}
    return {**defaults, **lengths, **attrs}


def is_fusible(case: Case) -> bool:
    target = case.attrs.get("DstT")
    return all(np.asarray(v).dtype.name in DTYPES for v in case.flat) and (
        target is None or target.name in DTYPES
    )


def sample_cases(ops: Sequence[OpDef]) -> Iterator[Case]:
    for op in ops:
        for sample in op.samples(np.random.default_rng(0)):
            case = Case(op, sample.inputs, complete(op, sample.inputs, sample.attrs))
            if is_fusible(case):
                yield case


def extreme_cases(ops: Sequence[OpDef]) -> Iterator[Case]:
    """All combinations of extreme inputs, for every dtype of loops that the op takes."""
    for op in ops:
        variables = [key for key in ("T", "SrcT") if key in op.types]
        choices = op.types[variables[0]] if variables else {as_dtype("bool")}
        for dtype in sorted((d for d in choices if d.name in DTYPES), key=lambda d: d.name):
            yield from _extreme_cases_of(op, dtype)


def _extreme_cases_of(op: OpDef, dtype: DType) -> Iterator[Case]:
    kinds = [dtype if argument.dtype is None else argument.dtype for argument in op.inputs]
    inputs: list[Any] = [
        np.array(column, kind.np)
        for kind, column in zip(
            kinds, zip(*itertools.product(*[EXTREMES[k.name] for k in kinds]), strict=True), strict=True
        )
    ]
    if op.name in QUOTIENTS and dtype.is_integer:
        inputs = [column[inputs[1] != 0] for column in inputs]
    if op.name == "BiasAdd":
        inputs = [np.tile(inputs[0], (2, 1)), inputs[1]]
    if op.inputs[0].number_attr:
        inputs = [(inputs[0], inputs[0][::-1].copy(), inputs[0])]
    targets = op.types.get("DstT", ())
    for attrs in [{"DstT": t} for t in targets if t.name in DTYPES] or [{}]:
        yield Case(op, tuple(inputs), complete(op, inputs, attrs))


def named(cases: Iterator[Case]) -> list[Any]:
    return [
        pytest.param(case, id=f"{case.op.name}-{case.flat[0].dtype}-{number}")
        for number, case in enumerate(cases)
    ]


# --- building and comparing


def build(case: Case, is_row: Sequence[bool]) -> LoopProgram | None:
    """The program of the case's rule; its operands are the flat inputs, then the results, then the status."""
    assert case.op.loop is not None
    b = LoopBuilder()
    loaded = [b.load(b.operand(value.dtype.name), row) for value, row in zip(case.flat, is_row, strict=True)]
    results = case.op.loop.build(
        b, *kernel_like(case.op, loaded, case.attrs), **{key: case.attrs[key] for key in case.op.loop_attrs}
    )
    if results is None:
        return None
    for value in results if isinstance(results, tuple) else (results,):
        b.put(value, b.operand(value.dtype))
    return b.build()


def kernel_like(op: OpDef, values: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    assert not any(argument.on_host for argument in op.inputs)
    return kernel_arguments(op, values, attrs)


def run_kernel(case: Case) -> list[Any]:
    attrs = {key: case.attrs[key] for key in case.op.kernel_attrs}
    with np.errstate(all="ignore"):
        result = case.op.kernel(np, *kernel_arguments(case.op, case.flat, case.attrs), **attrs)
    return list(result) if len(case.op.outputs) > 1 else [result]


def calls_functions(program: LoopProgram) -> bool:
    return any(instruction.op in FUNCTIONS for instruction in program.instructions)


def ulps_apart(x: Any, y: Any) -> Any:
    """How far apart the elements of two float arrays lie; two NaNs are 0 apart."""

    def place(array: Any) -> Any:
        bits = array.view(f"i{array.itemsize}").astype(np.int64)
        lowest = np.int64(np.iinfo(f"i{array.itemsize}").min)
        ordered = np.where(bits < 0, lowest - bits, bits)
        return ordered.view(np.uint64) ^ np.uint64(1 << 63)

    a, b = place(x), place(y)
    apart = np.where(a > b, a - b, b - a)
    return np.where(np.isnan(x) & np.isnan(y), np.uint64(0), apart)


def assert_equal(got: Any, expected: Any, ulp: int) -> None:
    got, expected = np.ascontiguousarray(got), np.ascontiguousarray(expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    far = ulps_apart(got, expected) > ulp
    if ulp == 0:
        far |= (np.signbit(got) != np.signbit(expected)) & ~np.isnan(expected)
    else:
        far &= np.maximum(np.abs(got), np.abs(expected)) >= np.finfo(expected.dtype).tiny
    assert not far.any(), (got[far], expected[far])


# --- elementwise


def elementwise_results(case: Case) -> tuple[LoopProgram, list[Any]]:
    """The rule's results on the inputs broadcast and laid out as one row; scalars are row values."""
    shape = np.broadcast_shapes(*[v.shape for v in case.flat])
    is_row = [v.ndim == 0 and shape != () for v in case.flat]
    program = build(case, is_row)
    assert program is not None
    operands = [
        np.broadcast_to(v, () if row else shape).reshape(1, -1)
        for v, row in zip(case.flat, is_row, strict=True)
    ]
    return program, [
        np.broadcast_to(r, (1, math.prod(shape))).reshape(shape) for r in results_of(program, operands)
    ]


def results_of(program: LoopProgram, operands: Sequence[Any]) -> list[Any]:
    """The op's outputs, and behind them the status of the checks, if there are any."""
    operands = [*operands, *[None] * (len(program.dtypes) - len(operands))]
    results = evaluate_loops(program, operands)
    order = sorted(range(len(results)), key=lambda i: program.outputs[i].store is Store.CHECK)
    return [results[i] for i in order]


def has_no_loop(case: Case) -> bool:
    """What the rules leave to the kernels: see `test_a_rule_leaves_to_the_kernel_…`."""
    kind = case.flat[0].dtype.kind
    return (case.op.name == "Pow" and kind == "i") or case.attrs.get("data_format") == "NCHW"


ELEMENTWISE = with_loop(Effect.PURE)


@of_each_op(named(sample_cases(ELEMENTWISE)) + named(extreme_cases(ELEMENTWISE)))
def test_elementwise_rules_agree_with_kernels(case: Case) -> None:
    if has_no_loop(case):
        assert build(case, [False] * len(case.flat)) is None
        return
    program, results = elementwise_results(case)
    ulp = FUNCTION_ULP if calls_functions(program) else 0
    for got, expected in zip(results[: len(case.op.outputs)], run_kernel(case), strict=True):
        assert_equal(got, np.asarray(expected), ulp)


@pytest.mark.parametrize("divisors", [[3, 0, -1], [3, 1, -1]])
@pytest.mark.parametrize("name", QUOTIENTS)
def test_an_integer_divisor_that_is_zero_fails_the_check(name: str, divisors: list[int]) -> None:
    inputs = (np.array([5, -7, np.iinfo(np.int32).min], np.int32), np.array(divisors, np.int32))
    program, (quotients, status) = elementwise_results(Case(op_def(name), inputs, {}))
    assert program.status is not None
    assert status.all() == status.any() == (0 in divisors)
    if 0 not in divisors:
        assert_equal(quotients, run_kernel(Case(op_def(name), inputs, {}))[0], 0)


@pytest.mark.parametrize("name", QUOTIENTS)
def test_a_divisor_that_is_known_needs_no_check(name: str) -> None:
    loop = op_def(name).loop
    assert loop is not None
    for divisor, is_checked in [(10, False), (-1, False), (0, True)]:
        b = LoopBuilder()
        x = b.load(b.operand("int64"))
        b.put(loop.build(b, x, b.const(divisor, "int64")), b.operand("int64"))
        assert (b.build().status is not None) == is_checked


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("name", ["LeakyRelu", "LeakyReluGrad"])
def test_a_rule_gets_the_attrs_that_it_names(name: str, alpha: float) -> None:
    for case in extreme_cases([op_def(name)]):
        changed = case._replace(attrs={"alpha": alpha})
        assert_equal(elementwise_results(changed)[1][0], run_kernel(changed)[0], 0)


# --- along rows


def row_results(case: Case) -> tuple[LoopProgram, list[Any]]:
    """The rule's results: of shape [rows, columns], or [rows] where it gives one value a row."""
    columns = case.flat[0].shape[-1]
    is_row = [v.ndim < case.flat[0].ndim for v in case.flat]
    program = build(case, is_row)
    assert program is not None
    operands = [
        v.reshape(-1, 1) if row else np.broadcast_to(v, case.flat[0].shape).reshape(-1, columns)
        for v, row in zip(case.flat, is_row, strict=True)
    ]
    return program, results_of(program, operands)


def not_finite_rows() -> Iterator[Case]:
    rows = np.array([[1e4, -1e4, 0], [-math.inf, 0, 1], [math.inf, 0, 1], [math.nan, 0, 1], [-math.inf] * 3])
    for op in with_loop(Effect.PURE, LoopPattern.ALONG_ROWS):
        for dtype in ("float32", "float64"):
            logits = rows.astype(dtype)
            labels = {"Soft": np.full((5, 3), 1 / 3, dtype), "Spar": np.array([0, 1, 2, 1, 0], np.int32)}
            inputs = (logits, labels[op.name[:4]]) if len(op.inputs) == 2 else (logits,)
            yield Case(op, inputs, complete(op, inputs, {}))


@of_each_op(named(sample_cases(with_loop(Effect.PURE, LoopPattern.ALONG_ROWS))) + named(not_finite_rows()))
def test_rules_along_rows_agree_with_kernels(case: Case) -> None:
    if case.flat[0].shape[-1] == 0:
        return  # a loop over no columns has nothing to give
    expectations = run_kernel(case)
    results = row_results(case)[1][: len(expectations)]
    for got, expected in zip(results, expectations, strict=True):
        np.testing.assert_allclose(
            np.asarray(got).reshape(expected.shape),
            expected,
            rtol=4 * np.finfo(expected.dtype).eps,
            atol=4 * np.finfo(expected.dtype).eps,
        )


@pytest.mark.parametrize(("label", "failed"), [(-1, 1), (0, 0), (2, 0), (3, 1)])
def test_a_label_that_is_no_class_fails_the_check(label: int, failed: int) -> None:
    op = op_def("SparseSoftmaxCrossEntropyWithLogits")
    inputs = (np.zeros((2, 3), np.float32), np.array([1, label], np.int32))
    program, (_, _, status) = row_results(Case(op, inputs, {}))
    assert program.status is not None
    assert int(status) == failed


@pytest.mark.parametrize(("name", "axis"), [("GatherV2", (0,)), ("ResourceGather", ())])
@pytest.mark.parametrize(
    ("rows", "failed"), [([2, 0, 2], 0), ([0, 3, 1], 1), ([-1, 0, 1], 1), ([1, 2, 2**40], 1)]
)
def test_a_gather_reads_rows_by_number(
    name: str, axis: tuple[int, ...], rows: list[int], failed: int
) -> None:
    table, numbers = np.arange(6, dtype=np.float32).reshape(3, 2), np.array(rows)
    b = LoopBuilder()
    matrix, number = Matrix(b, b.operand("float32"), 3), b.load(b.operand("int64"), True)
    loop = op_def(name).loop
    assert loop is not None
    b.put(loop.build(b, matrix, number, *axis, batch_dims=0), b.operand("float32"))
    status, found = evaluate_loops(b.build(), [table, numbers[:, None]], (3, 2))
    assert int(status) == failed
    assert found.tolist() == [table[n].tolist() if 0 <= n < 3 else [0, 0] for n in rows]
    assert loop.build(b, matrix, number, *axis, batch_dims=1) is None


# --- what is written


def update_cases() -> Iterator[Case]:
    """Dense updates and assignments, with each setting of their switches."""
    for op in with_loop(Effect.WRITE):
        switches = [key for key in op.loop_attrs if op.attrs[key].kind == "bool"]
        for settings in itertools.product((False, True), repeat=len(switches)):
            for dtype in ("float32", "float64"):
                yield Case(op, _update_inputs(op, dtype), dict(zip(switches, settings, strict=True)))


def _update_inputs(op: OpDef, dtype: str) -> tuple[Any, ...]:
    """Normal numbers, but for means of squares, which are at least 1, and scalars, which are in (0, 1)."""
    rng = np.random.default_rng(3)

    def draw(name: str, is_resource: bool) -> Any:
        if name == "lr_power":
            return -0.5
        if name in ("accum", "accum_update", "ms", "v"):
            return 1 + np.abs(rng.standard_normal(1000))
        if name == "mg":
            return rng.uniform(-1, 1, 1000)  # below ms when squared: ms - mg^2 is a variance
        is_array = is_resource or name in ("grad", "value")
        return rng.standard_normal(1000) if is_array else rng.uniform(0.1, 0.9)

    return tuple([np.array(draw(a.name, a.dtype is not None), dtype) for a in op.inputs])


def run_update(case: Case) -> list[Any]:
    """The resources' arrays after the kernel has run."""
    values: list[Any] = []
    resources: list[VariableResource] = []
    for argument, value in zip(case.op.inputs, case.inputs, strict=True):
        if argument.dtype is not None:
            resource = VariableResource(argument.name, as_dtype(value.dtype), value.shape)
            resource.assign(np, value)
            resources.append(resource)
        values.append(value if argument.dtype is None else resources[-1])
    case.op.kernel(np, *values, **case.attrs)
    return [resource.read() for resource in resources]


@of_each_op(named(update_cases()))
def test_updates_agree_with_kernels(case: Case) -> None:
    program, results = elementwise_results(case)
    ulp = 256 if calls_functions(program) else 0  # Ftrl's difference of two powers cancels
    for got, expected in zip(results, run_update(case), strict=True):
        assert_equal(got, expected, ulp)


# --- the facts


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_rules(family: str) -> None:
    assert {name for name in FAMILIES[family].split() if op_def(name).loop is None} == set()


def test_every_rule_is_of_a_family() -> None:
    have = {op.name for op in registered_ops().values() if op.loop is not None}
    assert have - {name for names in FAMILIES.values() for name in names.split()} == set()


def test_only_elementwise_ops_have_rules_that_are_not_along_rows() -> None:
    assert {op.name for op in ELEMENTWISE if not op.elementwise} == set()
    rules = {op.name: op.loop for op in registered_ops().values() if op.loop is not None}
    reshapes = {name for name, loop in rules.items() if loop.pattern is LoopPattern.RESHAPE}
    assert reshapes < set(FAMILIES["shapes"].split())


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min"])
def test_a_reduction_says_what_it_does(name: str) -> None:
    found = [op for op in registered_ops().values() if op.reduction == name]
    assert [op.name for op in found] == [name.capitalize()]
    assert all(op.inputs[1].on_host for op in found)


def refused(loop: Loop) -> str:
    with pytest.raises(InvalidArgumentError) as error:
        define_op(
            "TestLoopRules",
            "x: float32 -> float32",
            attrs="halved: bool = False",
            shape=lambda s: [s.shapes[0]],
            kernel=lambda xp, x: x,
            vjp=NONDIFFERENTIABLE,
            jvp=NONDIFFERENTIABLE,
            samples=lambda rng: (),
            loop=loop,
            doc="",
        )
    assert "TestLoopRules" not in registered_ops()
    return str(error.value)


def test_a_rule_that_asks_for_an_unknown_attr_is_refused() -> None:
    message = refused(Loop(lambda b, x, *, halve: x))
    assert message == "loop of TestLoopRules: expected attrs of the op; got halve. Nearest: halved"


def test_a_rule_that_does_not_take_the_inputs_is_refused() -> None:
    message = refused(Loop(lambda b, x, y: x))
    assert message == "loop of TestLoopRules: expected a builder and 1 inputs as parameters; got (b, x, y)"
