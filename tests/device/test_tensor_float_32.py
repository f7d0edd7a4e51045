"""TensorFloat-32: a setting that can be made at any time, and that CuPy has once a GPU is opened."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import flowrt as tf
from flowrt.device import cuda, tensor_float_32
from flowrt.device.tensor_float_32 import TensorFloat32
from flowrt.errors import DTypeError
from tests.device.pretend_cupy import Cupy

DEFAULT, TF32 = 1, 7  # CuPy's numbers

enable, is_enabled = (
    tf.config.experimental.enable_tensor_float_32_execution,
    tf.config.experimental.tensor_float_32_execution_enabled,
)


@pytest.fixture(autouse=True)
def fresh_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = TensorFloat32()
    for module in (cuda, tensor_float_32, tf.config.experimental):
        monkeypatch.setattr(module, "TENSOR_FLOAT_32", fresh)
    monkeypatch.delenv("CUPY_TF32", raising=False)


def open_gpu(machine: Cupy) -> None:
    with mock.patch.object(cuda, "load_cupy", return_value=machine):
        cuda.CudaExecutor(0, "/device:GPU:0").close()


def test_it_is_off_and_can_be_set_where_there_is_no_gpu() -> None:
    assert not is_enabled()
    enable(True)
    assert is_enabled()
    enable(False)
    assert not is_enabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_what_was_set_before_is_set_when_a_gpu_is_opened(enabled: bool) -> None:
    machine = Cupy()
    enable(not enabled)
    enable(enabled)
    assert machine.compute_types == {}
    open_gpu(machine)
    assert machine.compute_types == {np.float32: TF32 if enabled else DEFAULT}


def test_a_change_reaches_a_gpu_that_is_open() -> None:
    machine = Cupy()
    open_gpu(machine)
    assert machine.compute_types == {np.float32: DEFAULT}
    enable(True)
    assert machine.compute_types == {np.float32: TF32}


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("0", False), ("", False)])
def test_cupys_own_variable_counts_until_somebody_says(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: bool
) -> None:
    monkeypatch.setenv("CUPY_TF32", text)
    assert is_enabled() is expected
    machine = Cupy()
    open_gpu(machine)
    assert machine.compute_types == {np.float32: TF32 if expected else DEFAULT}
    enable(not expected)
    assert is_enabled() is not expected


@pytest.mark.parametrize("enabled", [None, 1, "yes"])
def test_it_is_on_or_off(enabled: object) -> None:
    with pytest.raises(DTypeError, match="expected True or False"):
        enable(enabled)
    assert not is_enabled()
