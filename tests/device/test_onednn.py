"""The binding to oneDNN and its primitives: where it is missing or broken; threads, forks, memory."""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import flowrt as tf
from flowrt.device.llvm import host_pool
from flowrt.device.onednn import onednn, primitives
from flowrt.device.onednn.onednn import Unsupported
from flowrt.device.onednn.primitives import Axis, Layout, Primitive, layout_of, matrix_product
from flowrt.errors import FailedPreconditionError, InvalidArgumentError

needs_library = pytest.mark.skipif(not onednn.is_available(), reason=str(onednn.why_unavailable()))

SIDE = 208  # of a product that threads share
assert SIDE**3 >= onednn.MIN_SHARED


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """Whether oneDNN is there, and the library, are found out in the test, and again after it."""
    for known in (onednn.library, onednn.why_unavailable):
        known.cache_clear()
    yield
    for known in (onednn.library, onednn.why_unavailable):
        known.cache_clear()


class Package:
    """A distribution with one file, or none."""

    def __init__(self, path: Path | None) -> None:
        self.files = [] if path is None else [self]
        self.name, self._path = onednn.LIBRARY, path

    def locate(self) -> Path | None:
        return self._path


def install(monkeypatch: pytest.MonkeyPatch, path: Path | None) -> None:
    monkeypatch.setattr(onednn, "distribution", lambda name: Package(path))


# --- whether it is there


def test_without_the_package_the_reason_says_what_to_install(
    asked_anew: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def find(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(onednn, "distribution", find)
    with caplog.at_level(logging.INFO):
        assert not onednn.is_available()
    assert [said.levelno for said in caplog.records] == [logging.INFO]
    assert onednn.why_unusable() is None
    assert "flowrt[onednn]" in str(onednn.why_unavailable())
    with pytest.raises(FailedPreconditionError, match="not installed"):
        onednn.version()


def test_a_package_without_the_library_is_a_reason(asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    assert "has none" in str(onednn.why_unavailable())


@pytest.mark.parametrize("content", [b"", b"\x7fELF and nothing else", b"#!/bin/sh\n"])
def test_a_damaged_library_is_a_reason(
    content: bytes,
    asked_anew: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    damaged = tmp_path / onednn.LIBRARY
    damaged.write_bytes(content)
    install(monkeypatch, damaged)
    assert "expected a library" in str(onednn.why_unusable())
    assert not onednn.is_available()
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert said.getMessage().startswith("convolutions and products are computed without oneDNN: ")


def test_another_library_is_a_reason(asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Path(ctypes.util.find_library("m") or "libm.so.6"))
    monkeypatch.setattr(Path, "resolve", lambda path: path)
    assert "dnnl_version" in str(onednn.why_unavailable())


def test_another_version_is_a_reason(
    asked_anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a library of version 2 with")
    source, built = tmp_path / "old.c", tmp_path / onednn.LIBRARY
    source.write_text("static int v[4] = {2, 7, 1}; const int *dnnl_version(void) { return v; }")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source], check=True)
    install(monkeypatch, built)
    assert "expected version 3; got 2.7" in str(onednn.why_unavailable())


@pytest.mark.parametrize("said", ["0", "off", "OFF"])
def test_a_variable_switches_it_off(said: str, asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_ONEDNN", said)
    assert not onednn.is_available()
    assert onednn.why_unavailable() == f"FLOWRT_ONEDNN={said} switches it off"
    assert onednn.why_unusable() is None


@pytest.mark.parametrize("said", ["", "1", "on", "On"])
def test_the_variable_may_say_that_it_is_on(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_ONEDNN", said)
    assert onednn.is_switched_on()


@pytest.mark.parametrize("ask", [tf.Session, onednn.is_available], ids=["session", "library"])
def test_what_the_variable_has_not_is_refused(
    ask: Callable[[], object], asked_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWRT_ONEDNN", "never")
    with pytest.raises(InvalidArgumentError, match="FLOWRT_ONEDNN: expected one of on, off, 1, 0; got 'nev"):
        ask()


def test_importing_flowrt_does_not_load_it() -> None:
    code = "import flowrt; print('libdnnl' in open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@needs_library
def test_the_version_is_the_packages_library() -> None:
    assert onednn.version().startswith("3.")
    assert distribution(onednn.PACKAGE).version


@needs_library
def test_loading_leaves_the_environment_as_it_was(asked_anew: None) -> None:
    before = dict(os.environ)
    assert onednn.is_available()
    assert dict(os.environ) == before


# --- primitives


def product(a: Any, b: Any) -> tuple[Primitive, Any]:
    c = np.empty((a.shape[0], b.shape[1]), np.float32)
    primitive = matrix_product(layout_of(a), layout_of(b), layout_of(c))
    primitive(a, b, c)
    return primitive, c


def square(side: int = SIDE) -> Any:
    return np.random.default_rng(0).standard_normal((side, side)).astype(np.float32)


@needs_library
def test_a_primitive_is_made_once_for_equal_layouts() -> None:
    a, b = square(), square()
    assert product(a, b)[0] is product(b.copy(), a.copy())[0]
    assert product(a, b)[0] is not product(a.T, b)[0]


@needs_library
def test_no_more_primitives_are_kept_than_the_limit() -> None:
    assert primitives._made.cache_info().maxsize == primitives.MAX_PRIMITIVES


@needs_library
@pytest.mark.parametrize(
    "array", [square()[::-1], np.broadcast_to(np.float32(1), (SIDE, SIDE))], ids=["backwards", "broadcast"]
)
def test_strides_that_the_library_has_no_word_for_are_unsupported(array: Any) -> None:
    with pytest.raises(Unsupported):
        product(array, square())


@needs_library
def test_strides_of_parts_of_elements_are_unsupported() -> None:
    records = np.zeros((SIDE, SIDE), np.dtype([("x", np.float32), ("y", np.int16)]))
    with pytest.raises(Unsupported):
        product(records["x"], square())


@needs_library
def test_a_layout_of_too_many_dimensions_is_unsupported() -> None:
    layout = Layout((2,) * 13, (4,) * 13)
    with pytest.raises(Unsupported):
        matrix_product(layout, layout, layout)


@needs_library
def test_threads_are_as_many_as_the_pool_has() -> None:
    count = ctypes.CDLL(onednn._path()).omp_get_max_threads
    try:
        for n_threads in (1, 2, 3):
            host_pool.set_num_threads(n_threads)
            primitive, _ = product(square(), square())
            assert primitive.n_threads == n_threads
            assert count() == n_threads
    finally:
        host_pool.set_num_threads(0)


@needs_library
def test_threads_that_others_set_meanwhile_are_not_those_of_a_product() -> None:
    """The end of these limits, which are for NumPy's BLAS, restores the number of libgomp's threads, too."""
    count = ctypes.CDLL(onednn._path()).omp_get_max_threads
    onednn.library().use_threads(2)
    host_pool.set_num_threads(1)
    try:
        with threadpool_limits(1, "blas"):
            product(square(), square())
        assert count() == 2
        product(square(), square())
        assert count() == 1
    finally:
        host_pool.set_num_threads(0)


@needs_library
def test_small_work_is_one_threads() -> None:
    host_pool.set_num_threads(2)
    try:
        assert product(square(8), square(8))[0].n_threads == 1
    finally:
        host_pool.set_num_threads(0)


@needs_library
def test_a_forks_child_computes_in_the_thread_that_forked_and_in_new_ones() -> None:
    """libgomp's threads stay with the parent; whoever asks for them waits for ever."""
    host_pool.set_num_threads(2)
    try:
        a, b = square(), square()
        _, expected = product(a, b)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the runner has a handler
            signal.alarm(20)  # a child that hangs is killed then
            results = [product(a, b)[1]]
            thread = threading.Thread(target=lambda: results.append(product(a, b)[1]))
            thread.start()
            thread.join()
            os._exit(0 if all(np.allclose(r, expected, atol=1e-3) for r in results) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        host_pool.set_num_threads(0)


@needs_library
def test_a_filter_goes_through_the_librarys_layout_and_results_come_back() -> None:
    """A convolution of 1x1 windows is a product of matrices."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 32, 6, 6)).astype(np.float32)
    filter = rng.standard_normal((1, 48, 32, 1, 1)).astype(np.float32)
    y = np.empty((2, 48, 6, 6), np.float32)
    layouts = [layout_of(array, is_free=True) for array in (x, filter, y)]
    primitive = primitives.convolution(*layouts, (Axis(1, 1, 1, 0, 0),) * 2)
    primitive(x, filter, y)
    assert len(primitive.copies) == 3
    expected = np.einsum("nchw,fc->nfhw", x, filter[0, :, :, 0, 0])
    assert np.allclose(y, expected, atol=1e-4)
