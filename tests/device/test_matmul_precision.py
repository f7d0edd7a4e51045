"""How exactly float32 matrices are multiplied: a setting with three steps, under two libraries' names."""

from __future__ import annotations

from typing import Any

import pytest

import flowrt as tf
from flowrt.config import experimental
from flowrt.device.matmul_precision import Float32Products, MatmulPrecision
from flowrt.errors import DTypeError, InvalidArgumentError

ALL = ["highest", "high", "medium"]


@pytest.fixture(autouse=True)
def setting(monkeypatch: pytest.MonkeyPatch) -> Float32Products:
    fresh = Float32Products()
    monkeypatch.setattr(experimental, "FLOAT32_PRODUCTS", fresh)
    monkeypatch.delenv("CUPY_TF32", raising=False)
    return fresh


def test_it_is_highest_and_can_be_set_where_there_is_no_gpu(setting: Float32Products) -> None:
    assert tf.config.experimental.get_float32_matmul_precision() == "highest"
    for name in ALL:
        tf.config.experimental.set_float32_matmul_precision(name)
        assert tf.config.experimental.get_float32_matmul_precision() == name
        assert setting.precision is MatmulPrecision(name)


def test_tensorflows_switch_sets_it_and_knows_of_it() -> None:
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    assert tf.config.experimental.get_float32_matmul_precision() == "high"
    for name, is_enabled in zip(ALL, [False, True, True], strict=True):
        tf.config.experimental.set_float32_matmul_precision(name)
        assert tf.config.experimental.tensor_float_32_execution_enabled() is is_enabled
    tf.config.experimental.enable_tensor_float_32_execution(False)
    assert tf.config.experimental.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(("text", "expected"), [("1", "high"), ("0", "highest"), ("", "highest")])
def test_cupys_variable_counts_until_somebody_says(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    monkeypatch.setenv("CUPY_TF32", text)
    assert tf.config.experimental.get_float32_matmul_precision() == expected
    tf.config.experimental.set_float32_matmul_precision("medium")
    assert tf.config.experimental.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize("precision", [None, 1, "HIGH", "tf32", "bfloat16", MatmulPrecision.HIGH])
def test_other_steps_are_refused_and_change_nothing(precision: Any) -> None:
    tf.config.experimental.set_float32_matmul_precision("medium")
    with pytest.raises(InvalidArgumentError, match="expected highest, high or medium; got"):
        tf.config.experimental.set_float32_matmul_precision(precision)
    assert tf.config.experimental.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize("enabled", [None, 1, "yes"])
def test_tensorflows_switch_is_on_or_off(enabled: Any) -> None:
    with pytest.raises(DTypeError, match="expected True or False"):
        tf.config.experimental.enable_tensor_float_32_execution(enabled)
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
