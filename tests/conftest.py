"""What every test gets: a fresh default graph, no thread left behind, a skip where it needs a GPU."""

from __future__ import annotations

import atexit
import functools
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import hypothesis
import pytest

# Loops that are compiled beside the steps are taken in at any moment, and change results in their last bits.
# Tests of them choose; `FLOWRT_JIT=eager make test` runs all tests with them.
os.environ.setdefault("FLOWRT_JIT", "off")
if "FLOWRT_CACHE_DIR" not in os.environ:
    os.environ["FLOWRT_CACHE_DIR"] = tempfile.mkdtemp(prefix="flowrt-cache-")
    atexit.register(shutil.rmtree, os.environ["FLOWRT_CACHE_DIR"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

THREAD_GRACE_S = 60.0  # a thread that was told to stop may need a moment on a loaded machine

# Examples are few and the same in every run, so that a red run is about the change; the nightly run looks for
# new ones. No deadline: the machine may be busy, and a hang meets pytest's timeout.
hypothesis.settings.register_profile(
    "suite", deadline=None, max_examples=40, derandomize=True, print_blob=True
)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.load_profile("suite")

ROOT = Path(__file__).parents[1]

LONGEST = (
    "tests/test_examples_of_text.py",
    "tests/distribute/strategies/test_pipeline.py",
    "tests/test_examples.py",
    "tests/distribute/test_failures.py",
    "tests/distribute/strategies/test_multi_worker.py",
    "tests/distribute/strategies/test_multi_worker_layouts.py",
    "tests/distribute/strategies/test_fully_sharded.py",
    "tests/distribute/test_leaks.py",
    "tests/train/test_saved_together_crash.py",
    "tests/cli/test_selftest.py",
    "tests/executor/test_compiled_once.py",
)
"""Files that take longest. They come first: no worker of a run is left with one of them at the end."""


@pytest.fixture(autouse=True)
def surroundings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of every test. One fixture: of four, each took 0.1 ms of 20,000 tests."""
    with no_thread_left_behind(), verbosity_as_before(), signals_as_before():
        with nullcontext() if request.node.get_closest_marker("gpu") else no_gpu():
            reset_default_graph()
            yield


@contextmanager
def no_thread_left_behind() -> Iterator[None]:
    """Fail a test that leaves a non-daemon thread running: it would keep the interpreter from exiting."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + THREAD_GRACE_S

    def new() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]

    while (left := new()) and time.monotonic() < deadline:
        time.sleep(0.001)  # not join(): a thread that another one is just starting cannot be joined yet
    names = ", ".join(thread.name for thread in left)
    assert not left, f"the test left {len(left)} non-daemon thread(s) running: {names}"


@contextmanager
def no_gpu() -> Iterator[None]:
    """Hide GPUs from a test and from what it starts: with a GPU, sessions place operations there, where
    indices are not checked and results differ in the last bits.
    """
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # flowrt asks for it each time, CUDA only once per process
    yield
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if before is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = before


def reset_default_graph() -> None:
    """All examples of a hypothesis test share flowrt's default graph: such a test makes its own.

    Only where the test has imported flowrt: one that reads source or runs programs needs no import.
    """
    reset = getattr(sys.modules.get("flowrt"), "reset_default_graph", None)
    if reset is not None:
        reset()


@contextmanager
def verbosity_as_before() -> Iterator[None]:
    """A script that sets the verbosity of its logs sets it for its test only."""
    logger = logging.getLogger("flowrt")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


@contextmanager
def signals_as_before() -> Iterator[None]:
    """A command's `main` handles signals until its process ends: here, until its test ends."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield
    for each, handler in before.items():
        if signal.getsignal(each) is not handler:
            signal.signal(each, handler)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handling of SIGINT, which a shell's background job starts without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@functools.cache
def _no_gpu_because() -> str | None:
    """Why `gpu` tests cannot run here, or None."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not installed ({error})"
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no CUDA device ({error})"
    return None if found else "CuPy finds no CUDA device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest = {ROOT / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: longest.get(item.path, len(LONGEST)))
    for item in items:
        if item.get_closest_marker("gpu") and (reason := _no_gpu_because()):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Leave the 20,000 tests out of collections: with them each `gc.collect` of a test takes 0.3 s."""
    gc.collect()
    gc.freeze()
