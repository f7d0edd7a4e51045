"""What a program says to the conversion of its source, under TensorFlow's names."""

from __future__ import annotations

from typing import Any


def set_loop_options(
    parallel_iterations: int | None = None,
    swap_memory: bool | None = None,
    maximum_iterations: Any = None,
    shape_invariants: Any = None,
) -> None:
    """Options of the `while_loop` that becomes of the loop around: the first statement of the loop's body.

    ``shape_invariants`` is a list of pairs ``(variable, shape)``: the shape, unknown dimensions None, that
    the variable has in all iterations. The other options are those of `while_loop`. A loop that stays
    Python's has none, and a call in code that is not converted does nothing.

    The conversion reads the call and takes it out. The loop raises `InvalidArgumentError` for invariants that
    are no such list, and for a variable that it does not change.
    """
