"""``contrib.slim.summaries``: summaries of metrics under their names."""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.text.python_calls import Print
from flowrt.nn import zero_fraction
from flowrt.summary import histogram, image, scalar
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "add_histogram_summary", "add_image_summary", "add_scalar_summary", "add_zero_fraction_summary",
]  # fmt: skip


def _name(tensor: Tensor, name: str | None, prefix: str | None) -> str:
    found = name or tensor.op.name
    return f"{prefix}/{found}" if prefix else found


def add_scalar_summary(
    tensor: Any, name: str | None = None, prefix: str | None = None, print_summary: bool = False
) -> Tensor:
    """A summary of a number, by default under the tensor's name; ``print_summary`` prints it, too."""
    shown = _name(tensor, name, prefix)
    return scalar(shown, Print(tensor, [tensor], shown) if print_summary else tensor)


def add_zero_fraction_summary(
    tensor: Any, name: str | None = None, prefix: str | None = None, print_summary: bool = False
) -> Tensor:
    """A summary of the share of zeros."""
    return add_scalar_summary(zero_fraction(tensor), _name(tensor, name, prefix), None, print_summary)


def add_histogram_summary(tensor: Any, name: str | None = None, prefix: str | None = None) -> Tensor:
    """A summary of how the numbers are spread."""
    return histogram(_name(tensor, name, prefix), tensor)


def add_image_summary(
    tensor: Any, name: str | None = None, prefix: str | None = None, print_summary: bool = False
) -> Tensor:
    """A summary of images."""
    return image(_name(tensor, name, prefix), tensor)


__getattr__ = missing_from("contrib.slim.summaries")
