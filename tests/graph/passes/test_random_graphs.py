"""Random graphs give bitwise the same fetches and variables with each pass on and off, and with all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flowrt import dtypes
from flowrt.device.spec import parse_device
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.pipeline import OPTIMISATIONS, optimise
from flowrt.graph.passes.placement.place import place
from flowrt.graph.passes.prepare.infer import infer_shapes
from flowrt.graph.passes.prepare.order_effects import order_effects
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.each import nightly
from tests.graph.passes.cases import op, outcome, snapshot, subgraph_of

GRAPHS = 300
NODES = 40
DEVICES = ("", "/cpu:0", "/cpu:1", "/cpu:2")
SHAPES: tuple[tuple[int, ...], ...] = ((), (3,), (2, 3))
VALUES = (0.0, -0.0, 1.0, -1.5, 2.0, np.inf, np.nan)


class RandomGraph:
    """A graph of ``NODES`` random calls, its feeds and what is asked of it; all from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.tensors: list[Tensor] = []
        self.writes: list[Any] = []
        self.feeds: dict[str, Any] = {}
        self.initial: dict[str, Any] = {}
        self.fed: list[Tensor] = []
        self.variables: list[Tensor] = []
        with Graph() as self.graph:
            for shape in SHAPES:
                self._feed(shape, dtypes.float32)
                self._feed(shape, dtypes.int32)
                self._variable(shape)
            for _ in range(NODES):
                self._call()
            self.subgraph = infer_shapes(order_effects(self._ask()))

    # --- parts

    def _feed(self, shape: tuple[int, ...], dtype: Any) -> None:
        declared = [None if self.rng.random() < 0.5 else d for d in shape]
        tensor = placeholder(dtype, declared)
        self.tensors.append(tensor)
        self.fed.append(tensor)
        self.feeds[tensor.op.name] = self._array(shape, dtype)

    def _variable(self, shape: tuple[int, ...]) -> None:
        handle = op("VarHandleOp", dtype="float32", shape=shape)
        self.variables.append(handle)
        self.initial[handle.op.name] = self._array(shape, dtypes.float32)

    def _array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        chosen = self.rng.choice(VALUES if dtype.is_floating else (0, 1, -2, 7), shape)
        return np.asarray(chosen, dtype.np)

    def _choose(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def _pick(self, dtype: Any = None, shape: Any = None) -> Tensor:
        def fits(t: Tensor) -> bool:
            return (dtype is None or t.dtype is dtype) and (shape is None or t.spec.shape == shape)

        found = [t for t in self.tensors if fits(t)]
        if not found or (dtype is not None and self.rng.random() < 0.3):
            dims = self._choose(SHAPES) if shape is None else shape
            return constant(self._array(dims, dtype or dtypes.float32))
        return self._choose(found)

    def _call(self) -> None:
        with contextlib.ExitStack() as scopes:
            if self.rng.random() < 0.3:
                scopes.enter_context(self.graph.device(self._choose(DEVICES) or None))
            if self.rng.random() < 0.2:
                waited = [*self.tensors, *self.writes]
                controls = [waited[i] for i in self.rng.integers(len(waited), size=2)]
                scopes.enter_context(self.graph.control_dependencies(controls))
            made = self._choose(CALLS)(self)
        if isinstance(made, Tensor):
            self.tensors.append(made)
        elif isinstance(made, list):
            self.tensors += made
        else:
            self.writes.append(made)

    def _ask(self) -> Subgraph:
        fetches = [self.tensors[i] for i in self.rng.integers(len(self.tensors), size=6)]
        some = [w for w in self.writes if self.rng.random() < 0.5]
        targets = [*some, *[t.op for t in self.tensors if self.rng.random() < 0.05 and t not in self.fed]]
        return subgraph_of(fetches, targets, self.fed)

    # --- calls

    def number(self) -> Any:
        return self._choose((dtypes.float32, dtypes.int32))

    def binary(self) -> Tensor:
        dtype = self.number()
        name = self._choose(["AddV2", "Sub", "Mul", "Maximum"])
        return op(name, self._pick(dtype), self._pick(dtype))

    def unary(self) -> Tensor:
        name = self._choose(["Neg", "Identity", "StopGradient", "Abs", "Square", "Sign"])
        return op(name, self._pick(self.number()))

    def wide(self) -> list[Tensor]:
        return op("IdentityN", [self._pick(), self._pick()])

    def draw(self) -> Tensor:
        shape = constant(list(self._choose(SHAPES)), dtypes.int32)
        return op("RandomUniform", shape, seed=int(self.rng.integers(1, 9)), seed2=1)

    def read(self) -> Tensor:
        return op("ReadVariableOp", self._choose(self.variables), dtype="float32")

    def write(self) -> Any:
        handle = self._choose(self.variables)
        name = self._choose(["AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"])
        return op(name, handle, self._pick(dtypes.float32, tuple(handle.op.get_attr("shape"))))

    def group(self) -> Any:
        waited = [*self.tensors, *self.writes]
        with self.graph.control_dependencies([waited[i] for i in self.rng.integers(len(waited), size=3)]):
            return op("NoOp")

    def convert(self) -> Tensor:
        if self.rng.random() < 0.5:
            return op("Cast", self._pick(dtypes.int32), DstT="float32")
        return op(self._choose(["Size", "Rank"]), self._pick())

    def reshape(self) -> Tensor:
        x = self._pick(self.number())
        if self.rng.random() < 0.5:
            return op("Reshape", op("Reshape", x, constant([-1])), op("Shape", x))
        return op("Reshape", op("ExpandDims", x, constant(0)), op("Shape", x))

    def transpose(self) -> Tensor:
        x = self._pick(self.number(), (2, 3))
        return op("Transpose", op("Transpose", x, constant([1, 0])), constant([1, 0]))

    def unpack(self) -> list[Tensor]:
        return op("Unpack", self._pick(self.number(), (3,)), num=3)

    def pack(self) -> Tensor:
        dtype = self.number()
        return op("Sum", op("Pack", [self._pick(dtype, (3,)) for _ in range(2)]), constant([0]))


CALLS: list[Callable[[RandomGraph], Any]] = [
    RandomGraph.binary, RandomGraph.binary, RandomGraph.binary, RandomGraph.unary, RandomGraph.unary,
    RandomGraph.wide, RandomGraph.draw, RandomGraph.read, RandomGraph.read, RandomGraph.write,
    RandomGraph.group, RandomGraph.convert, RandomGraph.reshape, RandomGraph.transpose, RandomGraph.unpack,
    RandomGraph.pack,
]  # fmt: skip


def random_graphs(seeds: range) -> list[RandomGraph]:
    return [RandomGraph(seed) for seed in seeds]


@pytest.fixture(scope="module", params=nightly([range(100), range(100, GRAPHS)], 1), ids=str)
def graphs(request):
    return random_graphs(request.param)


@pytest.mark.parametrize("apply", [*OPTIMISATIONS.values(), optimise], ids=lambda f: f.__name__)
def test_a_pass_leaves_every_bit_of_every_result(graphs, apply):
    changed = 0
    for seed, made in enumerate(graphs):
        before = made.subgraph
        seen = snapshot(before)
        after = apply(before)
        assert snapshot(before) == seen, seed
        verify_subgraph(after)
        changed += after is not before
        assert after.feeds == before.feeds
        assert after.targets == before.targets
        assert outcome(after, made.feeds, made.initial) == outcome(before, made.feeds, made.initial), seed
    assert changed > len(graphs) // 2


def test_random_graphs_hold_what_they_are_for(graphs):
    names = {node.op.name for made in graphs for node in made.subgraph}
    assert {"NoOp", "RandomUniform", "AssignAddVariableOp", "ReadVariableOp", "IdentityN", "Unpack"} <= names
    assert any(node.controls for made in graphs for node in made.subgraph)


@pytest.mark.parametrize("optimised", [False, True])
def test_every_node_of_a_random_graph_gets_a_device_that_it_may_have(graphs, optimised):
    names = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)]
    devices = [parse_device(name) for name in names]
    for made in graphs:
        subgraph = optimise(made.subgraph) if optimised else made.subgraph
        after = place(subgraph, devices, assigned={}, soft=True)
        verify_subgraph(after)
        homes: dict[str, set[str]] = {}
        for node in after:
            assert node.device in names
            for name, index in node.inputs:
                if after.nodes[name].outputs[index].dtype is dtypes.resource:
                    homes.setdefault(name, {after.nodes[name].device}).add(node.device)
        assert all(len(found) == 1 for found in homes.values())
        assert outcome(after, made.feeds, made.initial) == outcome(subgraph, made.feeds, made.initial)
