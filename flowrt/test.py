# ruff: noqa: PT009, PT027  unittest's own style is what this module extends
"""``flowrt.test``: unit tests in TensorFlow 1's style, over the standard library's unittest.

Beside `TestCase` and its comparisons there is the check of gradients against finite differences.
"""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any
from unittest import mock  # noqa: F401  part of the interface

import numpy as np

from flowrt.base.structure import map_structure
from flowrt.device.cuda.cuda import visible_devices
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.executor.ends.config import ConfigProto
from flowrt.executor.session.default_session import get_default_session
from flowrt.executor.session.session import Session
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Graph, Tensor, reset_default_graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.base.filling import zeros
from flowrt.graph.ops.random.random_ops import set_random_seed
from flowrt.graph.tf1_signatures import passing_on
from flowrt.graph.typing import NumericLike
from flowrt.tf1.missing_names import missing_from
from flowrt.variables.variable import Variable

RANDOM_SEED = 87654321
_directories: list[str] = []


def get_temp_dir() -> str:
    """One directory for the whole process, removed when it ends.

    Returns:
        Its path.

    Example:
        >>> import os
        >>> os.path.isdir(tf.test.get_temp_dir())
        True
    """
    if not _directories:
        _directories.append(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, _directories[0], ignore_errors=True)
    return _directories[0]


def is_built_with_cuda() -> bool:
    """Whether the library for CUDA devices is installed."""
    return find_spec("cupy") is not None


def gpu_device_name() -> str:
    """The first GPU's name, valid in a device scope, or the empty string."""
    return "/device:GPU:0" if visible_devices() else ""


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: Any = None) -> bool:
    """Whether there is a GPU, of the compute capability ``(major, minor)`` or a later one if that is given.

    All GPUs are CUDA's here, so ``cuda_only`` changes nothing.
    """
    least = tuple(min_cuda_compute_capability or (0, 0))
    return any(gpu.compute_capability >= least for gpu in visible_devices())


def main(argv: list[str] | None = None) -> None:
    """Run the tests of the script and exit.

    Args:
        argv: The script's name and the arguments of unittest; None for those of the process.
    """
    unittest.main(argv=argv)


# --- gradients against finite differences


def compute_gradient(
    x: Any,
    x_shape: Any,
    y: Tensor,
    y_shape: Any,
    x_init_value: Any = None,
    delta: float = 1e-3,
    init_targets: Any = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
) -> Any:
    """The Jacobian dy/dx, ``[size of x, size of y]``, by gradients and by central differences of width
    ``delta``.

    For a list of xs a list of such pairs. Needs a default session. ``x_init_value`` is where (random if
    None).
    """
    feeds = dict(extra_feed_dict or {})
    if init_targets is not None:
        for target in init_targets if isinstance(init_targets, (list, tuple)) else [init_targets]:
            target.run()
    if not isinstance(x, (list, tuple)):
        return _jacobians(x, x_shape, y, y_shape, x_init_value, delta, feeds)
    starts = [None] * len(x) if x_init_value is None else x_init_value
    return [
        _jacobians(one, shape, y, y_shape, start, delta, feeds)
        for one, shape, start in zip(x, x_shape, starts, strict=True)
    ]


@passing_on(compute_gradient)
def compute_gradient_error(**arguments: Any) -> float:
    """The largest difference between the two Jacobians of `compute_gradient`."""
    found = compute_gradient(**arguments)
    pairs = found if isinstance(found, list) else [found]
    return max(float(np.abs(a - b).max(initial=0)) for a, b in pairs)


def _jacobians(
    x: Tensor, x_shape: Any, y: Tensor, y_shape: Any, start: Any, delta: float, feeds: dict[Any, Any]
) -> tuple[Any, Any]:
    session = get_default_session()
    dtype = x.dtype.as_numpy_dtype
    at = np.random.random_sample(x_shape) if start is None else np.array(start)
    at = at.astype(dtype).reshape(x_shape)
    dy = zeros(y_shape, y.dtype)
    dx = gradients(y, x, dy)[0]
    theory, numeric = np.zeros((2, at.size, int(np.prod(y_shape, dtype=int))), dtype)
    for column in range(theory.shape[1]):
        seed = np.zeros(theory.shape[1], dy.dtype.as_numpy_dtype)
        seed[column] = 1
        given = {**feeds, x: at, dy: seed.reshape(y_shape)}
        theory[:, column] = 0 if dx is None else session.run(convert_to_tensor(dx), given).ravel()
    for row in range(at.size):
        ends = [session.run(y, {**feeds, x: _moved(at, row, d)}) for d in (delta, -delta)]
        numeric[row] = (ends[0].ravel() - ends[1].ravel()) / (2 * delta)
    return theory, numeric


def _moved(x: Any, index: int, by: float) -> Any:
    moved = x.copy()
    moved.flat[index] += by
    return moved


# --- TestCase


class TestCase(unittest.TestCase):
    """A unittest.TestCase in which every test begins with an empty default graph and fixed random seeds.

    Args:
        methodName: The name of the test that it runs.

    Example:
        >>> class SquareTest(tf.test.TestCase):
        ...     def test_square(self):
        ...         with self.test_session():
        ...             self.assertAllClose(tf.square([2.0, 3.0]).eval(), [4.0, 9.0])
    """

    def __init__(self, methodName: str = "runTest") -> None:
        super().__init__(methodName)
        self._cached: Session | None = None

    def run(self, result: Any = None) -> Any:
        reset_default_graph()
        random.seed(RANDOM_SEED)
        np.random.seed(RANDOM_SEED)
        set_random_seed(RANDOM_SEED)
        return super().run(result)

    def get_temp_dir(self) -> str:
        return tempfile.mkdtemp(dir=get_temp_dir())

    @contextmanager
    def session(
        self,
        graph: Graph | None = None,
        config: ConfigProto | None = None,
        use_gpu: bool = False,
        force_gpu: bool = False,
    ) -> Iterator[Session]:
        """A session of ``graph`` (the default graph if None) that ends with the block."""
        with Session(graph=graph, config=config) as session:
            yield session

    @contextmanager
    def cached_session(
        self,
        graph: Graph | None = None,
        config: ConfigProto | None = None,
        use_gpu: bool = False,
        force_gpu: bool = False,
    ) -> Iterator[Session]:
        """The same as `session`, but shared by the test's blocks, so that variables keep their values."""
        if self._cached is None:
            self._cached = Session(graph=graph, config=config)
            self.addCleanup(self._close)
        with self._cached.graph.as_default(), self._cached.as_default():
            yield self._cached

    @property
    def test_session(self) -> Callable[..., AbstractContextManager[Session]]:
        """`cached_session`; a property, because unittest would run a method of this name as a test."""
        return self.cached_session

    def _close(self) -> None:
        if self._cached is not None:
            self._cached.close()
            self._cached = None

    def evaluate(self, tensors: Any) -> Any:
        """The values of a structure of tensors in the default session."""
        session = get_default_session() or self._cached
        if session is None:
            raise InvalidArgumentError(
                "evaluate: expected a session; got none. Use 'with self.cached_session():'"
            )
        return session.run(tensors)

    def _array(self, value: Any) -> Any:
        if isinstance(value, (Tensor, Variable)):
            value = self.evaluate(value)
        return np.asarray(value)

    def assertAllClose(self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: Any = None) -> None:
        """Arrays, or structures of arrays, are equal within ``atol + rtol * |b|``."""
        if isinstance(a, Mapping):
            self.assertEqual(sorted(a), sorted(b), msg)
            for key in a:
                self.assertAllClose(a[key], b[key], rtol, atol, f"{key}: {msg}")
        elif isinstance(a, (list, tuple)) and any(np.ndim(v) for v in a):
            self.assertEqual(len(a), len(b), msg)
            for one, other in zip(a, b, strict=True):
                self.assertAllClose(one, other, rtol, atol, msg)
        else:
            first, second = self._array(a), self._array(b)
            self.assertEqual(first.shape, second.shape, msg)
            np.testing.assert_allclose(first, second, rtol, atol, err_msg=msg or "")

    def assertAllCloseAccordingToType(
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, float_rtol: float = 1e-6,
        float_atol: float = 1e-6, half_rtol: float = 1e-3, half_atol: float = 1e-3,
        bfloat16_rtol: float = 1e-2, bfloat16_atol: float = 1e-2, msg: Any = None,
    ) -> None:  # fmt: skip
        """`assertAllClose` with the tolerance of the narrower dtype."""
        first, second = self._array(a), self._array(b)
        names = {first.dtype.name, second.dtype.name}
        for name, wider in (
            ("float32", (float_rtol, float_atol)),
            ("float16", (half_rtol, half_atol)),
            ("bfloat16", (bfloat16_rtol, bfloat16_atol)),
        ):
            if name in names:
                rtol, atol = max(rtol, wider[0]), max(atol, wider[1])
        self.assertAllClose(first.astype(np.float64), second.astype(np.float64), rtol, atol, msg)

    def assertNotAllClose(self, a: Any, b: Any, **kwargs: Any) -> None:
        with self.assertRaises(AssertionError):
            self.assertAllClose(a, b, **kwargs)

    def assertAllEqual(self, a: Any, b: Any, msg: Any = None) -> None:
        """Arrays have the same shape and elements; NaNs are equal."""
        first, second = self._array(a), self._array(b)
        self.assertEqual(first.shape, second.shape, msg)
        np.testing.assert_array_equal(first, second, err_msg=msg or "")

    def assertNotAllEqual(self, a: NumericLike, b: NumericLike, msg: Any = None) -> None:
        with self.assertRaises(AssertionError, msg=msg):
            self.assertAllEqual(a, b)

    def assertShapeEqual(self, np_array: Any, tf_tensor: Tensor, msg: Any = None) -> None:
        self.assertEqual(list(np.shape(np_array)), tf_tensor.get_shape().as_list(), msg)

    def assertNear(self, f1: float, f2: float, err: float, msg: Any = None) -> None:
        self.assertLessEqual(abs(f1 - f2), err, msg)

    def assertArrayNear(self, farray1: Any, farray2: Any, err: float, msg: Any = None) -> None:
        self.assertEqual(len(farray1), len(farray2), msg)
        for one, other in zip(farray1, farray2, strict=True):
            self.assertNear(float(one), float(other), err, msg)

    def assertNDArrayNear(self, ndarray1: Any, ndarray2: Any, err: float, msg: Any = None) -> None:
        self.assertLessEqual(float(np.linalg.norm(np.asarray(ndarray1) - np.asarray(ndarray2))), err, msg)

    def assertStartsWith(self, actual: str, expected_start: str, msg: Any = None) -> None:
        self.assertTrue(actual.startswith(expected_start), msg or f"{actual!r} begins otherwise")

    def assertDTypeEqual(self, target: Any, expected_dtype: Any) -> None:
        map_structure(lambda t: self.assertEqual(self._array(t).dtype, np.dtype(expected_dtype)), target)

    assertItemsEqual = unittest.TestCase.assertCountEqual
    assertRaisesRegexp = unittest.TestCase.assertRaisesRegex

    @contextmanager
    def assertRaisesWithPredicateMatch(
        self, exception_type: type[BaseException], expected_err_re_or_predicate: str | Callable[[Any], Any]
    ) -> Iterator[None]:
        """Check that the block raises an ``exception_type`` with a text that matches the pattern, or for
        which the predicate returns True.
        """
        predicate = expected_err_re_or_predicate
        if not callable(predicate):
            with self.assertRaisesRegex(exception_type, predicate):
                yield
            return
        with self.assertRaises(exception_type) as caught:
            yield
        self.assertTrue(predicate(caught.exception), f"unexpected error: {caught.exception}")

    def assertRaisesOpError(self, expected_err_re_or_predicate: str | Callable[[Any], Any]) -> Any:
        return self.assertRaisesWithPredicateMatch(OpError, expected_err_re_or_predicate)

    def assertDeviceEqual(self, device1: Any, device2: Any, msg: Any = None) -> None:
        self.assertEqual(str(device1), str(device2), msg)


__getattr__ = missing_from("test")
