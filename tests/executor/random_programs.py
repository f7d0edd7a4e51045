"""Random programs of several steps, and what the reference interpreter says they give."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import flowrt as tf
from flowrt.graph.evaluate import evaluate
from flowrt.graph.node import Node
from flowrt.graph.passes.prepare.order_effects import order_effects
from flowrt.graph.passes.prepare.prune import extract

SHAPES: tuple[tuple[int, ...], ...] = ((4,), (3, 4), (4, 3), (4, 4))


class RandomProgram:
    """``calls`` random calls over ``devices`` of a ``kind``, with feeds, variables, views and shared readers;
    all from ``seed``.

    All numbers are small integers, so that float arithmetic is exact and a result has one right value.
    """

    kinds: Sequence[Callable[[Any], Any]]
    """The methods that make a call, each as often as it is here."""

    def __init__(self, seed: int, calls: int = 30, devices: int = 1, kind: str = "cpu") -> None:
        self.rng = np.random.default_rng(seed)
        self._devices, self._kind = devices, kind
        self.tensors: list[Any] = []
        self.writes: list[Any] = []
        self.variables: list[Any] = []
        self.placeholders: list[Any] = []
        with tf.Graph() as self.graph:
            for shape in SHAPES:
                self._placeholder(shape)
                self._variable(shape)
            self.axis = tf.placeholder(tf.int32, [])
            for _ in range(calls):
                self._call()
                if self.rng.random() < 0.1:
                    self._placeholder(self._choose(SHAPES))
            self.initializer = tf.global_variables_initializer()
        count = min(8, len(self.tensors))
        self.fetches = [self._choose(self.tensors) for _ in range(count)]
        self.targets = [w for w in self.writes if self.rng.random() < 0.6]
        self.feeds = [self._feed() for _ in range(3)]

    # --- the reference

    def expected(self) -> list[list[Any]]:
        """The fetches of each step and, at the end, the variables."""
        resources: dict[str, Any] = {}

        def state(node: Node) -> Any:
            if node.name not in resources:
                assert node.op.state is not None
                resources[node.name] = node.op.state(node)
            return resources[node.name]

        whole = order_effects(extract(self.graph, [], [self.initializer], {}))
        evaluate(whole, {}, state)
        results = []
        for feed in self.feeds:
            shapes = {t: np.shape(v) for t, v in feed.items()}
            subgraph = order_effects(extract(self.graph, self.fetches, self.targets, shapes))
            values = evaluate(subgraph, {t.op.name: v for t, v in feed.items()}, state)
            results.append([np.array(v) for v in values])
        results.append([np.array(resources[v.op.name].array) for v in self.variables])
        return results

    def run(self, session: Any) -> list[list[Any]]:
        """The same in ``session``. Every array is written over when it was looked at: they are
        the caller's.
        """
        session.run(self.initializer)
        results = []
        for feed in self.feeds:
            values, _ = session.run((self.fetches, self.targets), feed)
            results.append([np.array(v) for v in values])
            for value in values:
                if isinstance(value, np.ndarray):
                    value[...] = -77
        results.append([np.array(v) for v in session.run(self.variables)])
        return results

    # --- parts

    def _choose(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def _array(self, shape: Sequence[int]) -> Any:
        return self.rng.integers(-3, 4, shape).astype(np.float32)

    def _placeholder(self, shape: tuple[int, ...]) -> None:
        declared = [None if self.rng.random() < 0.3 else d for d in shape]
        tensor = tf.placeholder(tf.float32, declared)
        self.placeholders.append((tensor, shape))
        self.tensors.append(tensor)

    def _variable(self, shape: tuple[int, ...]) -> None:
        with self._somewhere():
            self.variables.append(tf.Variable(self._array(shape)))

    def _feed(self) -> dict[Any, Any]:
        feed = {tensor: self._array(shape) for tensor, shape in self.placeholders}
        feed[self.axis] = np.array(self.rng.integers(2), np.int32)
        return feed

    def _somewhere(self) -> Any:
        if self._devices == 1:
            return contextlib.nullcontext()
        return tf.device(f"/{self._kind}:{int(self.rng.integers(self._devices))}")

    def _pick(self, shape: tuple[int, ...] | None = None) -> Any:
        found = [t for t in self.tensors if shape is None or _dims(t) == shape]
        recent = found[-4:] if self.rng.random() < 0.5 else found
        return self._choose(recent) if recent else tf.constant(self._array(shape or (4,)))

    def _call(self) -> None:
        with contextlib.ExitStack() as scopes:
            scopes.enter_context(self._somewhere())
            if self.rng.random() < 0.15:
                waited = [self._choose([*self.tensors, *self.writes]) for _ in range(2)]
                scopes.enter_context(tf.control_dependencies(waited))
            made = self._choose(self.kinds)(self)
        (self.writes if isinstance(made, tf.Operation) else self.tensors).append(made)

    # --- calls

    def binary(self) -> Any:
        shape = self._choose(SHAPES)
        op = self._choose((tf.add, tf.subtract, tf.maximum, tf.minimum))
        return op(self._pick(shape), self._pick(shape))

    def broadcast(self) -> Any:
        return tf.add(self._pick((3, 4)), self._pick((4,)))

    def product(self) -> Any:
        shape = self._choose(SHAPES)
        return _small(tf.multiply(self._pick(shape), self._pick(shape)))

    def matmul(self) -> Any:
        return _small(tf.matmul(self._pick((4, 3)), self._pick((3, 4))))

    def unary(self) -> Any:
        op = self._choose((tf.negative, tf.identity, tf.nn.relu, tf.abs, tf.sign, tf.stop_gradient, tf.floor))
        return op(self._pick())

    def with_its_transpose(self) -> Any:
        x = self._pick((4, 4))
        return tf.add(x, tf.transpose(x))

    def transpose(self) -> Any:
        return tf.transpose(self._pick((3, 4)))

    def reshape(self) -> Any:
        """A view, or a copy, of a transpose."""
        shape = self._choose(((3, 4), (4, 3)))
        return tf.reshape(self._pick(shape), shape[::-1])

    def rows(self) -> Any:
        return self._pick((4, 3))[0:3, :][:, 0:3] if self.rng.random() < 0.5 else self._pick((4, 4))[1:4]

    def total(self) -> Any:
        """Along an axis that is fed, or computed from what is fed."""
        axis = self.axis if self.rng.random() < 0.5 else 1 - self.axis
        return tf.reduce_sum(self._pick((4, 4)), axis=axis)

    def masked(self) -> Any:
        """Of a length that nobody knows before the step."""
        x = self._pick((4,))
        return _small(tf.reduce_sum(tf.boolean_mask(x, x > 0)))

    def read(self) -> Any:
        return self._choose(self.variables).read_value()

    def write(self) -> Any:
        variable = self._choose(self.variables)
        value = self._pick(tuple(variable.shape.as_list()))
        add = self.rng.random() < 0.5
        return (variable.assign_add if add else variable.assign)(value, read_value=False)

    def written(self) -> Any:
        variable = self._choose(self.variables)
        return variable.assign(self._pick(tuple(variable.shape.as_list())))

    def python(self) -> Any:
        with tf.device("/cpu:0"):  # the only place of Python
            return tf.py_func(lambda x: x + 1, [self._pick((4,))], tf.float32)


_R = RandomProgram
_R.kinds = (
    *[_R.binary] * 5, _R.broadcast, _R.product, _R.matmul, *[_R.unary] * 3, _R.with_its_transpose,
    _R.transpose, _R.reshape, _R.rows, _R.total, _R.masked, *[_R.read] * 2, _R.write, _R.written, _R.python,
)  # fmt: skip


def _dims(tensor: Any) -> tuple[int, ...] | None:
    return None if tensor.shape.ndims is None else tuple(tensor.shape.as_list())


def _small(x: Any) -> Any:
    """Back to numbers whose sums and products are exact."""
    return tf.clip_by_value(x, -8.0, 8.0)


def assert_same(found: list[list[Any]], expected: list[list[Any]]) -> None:
    """Bit for bit, in every step."""
    for step, (values, wanted) in enumerate(zip(found, expected, strict=True)):
        for position, (a, b) in enumerate(zip(values, wanted, strict=True)):
            where = f"step {step}, fetch {position}"
            assert (a.dtype, a.shape) == (b.dtype, b.shape), where
            np.testing.assert_array_equal(a, b, err_msg=where)
