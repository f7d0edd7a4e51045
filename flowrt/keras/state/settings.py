"""Settings of the process: the dtype of floats, the fuzz factor, the order of an image's dimensions."""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import DTypeName
from flowrt.graph.source import misuse

_SETTINGS: dict[str, Any] = {"floatx": "float32", "image_data_format": "channels_last"}
_FUZZ = {"epsilon": 1e-7}


def epsilon() -> float:
    """A small number, against divisions by zero."""
    return _FUZZ["epsilon"]


def set_epsilon(value: float) -> None:
    _FUZZ["epsilon"] = float(value)


def floatx() -> DTypeName:
    """The dtype of weights and inputs, unless a layer has its own."""
    return _SETTINGS["floatx"]


def set_floatx(value: str) -> None:
    """Raises `InvalidArgumentError` for what is not float16, float32 or float64."""
    _set("floatx", value, ("float16", "float32", "float64"))


def image_data_format() -> str:
    """The default of layers for images: "channels_last" or "channels_first"."""
    return _SETTINGS["image_data_format"]


def set_image_data_format(data_format: str) -> None:
    """Raises `InvalidArgumentError` for what is not "channels_last" or "channels_first"."""
    _set("image_data_format", data_format, ("channels_last", "channels_first"))


def _set(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise misuse(f"set_{name}: expected one of {', '.join(allowed)}; got {value!r}")
    _SETTINGS[name] = value
