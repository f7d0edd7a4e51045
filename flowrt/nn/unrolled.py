"""Recurrent networks unrolled: the graph has the cell once per time step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.control_flow import cond
from flowrt.dtypes import DTypeLike
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, stack, unstack
from flowrt.graph.ops.array.reductions import reduce_max
from flowrt.graph.ops.array.tile_and_reverse import reverse_sequence
from flowrt.graph.ops.elementwise.comparison import greater_equal, less
from flowrt.graph.source import misuse
from flowrt.nest import flatten, map_structure, pack_sequence_as
from flowrt.nn.rnn_cell.base import Structure, check_cell, rows_of, zeros_of
from flowrt.nn.sequences import check_structure, first_state, keep_finished, lengths_of, output_dtype
from flowrt.variables.variable_scope import variable_scope


def static_rnn(
    cell: Any,
    inputs: Sequence[Structure],
    initial_state: Structure = None,
    dtype: DTypeLike | None = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Structure], Structure]:
    """``(outputs, final_state)`` of ``cell`` over a list of time steps, each ``[batch, depth]`` or a
    structure of such tensors: the graph contains the cell once per step.

    ``sequence_length`` and ``initial_state`` as for `dynamic_rnn`; variables are created in the scope "rnn".
    Raises the errors of that, and for inputs that are not a list (`DTypeError`) or an empty one.
    """
    check_cell("static_rnn", cell)
    if not isinstance(inputs, (list, tuple)):
        raise misuse(f"static_rnn: expected a list of time steps; got {inputs!r}. Use unstack()?", DTypeError)
    if not inputs:
        raise misuse("static_rnn: expected at least one time step; got none")
    with variable_scope(scope or "rnn") as opened:
        steps = [map_structure(convert_to_tensor, step) for step in inputs]
        batch_size = rows_of(flatten(steps)[0])
        lengths = lengths_of("static_rnn", sequence_length, batch_size)
        state = first_state("static_rnn", cell, initial_state, batch_size, dtype)
        if lengths is not None:
            kind = output_dtype(dtype, state)
            zero_output = map_structure(lambda size: zeros_of(size, batch_size, kind), cell.output_size)
        outputs = []
        for time, step in enumerate(steps):
            if lengths is None:
                output, state = cell(step, state)
            else:
                output, state = _step_within(cell, step, time, lengths, zero_output, state)
            outputs.append(output)
            opened.reuse_variables()
        return outputs, state


def _step_within(
    cell: Any, inputs: Structure, time: int, lengths: Tensor, zero_output: Structure, state: Structure
) -> tuple[Structure, Structure]:
    """One step, for the sequences that have not ended; it does not run past the end of the longest. The first
    step always runs, because it creates the variables.
    """

    def step() -> tuple[Structure, Structure]:
        output, after = cell(inputs, state)
        check_structure("outputs of the cell's output_size", zero_output, output)
        finished = greater_equal(time, lengths)
        return keep_finished(finished, zero_output, output), keep_finished(finished, state, after)

    if time == 0:
        return step()
    return cond(less(time, reduce_max(lengths)), step, lambda: (zero_output, state), strict=True)


def static_bidirectional_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Sequence[Any],
    initial_state_fw: Structure = None,
    initial_state_bw: Structure = None,
    dtype: DTypeLike | None = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Structure, Structure]:
    """``(outputs, final_state_fw, final_state_bw)``: `static_rnn` forwards and backwards, the outputs of both
    side by side. Raises as it does.
    """
    with variable_scope(scope or "bidirectional_rnn"):
        with variable_scope("fw") as forward:
            ahead, state_fw = static_rnn(cell_fw, inputs, initial_state_fw, dtype, sequence_length, forward)
        with variable_scope("bw") as backward:
            turned = _reversed_steps(inputs, sequence_length)
            back, state_bw = static_rnn(cell_bw, turned, initial_state_bw, dtype, sequence_length, backward)
        back = _reversed_steps(back, sequence_length)
        outputs = [
            map_structure(lambda a, b: concat([a, b], 1), a, b) for a, b in zip(ahead, back, strict=True)
        ]
        return outputs, state_fw, state_bw


def _reversed_steps(steps: Sequence[Any], lengths: Any) -> list[Any]:
    if lengths is None:
        return list(reversed(steps))
    leaves = zip(*(flatten(step) for step in steps), strict=True)
    turned = [unstack(reverse_sequence(stack(leaf), lengths, seq_axis=0, batch_axis=1)) for leaf in leaves]
    return [pack_sequence_as(steps[0], step) for step in zip(*turned, strict=True)]
