"""Compiled loops against the plain kernels, with FLOWRT_JIT off, eager and background: every sample of every
op, extreme values, feeds that lie in any way, random graphs.

The bound: `ULP` units in the last place of the result, or, where numbers are added up, of the largest of
them. A loop may contract ``a * b + c``, and add up a row in another order; its functions are within 2 ulp of
the exact result, as NumPy's are. Below the smallest normal number only absolute differences count, since the
kernel of Sigmoid gives 0 there. The plan that the background compiles gives what the eager one gives, to the
last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.graph.evaluate import evaluate_node
from flowrt.graph.op_def import Effect, OpDef, Sample, op_def, registered_ops
from flowrt.graph.ops.surface import all as all_ops  # noqa: F401  (defines every op)
from flowrt.graph.passes.fusion import loop_budget
from flowrt.loops.loop_program import DTYPES
from tests.executor.fused_sessions import in_all_modes
from tests.graph.evaluation import assert_equal
from tests.graph.test_all_ops import build, feeds_of, flat_inputs
from tests.graph.test_loop_rules import EXTREMES, Case, extreme_cases, has_no_loop, with_loop

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

ULP = 4

ADDING = frozenset(["Add", "AddV2", "Sub", "Sum", "Mean", "SigmoidGrad", "TanhGrad", "Softmax", "LogSoftmax"])
"""Ops that add numbers which may cancel, softmax before it takes their powers."""


def assert_close(found: Any, plain: Any, what: object, added: Sequence[Any] = (), ulp: float = ULP) -> None:
    """``added``: arrays of what may have been added up to each element."""
    assert (found.dtype, found.shape) == (plain.dtype, plain.shape), what
    if not np.issubdtype(plain.dtype, np.floating):
        assert_equal(found, plain, str(what))
        return
    with np.errstate(all="ignore"):
        near = np.abs(found - plain) <= ulp * np.spacing(size_of(found, plain, added))
        tiny = np.maximum(np.abs(found), np.abs(plain)) < np.finfo(plain.dtype).tiny
    same = (found == plain) | (np.isnan(found) & np.isnan(plain)) | near | tiny
    assert same.all(), (what, found[~same], plain[~same])


def size_of(found: Any, plain: Any, added: Sequence[Any]) -> Any:
    """The numbers whose last place counts; 0 where there is none, as there two are only the same or not."""
    own = np.maximum(np.abs(found), np.abs(plain))
    largest = [np.abs(a)[np.isfinite(a)].max(initial=0) for a in added if a.dtype == plain.dtype]
    return np.where(np.isfinite(own), np.maximum(own, max(largest, default=own.dtype.type(0))), 0)


def assert_modes_agree(results: dict[str, list[Any]], what: Sequence[object], ulp: float = ULP) -> None:
    for plain, eager, background, awaiting, each in zip(*results.values(), what, strict=True):
        assert_equal(np.asarray(background), np.asarray(eager), str(each))
        for found in (eager, awaiting):
            assert_close(np.asarray(found), np.asarray(plain), each, ulp=ulp)


# --- every op


def has_values(tensor: Any) -> bool:
    return tensor.dtype.name not in ("resource", "variant")


def with_reader(tensor: Any) -> list[Any]:
    """The tensor, and what makes a group of the op and its reader, exactly."""
    if tensor.dtype == tf.bool:
        return [tensor, tf.logical_not(tensor)]
    is_number = tensor.dtype in (tf.float32, tf.float64, tf.int32, tf.int64)
    return [tensor, tensor * tf.constant(2, tensor.dtype)] if is_number else [tensor]


def run_samples(monkeypatch: Any, samples: Sequence[tuple[OpDef, Sample]]) -> tuple[Any, list[str], set[str]]:
    """The results of all of them in one graph, what each is of, and the ops that are in groups."""
    monkeypatch.setattr(loop_budget, "MAX_COMPILE_S", math.inf)
    fetches: list[Any] = []
    what: list[str] = []
    feeds: dict[Any, Any] = {}
    for op, sample in samples:
        operation, flat = build(op, sample)
        feeds.update(feeds_of(flat, flat_inputs(op, sample)))
        made = [t for output in filter(has_values, operation.outputs) for t in with_reader(output)]
        fetches += made
        what += [f"{op.name}{sample}"] * len(made)
    results, groups = in_all_modes(monkeypatch, fetches, feeds)
    return results, what, {name for group in groups for name in group}


@pytest.mark.parametrize("count", [1, pytest.param(None, marks=pytest.mark.slow)], ids=["first", "all"])
def test_every_sample_of_every_op(monkeypatch, count):
    ops = [op for op in registered_ops().values() if op.effect is Effect.PURE]
    samples = [(op, sample) for op in ops for sample in list(op.samples(np.random.default_rng(0)))[:count]]
    results, what, fused = run_samples(monkeypatch, samples)
    assert_modes_agree(results, what)
    assert len(fused) > 80


def sample_of(case: Case) -> Sample:
    inferred = {a.number_attr for a in case.op.inputs} | set(case.op.types) - {"DstT"}
    return Sample(case.inputs, {key: value for key, value in case.attrs.items() if key not in inferred})


@pytest.mark.parametrize(
    "dtype",
    ["float32", *[pytest.param(name, marks=pytest.mark.slow) for name in sorted({*DTYPES} - {"float32"})]],
)
def test_every_elementwise_op_on_nan_infinity_and_the_ends_of_its_dtype(monkeypatch, dtype):
    cases = [case for case in extreme_cases(with_loop(Effect.PURE)) if not has_no_loop(case)]
    cases = [case for case in cases if case.flat[-1].dtype == dtype]
    cases = [case for case in cases if case.op.name != "SoftplusGrad"]  # infinity times a sigmoid below tiny
    results, what, fused = run_samples(monkeypatch, [(case.op, sample_of(case)) for case in cases])
    assert_modes_agree(results, what)
    assert len(fused) > len(cases) / 3


# --- feeds


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "in C order": np.ascontiguousarray,
    "in Fortran order": np.asfortranarray,
    "every second column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "off its alignment": lambda x: (
        np.frombuffer(b"\0" + x.tobytes(), "u1")[1:].view(x.dtype).reshape(x.shape)
    ),
    "read only": lambda x: np.broadcast_to(x, (1, *x.shape))[0],
}


@pytest.mark.parametrize("shape", [(90, 130), (0, 4), (4, 0), (1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_feeds_that_lie_in_any_way(monkeypatch, dtype, shape):
    """Those of more than 64 KiB are read where they are."""
    x, y = tf.placeholder(dtype, shape), tf.placeholder(dtype, shape)
    z = tf.tanh(x) * x + tf.sqrt(tf.abs(y))
    fetches = [
        z, tf.exp(z) > y, tf.nn.softmax(x) * 2.0, tf.reduce_sum(tf.abs(z)), tf.reduce_sum(tf.square(z), 0),
        tf.reduce_mean(tf.square(z) + 1.0, 1), tf.reduce_sum(tf.exp(z), 1, keepdims=True) + z,
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for _ in range(2)]
    for name, lie in LAYOUTS.items():
        results, _ = in_all_modes(monkeypatch, fetches, dict(zip((x, y), map(lie, arrays), strict=True)))
        what = [f"{name}, fetch {i}" for i in range(len(fetches))]
        assert_modes_agree(results, what, ulp=32)  # NumPy adds up 90 rows one after the other


# --- random graphs


ELEMENTWISE = [
    op
    for op in with_loop(Effect.PURE)
    if all(a.type_attr == "T" and not a.is_list for a in op.inputs)
    and op.name != "BiasAdd"  # its bias is a vector
    and tf.float32 in op.types["T"]
    and not any(attr.required for key, attr in op.attrs.items() if key != "T")
]
"""Of one dtype, and so of one that is drawn."""


class RandomFloats:
    """A graph of random operations that loops can compute, on random numbers and `EXTREMES`, in matrices of
    ``shape`` that lie in any way, and what broadcasts with them.
    """

    def __init__(self, seed: int, shape: tuple[int, int] = (5, 7)) -> None:
        self._rng = np.random.default_rng(seed)
        self._dtype = ("float32", "float64")[seed % 2]
        self._shape = shape
        self._broadcast: list[tuple[int, ...]] = [(shape[0], 1), (shape[1],), ()]
        self.feeds: dict[Any, Any] = {}
        self.tensors: list[Any] = []
        for dims in (shape, shape, *self._broadcast):
            self._feed(dims)
        for _ in range(30):
            self.tensors.append(self._choose((*[self._elementwise] * 6, self._along_rows, self._reduced))())

    def _feed(self, shape: tuple[int, ...]) -> None:
        value = self._rng.standard_normal(shape) * self._choose((1.0, 1.0, 30.0))
        strange = self._rng.choice(EXTREMES[self._dtype], shape)
        value = np.where(self._rng.random(shape) < 0.1, strange, value).astype(self._dtype)
        self.tensors.append(tf.placeholder(self._dtype, shape))
        self.feeds[self.tensors[-1]] = self._choose([*LAYOUTS.values()])(value) if len(shape) == 2 else value

    def _choose(self, items: Sequence[Any]) -> Any:
        return items[int(self._rng.integers(len(items)))]

    def _pick(self, *shapes: tuple[int, ...]) -> Any:
        found = [t for t in self.tensors if t.dtype == self._dtype]
        return self._choose([t for t in found if not shapes or tuple(t.shape.as_list()) in shapes])

    def _elementwise(self) -> Any:
        op = self._choose(ELEMENTWISE)
        shape = self._shape
        inputs = [self._pick(shape), *[self._pick(shape, *self._others(op)) for _ in op.inputs[1:]]]
        return op(*[inputs[i] for i in self._rng.permutation(len(inputs))])

    def _others(self, op: OpDef) -> Iterator[tuple[int, ...]]:
        """Shapes that broadcast, for an op that lets them."""
        if op.name.endswith("Grad"):
            return
        yield from self._broadcast

    def _along_rows(self) -> Any:
        return op_def(self._choose(("Softmax", "LogSoftmax")))(self._pick(self._shape))

    def _reduced(self) -> Any:
        reduce = self._choose((tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min, tf.reduce_prod))
        axis, keep = self._choose((-1, -1, 0)), self._choose((True, False))
        return reduce(self._pick(self._shape), axis, keepdims=keep)


@pytest.mark.parametrize(
    "seed", [*range(4), *[pytest.param(n, marks=pytest.mark.slow) for n in range(4, 80)]]
)
def test_random_graphs(monkeypatch, seed):
    groups = check_random_graph(monkeypatch, RandomFloats(seed))
    assert sum(map(len, groups)) > 10


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", [(0, 7), (5, 0), (0, 0), (1, 1), (1, 7), (5, 1)])
def test_random_graphs_of_few_elements_or_none(monkeypatch, shape, seed):
    check_random_graph(monkeypatch, RandomFloats(seed, shape))


@pytest.mark.parametrize(
    "seed", [*range(6), *[pytest.param(n, marks=pytest.mark.slow) for n in range(6, 200)]]
)
def test_few_of_a_random_graphs_tensors_are_what_they_are_among_all(monkeypatch, seed):
    """Where most tensors are read by their graph alone results may take the memory of what is read last."""
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    random = RandomFloats(seed)
    few = [t for t in random.tensors[-1:] + random.tensors[10::9] if not depends_on_remainder(t.op)]
    with tf.Session() as session:
        among_all = session.run([*random.tensors, *few], random.feeds)[len(random.tensors) :]
        alone = session.run(few, random.feeds)
    for one, other, tensor in zip(alone, among_all, few, strict=True):
        assert_close(np.asarray(one), np.asarray(other), tensor, [np.asarray(other)], ulp=1 << 16)


def depends_on_remainder(op: Any) -> bool:
    """A remainder of large numbers is another one if their last bits are."""
    return op.type in ("TruncateMod", "FloorMod") or any(depends_on_remainder(t.op) for t in op.inputs)


def check_random_graph(monkeypatch: Any, random: RandomFloats) -> list[list[str]]:
    """Each tensor against its operation's kernel on what the compiled step made of its inputs."""
    results, groups = in_all_modes(monkeypatch, random.tensors, random.feeds)
    made = {t.ref: np.asarray(v) for t, v in zip(random.tensors, results["eager"], strict=True)}
    for tensor, later in zip(random.tensors, results["background"], strict=True):
        assert np.array_equal(made[tensor.ref], later, equal_nan=later.dtype.kind == "f")
        node = tensor.op.node
        if tensor not in random.feeds:
            inputs = [made[ref] if ref in made else np.asarray(constant(tensor, ref)) for ref in node.inputs]
            with np.errstate(all="ignore"):
                (plain,) = evaluate_node(node, inputs, None, np)
            assert_close(made[tensor.ref], np.asarray(plain), node, inputs if node.op.name in ADDING else ())
    return groups


def constant(reader: Any, ref: Any) -> Any:
    return reader.graph.get_operation_by_name(ref[0]).node.attrs["value"]


@pytest.mark.parametrize("columns", [12, 60, 64, 200, 2000])
def test_products_of_rows_overflow_only_where_the_kernel_does(monkeypatch, columns):
    x = tf.placeholder(tf.float32, [3, columns])
    rows = np.tile(np.array([1e30, 1e-30], np.float32), (3, columns // 2))
    results, _ = in_all_modes(monkeypatch, [tf.reduce_prod(x * 1.0, 1)], {x: rows})
    for (found,) in results.values():
        np.testing.assert_allclose(found, np.ones(3), rtol=1e-3)


def test_a_long_sum_of_integers_wraps_as_the_kernel_does(monkeypatch):
    x = tf.placeholder(tf.int32, [4000, 1000])
    values = np.random.default_rng(0).integers(0, 1 << 20, (4000, 1000), np.int32)
    results, _ = in_all_modes(monkeypatch, [tf.reduce_sum(tf.abs(x) * 2 + 1)], {x: values})
    assert len({int(found) for (found,) in results.values()}) == 1
