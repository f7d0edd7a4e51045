"""`tf1_names`: the two names of one argument."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from flowrt.errors import InvalidArgumentError
from flowrt.graph.tf1_signatures import tf1_names


@tf1_names("size", axis="dim", keepdims="keep_dims")
def seen(x: Any, axis: Any = None, keepdims: bool | None = None, size: int = 1) -> tuple[Any, ...]:
    """What it was called with."""
    return x, axis, keepdims, size


def test_each_name_gives_the_argument() -> None:
    assert seen(1, 2, True) == seen(1, dim=2, keep_dims=True) == seen(1, axis=2, keep_dims=True)
    assert seen(1) == (1, None, None, 1)


def test_the_old_names_have_places_in_the_signature() -> None:
    assert list(inspect.signature(seen).parameters) == ["x", "axis", "keepdims", "dim", "keep_dims", "size"]
    assert seen(1, None, None, 2, True, 3) == (1, 2, True, 3)
    assert (seen.__name__, seen.__doc__) == ("seen", "What it was called with.")


def test_both_names_are_an_error() -> None:
    with pytest.raises(
        InvalidArgumentError, match="expected one of 'axis' and its old spelling 'dim'; got both"
    ):
        seen(1, 2, dim=2)


def test_the_function_may_have_the_old_name() -> None:
    @tf1_names(filters="filter")
    def convolved(filter: Any = None) -> Any:
        return filter

    call: Any = convolved
    assert convolved(1) == call(filters=1) == 1
    with pytest.raises(InvalidArgumentError, match="'filters' and its old spelling 'filter'"):
        call(1, filters=1)


def test_wrong_arguments_are_type_errors() -> None:
    call: Any = seen
    for arguments in ({"width": 1}, {"dim": 1, "width": 1}):
        with pytest.raises(TypeError):
            call(1, **arguments)
