"""``flowrt selftest``: it passes here, and it finds what is broken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flowrt.cli import selftest
from flowrt.cli.main import main
from flowrt.cli.selftest import loops, memory, ops, steps, streams, transfer
from flowrt.cli.selftest.target import Result, Target, open_target
from flowrt.device.bfc import BFCAllocator
from flowrt.device.host.host import HostExecutor, InlineStream
from flowrt.device.llvm import host_jit
from flowrt.device.memory_pool import MemoryPool
from flowrt.device.spec import DeviceSpec, parse_device
from flowrt.dtypes import float8_e4m3fn
from flowrt.errors import InternalError
from flowrt.executor.buffers.lifetimes import Lifetimes
from flowrt.graph.op_def import op_def, registered_ops
from tests.executor.test_remote_device import plug_in
from tests.loops import cuda_on_host

float8 = float8_e4m3fn.np


@pytest.fixture
def cpu() -> Iterator[Target]:
    with open_target(DeviceSpec()) as target:
        yield target


@pytest.fixture
def few_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    some = {
        name: op_def(name) for name in ("AddV2", "MatMul", "Split", "StringJoin", "RandomUniform", "NoOp")
    }
    monkeypatch.setattr(ops, "registered_ops", lambda: some)


@pytest.fixture
def looped_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: op_def(name) for name in ("AddV2", "MatMul", "Softmax")}
    monkeypatch.setattr(ops, "registered_ops", lambda: some)


@pytest.fixture
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "WIDTHS", (6, 5, 4))


@pytest.mark.usefixtures("small_network")
def test_all_sections_pass_on_this_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transfer, "NBYTES", 1 << 20)
    assert main(["selftest"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in printed] == [[name, "ok"] for name in selftest.SECTIONS]
    samples = sum(len(list(op.samples(np.random.default_rng(0)))) for op in registered_ops().values())
    figures = f"{samples} passed, 0 failed, 0 host-only, 0 left out"
    assert f"{samples} samples of {len(registered_ops())} ops: {figures}" in printed[0]
    assert caplog.messages == []


def test_a_failure_is_listed_and_is_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def section(target: Target) -> Result:
        return Result("looked at two things", ("the second is broken",))

    def broken(target: Target) -> Result:
        raise ZeroDivisionError("no such number")

    monkeypatch.setattr(
        selftest, "SECTIONS", {"ops": section, "memory": broken, "steps": lambda t: Result("")}
    )
    assert main(["selftest", "--only", "memory,ops,steps"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed if not line.startswith(" ")] == ["memory", "ops", "steps"]
    assert re.fullmatch(r"    ZeroDivisionError: no such number \(.*test_selftest\.py:\d+\)", printed[1])
    assert printed[2].split()[:2] == ["ops", "FAILED"]
    assert printed[3] == "    the second is broken"


@pytest.mark.usefixtures("few_ops")
def test_a_kernel_that_computes_something_else_is_found(cpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ops.check_ops(cpu).failures == ()
    reference = ops.reference

    def a_little_more(call: ops.Call, tensors: Any) -> Any:
        values = reference(call, tensors)
        return [v + 1 if call.operation.type == "MatMul" else v for v in values]

    monkeypatch.setattr(ops, "reference", a_little_more)
    failures = ops.check_ops(cpu).failures
    assert failures
    assert all(failure.startswith("MatMul 'MatMul") for failure in failures)
    assert any("largest difference 1, expected at most" in failure for failure in failures)


@pytest.mark.parametrize(
    ("got", "expected", "wrong"),
    [
        (np.float32([1, np.nan, np.inf]), np.float32([1, np.nan, np.inf]), None),
        (np.float32([1.00001]), np.float32([1]), None),
        (np.float64([1.00001]), np.float64([1]), "largest difference 1e-05, expected at most 1e-09"),
        (np.float32([1]), np.float32([np.nan]), "largest difference inf"),
        (np.array([1, np.nan], float8), np.array([1, np.nan], float8), None),
        (np.array([1, np.nan], float8), np.array([np.nan, 1], float8), "2 of 2 elements differ"),
        (np.array([1, 2], float8), np.array([1, 3], float8), "1 of 2 elements differ"),
        (np.int32([1, 2]), np.int32([1, 3]), "1 of 2 elements differ"),
        (np.array(["a"], object), np.array(["a"], object), None),
        (np.float32([1]), np.float64([1]), "expected float64[1]; got float32[1]"),
        (np.float32([1]), np.float32(1), "expected float32[]; got float32[1]"),
        (np.complex64([1j]), np.complex64([2j]), "largest difference 1"),
    ],
)
def test_a_difference_beyond_the_tolerance_is_told(got: Any, expected: Any, wrong: str | None) -> None:
    found = ops.difference(got, expected, values_count=True)
    assert found == wrong if wrong is None else found is not None and found.startswith(wrong)


def test_where_values_do_not_count_shapes_do() -> None:
    one, two = np.float32([1]), np.float32([1, 2])
    assert ops.difference(one, one + 1, values_count=False) is None
    assert ops.difference(one, two, values_count=False) == "expected float32[2]; got float32[1]"


def test_an_allocator_that_breaks_its_rules_is_found(cpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def insert_without_merging(self: Any, address: int, size: int, status: Any) -> None:
        self._add(address, size, status)

    monkeypatch.setattr(BFCAllocator, "_insert", insert_without_merging)
    (failure, *_) = memory.check_memory(cpu).failures
    assert failure.startswith("fuzz_allocator: BFCAllocator: expected no two free neighbours")


def test_a_pool_whose_blocks_overlap_is_found(cpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate = MemoryPool.allocate

    def too_large(self: MemoryPool, nbytes: int, owner: Any) -> Any:
        memory = allocate(self, nbytes, owner)
        memory.nbytes += 1 << 20
        return memory

    monkeypatch.setattr(MemoryPool, "allocate", too_large)
    assert any("do not overlap" in failure for failure in memory.check_pool(cpu))


def test_a_stream_that_forgets_its_work_is_found(cpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    assert streams.check_streams(cpu).failures == ()
    monkeypatch.setattr(HostExecutor, "_memset", lambda *arguments: None)
    kept = streams.check_streams(cpu).failures
    assert [failure.partition(".")[0] for failure in kept] == [
        "The last of several fills of a stream wins",
        "A stream that waits for another's event sees the work before it",
    ]


def test_an_error_that_does_not_stick_is_found(cpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InlineStream, "fail", lambda self, error: None)
    (failure,) = streams.check_streams(cpu).failures
    assert failure.startswith("A failed stream rejects more work")


def test_bytes_that_change_on_the_way_are_found(cpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "NBYTES", 1 << 16)
    assert transfer.check_transfer(cpu).failures == ()
    monkeypatch.setattr(HostExecutor, "_memcpy_to_host", lambda self, stream, target, source: target.fill(0))
    (failure,) = transfer.check_transfer(cpu).failures
    assert failure == "pageable: the bytes read back differ from those sent"


@pytest.mark.usefixtures("small_network")
def test_a_training_that_does_not_learn_is_found(cpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps.check_steps(cpu).failures == ()
    monkeypatch.setattr(steps, "time_training", lambda target, captures: (1.0, 1.0, 2.0, 2.0))
    (failure,) = steps.check_steps(cpu).failures
    assert failure == "expected a training that lowers the loss; got 2, then 2"


@pytest.mark.usefixtures("looped_ops")
@pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))
def test_a_loop_that_is_wrong_is_found(cpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loops.check_loops(cpu) == Result("2 ops, 0 failed")
    run = loops.run_loop
    monkeypatch.setattr(loops, "run_loop", lambda *given: [result + 1 for result in run(*given)])
    result = loops.check_loops(cpu)
    assert result.summary == "2 ops, 2 failed"
    assert "AddV2: largest difference 1" in result.failures[0]


def test_why_no_loops_are_compiled_is_told(cpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_jit, "why_unavailable", lambda: "llvmlite: it is half there")
    said = "llvmlite: it is half there"
    monkeypatch.setattr(host_jit, "is_installed", lambda: True)
    assert loops.check_loops(cpu) == Result(f"left out: {said}", (said,))
    monkeypatch.setattr(host_jit, "is_installed", lambda: False)
    assert loops.check_loops(cpu) == Result(f"left out: {said}")


@pytest.mark.usefixtures("looped_ops")
@pytest.mark.skipif(cuda_on_host.why_no_compiler() is not None, reason=str(cuda_on_host.why_no_compiler()))
def test_loops_run_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, 0)
    with open_target(DeviceSpec(device_type="GPU", device_index=0)) as target:
        assert loops.check_loops(target) == Result("2 ops, 0 failed")


@pytest.mark.slow
@pytest.mark.usefixtures("small_network")
def test_what_needs_no_values_passes_on_the_null_device() -> None:
    with open_target(DeviceSpec(device_type="NULL", device_index=1)) as target:
        assert target.name == "/device:NULL:1"
        found = {name: section(target) for name, section in selftest.SECTIONS.items()}
    assert {name: result.failures for name, result in found.items() if result.failures} == {}
    outcomes = re.findall(r"(\d+) ([a-z -]+)(?:,|$)", found["ops"].summary.partition(": ")[2])
    counts = {outcome: int(count) for count, outcome in outcomes}
    assert counts["passed"] > 900
    assert min(counts["host-only"], counts["left out"]) > 0  # strings; Unique and its like


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("/cpu:1000000", "expected a device with a number below 1024; got /device:CPU:1000000"),
        ("/device:NULL:1000000", "expected a device with a number below 1024; got /device:NULL:1000000"),
        ("/job:x/cpu:0", "expected a device of this process, /job:localhost/replica:0/task:0; got /job:x"),
        ("/job:localhost/task:1", "expected a device of this process"),
        ("/replica:1", "expected a device of this process"),
    ],
)
def test_a_device_that_is_not_here_is_a_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, device: str, message: str
) -> None:
    monkeypatch.setattr("flowrt.cli.selftest.target.local_devices", None)
    assert main(["selftest", "--device", device]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err


def test_a_device_of_this_process_may_be_named_in_full() -> None:
    with open_target(parse_device("/job:localhost/replica:0/task:0/device:CPU:1")) as target:
        assert target.name == "/device:CPU:1"


def test_a_program_that_reads_what_is_gone_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = Lifetimes.ending_at
    monkeypatch.setattr(Lifetimes, "ending_at", lambda self, position: right(self, position + 1))
    assert main(["selftest", "--only", "steps"]) == 1
    assert "program: " in capsys.readouterr().out


def test_a_target_is_closed_at_the_end() -> None:
    with pytest.raises(InternalError), open_target(DeviceSpec()) as target:
        raise InternalError("in between")
    assert target.device.executor._is_closed
