"""`rnn`: a step function along the time of sequences, as a loop of the graph or unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrt.control_flow.loops import while_loop
from flowrt.dtypes import bool_
from flowrt.functions.tensor_array import TensorArray
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.array.tile_and_reverse import reverse_v2
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape, shape, transpose
from flowrt.graph.ops.elementwise.comparison import less, where
from flowrt.graph.source import misuse

Step = Callable[[Any, list[Any]], tuple[Any, list[Any]]]


def rnn(
    step_function: Step,
    inputs: Tensor,
    initial_states: Sequence[Any],
    go_backwards: bool = False,
    mask: Any = None,
    constants: Sequence[Any] | None = None,
    unroll: bool = False,
    input_length: Any = None,
    time_major: bool = False,
    zero_output_for_mask: bool = False,
    return_all_outputs: bool = True,
) -> tuple[Tensor, Any, list[Any]]:
    """``(last output, outputs, states)`` of ``step_function(input, states) -> (output, states)`` along the
    time of ``inputs``, ``[batch, time, ...]``.

    ``mask``, ``[batch, time]``, is false for steps to leave out: their states stay, and so does the output,
    or it is zero with ``zero_output_for_mask``. ``constants`` follow the states. Without
    ``return_all_outputs`` the outputs are None. Raises `InvalidArgumentError` for ``unroll`` with an unknown
    number of steps.
    """
    states, more = list(initial_states), list(constants or ())
    sequence = inputs if time_major else _swapped(inputs)
    masks = None
    if mask is not None:
        masks = cast(mask, bool_)
        masks = masks if time_major else _swapped(masks)
    if go_backwards:
        sequence = reverse_v2(sequence, [0])
        masks = None if masks is None else reverse_v2(masks, [0])

    def step(x: Any, before: list[Any], previous: Any, present: Any) -> tuple[Any, list[Any]]:
        output, after = step_function(x, before + more)
        if present is None:
            return output, list(after)
        fallback = zeros_like(output) if zero_output_for_mask else previous
        return _chosen(present, output, fallback), [
            _chosen(present, new, old) for new, old in zip(after, before, strict=True)
        ]

    if unroll:
        found = _unrolled(step, sequence, masks, states)
    else:
        found = _looped(step, sequence, masks, states, return_all_outputs)
    last, outputs, ends = found
    if outputs is not None and not time_major:
        outputs = _swapped(outputs)
    return last, outputs, ends


def _unrolled(step: Any, sequence: Tensor, masks: Any, states: list[Any]) -> tuple[Any, Any, list[Any]]:
    steps = sequence.shape.as_list()[0]
    if not steps:
        raise misuse(f"rnn: expected a known number of steps with unroll=True; got {sequence.shape}")
    found: list[Any] = []
    previous = None
    for time in range(steps):
        if previous is None and masks is not None:
            previous = zeros_like(step(sequence[0], states, None, None)[0])
        previous, states = step(sequence[time], states, previous, None if masks is None else masks[time])
        found.append(previous)
    return found[-1], stack(found), states


def _looped(
    step: Any, sequence: Tensor, masks: Any, states: list[Any], with_outputs: bool
) -> tuple[Any, Any, list[Any]]:
    steps, static_steps = shape(sequence)[0], sequence.shape.as_list()[0]
    size = steps if static_steps is None else static_steps
    zero = zeros_like(step(_row(sequence), states, None, None)[0])
    fed = TensorArray(sequence.dtype, size).unstack(sequence)
    present = None if masks is None else TensorArray(bool_, size).unstack(masks)
    written = TensorArray(zero.dtype, size, element_shape=zero.shape) if with_outputs else constant(0)

    def body(time: Tensor, array: Any, previous: Any, *before: Any) -> Any:
        x = fed.read(time)
        x.set_shape(sequence.shape.as_list()[1:])
        shown = None
        if present is not None:
            shown = present.read(time)
            shown.set_shape(masks.shape.as_list()[1:])
        output, after = step(x, list(before), previous, shown)
        array = array.write(time, output) if with_outputs else array
        kept = [_shaped(new, old) for new, old in zip(after, before, strict=True)]
        return (time + 1, array, _shaped(output, previous), *kept)

    _, written, last, *ends = while_loop(
        lambda time, *_: less(time, size), body, (constant(0), written, zero, *states)
    )
    if not with_outputs:
        return last, None, ends
    outputs: Any = written.stack()
    outputs.set_shape([static_steps, *zero.shape.as_list()])
    return last, outputs, ends


def _row(sequence: Tensor) -> Tensor:
    first: Tensor = sequence[0]
    return first


def _shaped(new: Tensor, old: Tensor) -> Tensor:
    new.set_shape(old.shape)
    return new


def _swapped(x: Tensor) -> Tensor:
    """Batch and time exchanged."""
    return transpose(x, [1, 0, *range(2, x.shape.ndims or 2)])


def _chosen(present: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """``new`` in the rows that are present, ``old`` in the others."""
    if (present.shape.ndims or 1) > 1:
        present = reshape(present, [-1])  # [batch, 1], as Keras's own callers have it
    return where(present, new, old)
