"""`host_jit`: LLVM IR becomes functions, once; what is wrong says so; threads, forks, the cache on disk."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrt.device.llvm import code_cache, host_jit
from flowrt.device.llvm.host_jit import CompiledLoop, compile_functions, compile_loop
from flowrt.errors import FailedPreconditionError, InternalError
from flowrt.loops.llvm_text import FUNCTION

ROOT = Path(__file__).resolve().parent.parent.parent
SOON_S = 60.0
CHILD_S = 60  # a child that hangs is killed then

pytestmark = pytest.mark.skipif(
    not host_jit.is_available(), reason=host_jit.why_unavailable() or "there is no reason"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where this test's code is kept."""
    monkeypatch.setenv("FLOWRT_CACHE_DIR", str(tmp_path / "cache"))
    code_cache.code_cache.cache_clear()
    yield tmp_path / "cache"
    code_cache.code_cache.cache_clear()


def loop_text(operation: str, declarations: str = "") -> str:
    """A loop that makes %new of %old, floats of the table's first array and second."""
    return f"""
define void @flowrt_loop(ptr %table, i64 %begin, i64 %end) nounwind {{
entry:
  %x = load ptr, ptr %table
  %place = getelementptr ptr, ptr %table, i64 1
  %y = load ptr, ptr %place
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %exit
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %x, i64 %i
  %old = load float, ptr %from
  {operation}
  %to = getelementptr float, ptr %y, i64 %i
  store float %new, ptr %to
  %next = add nsw i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %exit
exit:
  ret void
}}
{declarations}
"""


def adding(number: int) -> str:
    return loop_text(f"%new = fadd float %old, {number}.0")


class Operands:
    """Two arrays of floats, 0, 1, 2, … and zeros, and their table."""

    def __init__(self, count: int = 100) -> None:
        self.x, self.y = np.arange(count, dtype=np.float32), np.zeros(count, np.float32)
        self.table = np.array([self.x.ctypes.data, self.y.ctypes.data])
        self.address: int = self.table.ctypes.data


def added_by(loop: CompiledLoop) -> float:
    """What the loop adds; the same to all elements."""
    operands = Operands()
    loop.call(operands.address, 0, 100)
    (difference,) = set(operands.y - operands.x)
    return float(difference)


# --- what a loop does


@pytest.mark.parametrize("way", ["call", "call_holding_gil"])
def test_a_loop_does_its_range_and_no_more(way: str) -> None:
    operands = Operands()
    result = getattr(compile_loop(adding(1)), way)(operands.address, 10, 90)
    assert result is None
    assert np.array_equal(operands.y, np.r_[np.zeros(10), np.arange(11, 91), np.zeros(10)])


@pytest.mark.parametrize("way", ["call", "call_holding_gil"])
@pytest.mark.parametrize(
    "arguments", [(), (0, 0), (0, 0, 0, 0), ("0", 0, 0), (0, 0.5, 0), (0, 0, None), (1 << 64, 0, 0)]
)
def test_what_is_not_three_integers_is_refused(way: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, OverflowError, SystemError)):
        getattr(compile_loop(adding(1)), way)(*arguments)


def test_calls_leave_the_reference_count_of_none() -> None:
    loop, operands = compile_loop(adding(1)), Operands()
    before = sys.getrefcount(None)
    for _ in range(10_000):
        loop.call(operands.address, 0, 1)
        loop.call_holding_gil(operands.address, 0, 1)
    assert abs(sys.getrefcount(None) - before) < 1000


def test_call_lets_other_threads_run() -> None:
    """The loop says that it has begun, and waits for another thread's answer for some seconds."""
    text = """
define void @flowrt_loop(ptr %table, i64 %begin, i64 %end) {
entry:
  store atomic volatile i64 1, ptr %table seq_cst, align 8
  %answer = getelementptr i64, ptr %table, i64 1
  br label %wait
wait:
  %i = phi i64 [ %begin, %entry ], [ %next, %wait ]
  %seen = load atomic volatile i64, ptr %answer seq_cst, align 8
  %next = add i64 %i, 1
  %is_seen = icmp ne i64 %seen, 0
  %is_late = icmp eq i64 %next, %end
  %stop = or i1 %is_seen, %is_late
  br i1 %stop, label %exit, label %wait
exit:
  %result = getelementptr i64, ptr %table, i64 2
  store i64 %seen, ptr %result
  ret void
}
"""
    loop, flags = compile_loop(text), np.zeros(3, np.int64)

    def answer() -> None:
        while not flags[0]:
            time.sleep(0.0001)
        flags[1] = 1

    answering = threading.Thread(target=answer)
    answering.start()
    loop.call(flags.ctypes.data, 0, 1 << 33)
    answering.join(SOON_S)
    assert flags[2] == 1


def test_what_is_the_c_librarys_is_found() -> None:
    """By name, and where LLVM puts it in: a loop that fills memory becomes a call of memset."""
    operands = Operands()
    root = loop_text("%new = call float @sqrtf(float %old)", "declare float @sqrtf(float)")
    compile_loop(root).call(operands.address, 0, 100)
    assert np.array_equal(operands.y, np.sqrt(operands.x))
    fill = loop_text("%new = fadd float 0.0, 0.0")
    assert b"memset" in host_jit._compiler()._optimised(fill)
    compile_loop(fill).call(operands.address, 0, 100)
    assert not operands.y.any()


def test_loops_are_vectorised() -> None:
    compiler = host_jit._compiler()
    in_turn = adding(1).replace("load float", "load volatile float")
    assert len(compiler._optimised(adding(1))) > 1.2 * len(compiler._optimised(in_turn))


def test_others_who_use_llvm_have_it_as_it_was() -> None:
    """The slow passes, one of which makes a sum of this product, are left out of code for loops alone."""
    compiler = host_jit._compiler()
    text = loop_text("%product = mul i64 %i, 12345\n  %new = sitofp i64 %product to float")

    def code_of_others() -> bytes:
        llvm, target = compiler._llvm, compiler._target
        with llvm.create_context() as context, llvm.parse_assembly(text, context) as module:
            module.triple, module.data_layout = target.triple, str(target.target_data)
            return bytes(target.emit_object(module))

    with host_jit._without_slow_passes(compiler._llvm):
        without = code_of_others()
    compile_loop(adding(2))
    assert code_of_others() != without


# --- once


def test_equal_text_is_one_loop_as_long_as_it_is_in_use() -> None:
    loop = compile_loop(adding(2))
    assert compile_loop(adding(2)) is loop
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None
    assert added_by(compile_loop(adding(2))) == 2


def test_functions_are_compiled_once_for_all_threads_that_ask_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler, compiled = host_jit._compiler(), []

    class Compiler:
        def compile(self, text: str, names: list[str]) -> dict[str, CompiledLoop]:
            compiled.append(text)
            return compiler.compile(text, names)

    monkeypatch.setattr(host_jit, "_compiler", Compiler)
    begin, found = threading.Barrier(4), []

    def ask() -> None:
        begin.wait()
        found.append(compile_functions(adding(15), [FUNCTION])[FUNCTION])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1
    assert [loop is found[0] for loop in found] == [True] * 4
    assert added_by(found[0]) == 15


@pytest.mark.parametrize("way", ["call", "call_holding_gil"])
def test_a_function_of_a_loop_keeps_its_code(way: str) -> None:
    call = getattr(compile_loop(adding(3)), way)
    gc.collect()
    for number in range(20):  # would free the code, and write over it
        compile_loop(adding(100 + number))
    operands = Operands()
    call(operands.address, 0, 100)
    assert np.array_equal(operands.y, operands.x + 3)


def test_code_that_nobody_needs_is_freed_at_the_next_compile() -> None:
    compile_loop(adding(4))
    gc.collect()
    assert len(host_jit._dropped) == 1
    (number,) = host_jit._dropped
    library, _ = host_jit._linked[number]
    compile_loop(adding(5))
    assert library.closed
    assert number not in host_jit._linked


def test_code_in_a_cycle_of_garbage_is_freed_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    orcjit = pytest.importorskip("llvmlite.binding.orcjit", reason="llvmlite is not installed")
    held: list[bool] = []

    class Cycle:
        def __init__(self, loop: object) -> None:
            self.itself, self.loop = self, loop

    def close(tracker: Any, close: Any = orcjit.ResourceTracker._dispose) -> None:
        held.append(host_jit._lock._is_owned())  # type: ignore[attr-defined]
        close(tracker)

    monkeypatch.setattr(orcjit.ResourceTracker, "_dispose", close)
    Cycle(compile_loop(adding(6)))
    before = len(held)
    gc.collect()
    assert len(held) == before
    compile_loop(adding(7))
    assert len(held) > before
    assert all(held)


def test_what_was_compiled_before_is_not_compiled_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert added_by(compile_loop(adding(6))) == 6
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr(host_jit._Compiler, "_optimised", lambda *arguments: pytest.fail("compiled again"))
    gc.collect()
    assert added_by(compile_loop(adding(6))) == 6


def test_a_damaged_entry_is_compiled_again(folder: Path) -> None:
    compile_loop(adding(7))
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-1])
    assert added_by(compile_loop(adding(7))) == 7
    assert entry.read_bytes() == whole


def test_code_for_another_processor_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = host_jit._compiler()
    keys = {compiler._key(adding(8)), compiler._key(adding(9))}
    monkeypatch.setattr(compiler, "_features", "+sse2")
    keys.add(compiler._key(adding(8)))
    monkeypatch.setattr(compiler, "_cpu", "another")
    keys.add(compiler._key(adding(8)))
    assert len(keys) == 4


def test_another_process_loads_what_this_one_compiled(folder: Path) -> None:
    host_jit._compiler.cache_clear()  # so that the folder has the way into loops too
    try:
        compile_loop(adding(10))
        code = f"""
from flowrt.device.llvm import host_jit
host_jit._Compiler._optimised = None
host_jit.compile_loop({adding(10)!r}).call(0, 0, 0)
"""
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=SOON_S)
    finally:
        host_jit._compiler.cache_clear()


# --- what is wrong


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "expected top-level entity"),
        (loop_text("%new = fadd float %gone, 1.0"), "%gone"),
        (loop_text("%new = fadd float %late, 1.0\n  %late = fadd float %old, 1.0"), "does not dominate"),
        (loop_text("%new = call float @nowhere(float %old)", "declare float @nowhere(float)"), "flowrt_loop"),
        (adding(1).replace("flowrt_loop", "other"), "Symbols not found: [ flowrt_loop ]"),
    ],
)
def test_a_text_that_is_no_loop_says_why(text: str, said: str) -> None:
    with pytest.raises(InternalError, match=re.escape(said)) as raised:
        compile_loop(text)
    assert text.strip().splitlines()[0] in str(raised.value)
    assert added_by(compile_loop(adding(11))) == 11


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """Whether llvmlite is there is found out in the test, and again after it."""
    for known in (host_jit.why_unavailable, host_jit._compiler):
        known.cache_clear()
    yield
    for known in (host_jit.why_unavailable, host_jit._compiler):
        known.cache_clear()


def test_without_llvmlite_the_reason_is_logged_once(
    asked_anew: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with caplog.at_level(logging.INFO):
        assert not host_jit.is_available()
        assert not host_jit.is_available()
    (said,) = caplog.records
    assert said.levelno == logging.INFO
    assert said.getMessage().endswith("it is not installed. Install flowrt[jit]")
    assert host_jit.why_unusable() is None
    with pytest.raises(FailedPreconditionError, match=r"flowrt\[jit\]"):
        compile_loop(adding(13))


@pytest.mark.parametrize("kind", [ImportError, OSError, AttributeError])
def test_an_llvmlite_that_cannot_be_loaded_is_warned_of_once(
    kind: type[Exception], asked_anew: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise kind("it is\nhalf there")

    monkeypatch.setattr("llvmlite.binding.check_jit_execution", refuse)
    assert not host_jit.is_available()
    assert host_jit.why_unusable() == host_jit.why_unavailable()
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert said.getMessage().endswith("expected to load it; it is half there. Install flowrt[jit]")


def test_an_old_llvmlite_is_not_used(asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_jit, "OLDEST_LLVM", (1000,))
    assert "expected version 0.45 or newer; got one with LLVM " in (host_jit.why_unusable() or "")


# --- threads and forks


def test_threads_may_compile_and_call_at_once() -> None:
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for number in range(12):
                assert (
                    added_by(compile_loop(adding(200 + (seed + number) % 12))) == 200 + (seed + number) % 12
                )
        except BaseException as error:  # noqa: BLE001 (a thread's failure is the test's)
            failed.append(error)

    threads = [threading.Thread(target=work, args=(3 * seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)


def test_a_forks_child_calls_what_was_compiled_and_compiles() -> None:
    """Also when another thread is at LLVM as it forks."""
    loop = compile_loop(adding(14))
    is_over = threading.Event()
    compiling = threading.Thread(target=compile_until, args=(is_over,))
    compiling.start()
    try:
        for number in range(5):
            assert exit_code_of_child(loop, 300 + number) == 0
    finally:
        is_over.set()
        compiling.join(SOON_S)


def compile_until(is_over: threading.Event) -> None:
    number = 1000
    while not is_over.is_set():
        compile_loop(adding(number))
        number += 1


def exit_code_of_child(loop: CompiledLoop, number: int) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(CHILD_S)
    try:
        assert added_by(loop) == 14
        assert added_by(compile_loop(adding(number))) == number
    except BaseException:  # noqa: BLE001 (a child must end here)
        os._exit(1)
    os._exit(0)


FORKING = """
import os, sys, threading
from flowrt.device.llvm import host_jit
threading.Thread(target=host_jit.is_available).start()
while "llvmlite" not in sys.modules:
    pass
child = os.fork()
if not child:
    os._exit(0 if host_jit.is_available() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_while_llvmlite_is_imported_leaves_the_child_all_of_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING], cwd=ROOT, timeout=SOON_S, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
