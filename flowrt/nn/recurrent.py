"""Recurrent networks as a loop of the graph: one step of the cell is traced, and run once per time step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.control_flow import while_loop
from flowrt.control_flow.functions import check_callable
from flowrt.dtypes import DType, DTypeLike
from flowrt.functions.tensor_array import TensorArray
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_all, reduce_max
from flowrt.graph.ops.array.tile_and_reverse import reverse_sequence, reverse_v2
from flowrt.graph.ops.base.shape_manipulation import transpose
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.comparison import greater_equal, less, logical_not, logical_or
from flowrt.graph.source import misuse
from flowrt.nest import flatten, map_structure
from flowrt.nn.rnn_cell.base import Structure, check_cell, rows_of, zeros_of
from flowrt.nn.sequences import check_structure, first_state, keep_finished, lengths_of, output_dtype
from flowrt.variables.variable_scope import variable_scope

PARALLEL_ITERATIONS = 32  # TensorFlow's number for recurrent networks


def dynamic_rnn(
    cell: Any,
    inputs: Structure,
    sequence_length: Any = None,
    initial_state: Structure = None,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[Structure, Structure]:
    """A cell applied to one time step after the other: a loop in the graph, so any number of steps. Variables
    are created in the scope "rnn".

    Args:
        cell: A cell of `nn.rnn_cell`.
        inputs: ``[batch, time, depth]``, or a structure of such tensors.
        sequence_length: Integers ``[batch]``: the steps of each sequence; outputs behind them are 0.
        initial_state: The state that the cell starts with; None for zeros of ``dtype``.
        dtype: The dtype of the initial state.
        parallel_iterations: Accepted: steps run one after the other.
        swap_memory: Whether intermediate values are kept on the host.
        time_major: Whether inputs and outputs are ``[time, batch, depth]``.
        scope: The variable scope, instead of "rnn".

    Returns:
        ``(outputs, final_state)``: outputs have the shape of the inputs with the cell's output size instead
        of the depth.

    Raises:
        InvalidArgumentError: The inputs have an unknown depth, or differ in time and batch; the lengths are
            no vector; or both ``initial_state`` and ``dtype`` are missing.
        DTypeError: ``cell`` is no cell.

    Example:
        >>> inputs = tf.ones([3, 5, 4])
        >>> cell = tf.nn.rnn_cell.GRUCell(8)
        >>> outputs, state = tf.nn.dynamic_rnn(cell, inputs, sequence_length=[5, 2, 1], dtype=tf.float32)
        >>> outputs.shape.as_list(), state.shape.as_list()
        ([3, 5, 8], [3, 8])
    """
    check_cell("dynamic_rnn", cell)
    with variable_scope(scope or "rnn"):
        sequences = map_structure(convert_to_tensor, inputs)
        for sequence in flatten(sequences):
            _check_sequence(sequence)
        if not time_major:
            sequences = map_structure(transpose_batch_time, sequences)
        _check_alike(flatten(sequences))
        batch_size = rows_of(flatten(sequences)[0], axis=1)
        lengths = lengths_of("dynamic_rnn", sequence_length, batch_size)
        state = first_state("dynamic_rnn", cell, initial_state, batch_size, dtype)
        kind = output_dtype(dtype, state)
        options = {
            "parallel_iterations": parallel_iterations or PARALLEL_ITERATIONS,
            "swap_memory": swap_memory,
        }
        outputs, final_state = _loop(cell, sequences, lengths, state, kind, options)
        if not time_major:
            outputs = map_structure(transpose_batch_time, outputs)
        return outputs, final_state


def _loop(
    cell: Any, sequences: Structure, lengths: Tensor | None, state: Structure, kind: DType, options: Any
) -> tuple[Structure, Structure]:
    """Outputs, time first, and the final state."""
    first: Tensor = flatten(sequences)[0]
    steps, batch_size = rows_of(first), rows_of(first, axis=1)
    static_steps, static_batch = first.shape.as_list()[:2]
    zero_output = map_structure(lambda size: zeros_of(size, batch_size, kind), cell.output_size)
    fed = map_structure(lambda x: TensorArray(x.dtype, steps).unstack(x), sequences)
    written = map_structure(lambda zero: TensorArray(kind, steps, element_shape=zero.shape), zero_output)
    # The first step runs even if all sequences are empty: it determines the size of an output row.
    end = steps if lengths is None else minimum(steps, maximum(1, reduce_max(lengths)))

    def body(time: Tensor, arrays: Structure, before: Structure) -> tuple[Tensor, Structure, Structure]:
        rows = map_structure(lambda array, x: _shaped(array.read(time), x.shape[1:]), fed, sequences)
        output, after = cell(rows, before)
        check_structure("outputs of the cell's output_size", zero_output, output)
        check_structure("a new state like the old one", before, after)
        if lengths is not None:
            finished = greater_equal(time, lengths)
            output = keep_finished(finished, zero_output, output)
            after = keep_finished(finished, before, after)
        arrays = map_structure(lambda array, row: array.write(time, row), arrays, output)
        return time + 1, arrays, after

    _, written, final_state = while_loop(
        lambda time, *_: less(time, end), body, (constant(0), written, state), **options
    )
    outputs = map_structure(
        lambda array, zero: _shaped(array.stack(), [static_steps, static_batch, *zero.shape[1:]]),
        written,
        zero_output,
    )
    return outputs, final_state


def bidirectional_dynamic_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Structure,
    sequence_length: Any = None,
    initial_state_fw: Structure = None,
    initial_state_bw: Structure = None,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[tuple[Structure, Structure], tuple[Structure, Structure]]:
    """``((outputs_fw, outputs_bw), (final_state_fw, final_state_bw))``: `dynamic_rnn` of ``cell_fw`` over the
    sequences and of ``cell_bw`` over each reversed within its length.

    ``outputs_bw`` are put back into the order of the inputs. Variables are made in
    "bidirectional_rnn/fw" and "bidirectional_rnn/bw". Raises as `dynamic_rnn`.
    """
    check_cell("bidirectional_dynamic_rnn", cell_fw)
    check_cell("bidirectional_dynamic_rnn", cell_bw)
    axis = 0 if time_major else 1

    def turned(x: Any) -> Any:
        if sequence_length is None:
            return reverse_v2(x, [axis])
        return reverse_sequence(x, sequence_length, seq_axis=axis, batch_axis=1 - axis)

    common = (dtype, parallel_iterations, swap_memory, time_major)
    with variable_scope(scope or "bidirectional_rnn"):
        with variable_scope("fw") as forward:
            ahead, state_fw = dynamic_rnn(
                cell_fw, inputs, sequence_length, initial_state_fw, *common, scope=forward
            )
        with variable_scope("bw") as backward:
            backwards = map_structure(turned, inputs)
            back, state_bw = dynamic_rnn(
                cell_bw, backwards, sequence_length, initial_state_bw, *common, scope=backward
            )
        return (ahead, map_structure(turned, back)), (state_fw, state_bw)


def raw_rnn(
    cell: Any,
    loop_fn: Callable[..., Any],
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    scope: Any = None,
) -> tuple[Structure, Structure, Structure]:
    """A loop over ``cell`` with inputs, states and end determined by ``loop_fn``.

    ``loop_fn(time, cell_output, cell_state, loop_state)`` returns ``(finished, next_input, next_cell_state,
    emit_output, next_loop_state)``: ``finished`` is a bool vector ``[batch]``, and the loop ends when it
    holds for all rows. It is first called with time 0 and None for all else: then it returns the first input
    and state, the first loop state (or None), and as ``emit_output`` a structure of tensors like one emitted
    row (or None: the cell's outputs). A finished row emits zeros and keeps its state.

    Returns ``(emitted, final_state, final_loop_state)``, ``emitted`` a structure of TensorArrays of ``[batch,
    ...]``. Raises `DTypeError` for an invalid cell or function, `InvalidArgumentError` for structures that
    differ between calls.
    """
    check_cell("raw_rnn", cell)
    check_callable("raw_rnn", "loop_fn", loop_fn)
    with variable_scope(scope or "rnn"):
        finished, first_input, state, row, loop_state = loop_fn(constant(0), None, None, None)
        inputs, state = map_structure(convert_to_tensor, first_input), map_structure(convert_to_tensor, state)
        check_structure("a first state of the cell's state_size", cell.state_size, state)
        zero_row = _zero_emits(cell, row, rows_of(flatten(inputs)[0]), flatten(state)[0].dtype)
        emitted = map_structure(
            lambda zero: TensorArray(zero.dtype, 0, dynamic_size=True, element_shape=zero.shape), zero_row
        )
        has_loop_state = loop_state is not None

        def body(time: Any, done: Any, given: Any, arrays: Any, before: Any, loop: Any) -> tuple[Any, ...]:
            output, new_state = cell(given, before)
            next_done, next_input, after, emit, next_loop = loop_fn(
                time + 1, output, new_state, loop if has_loop_state else None
            )
            check_structure("a state of loop_fn like the one before", before, after)
            check_structure("an input of loop_fn like the first one", given, next_input)
            check_structure("an emitted output like the first one", zero_row, emit)
            emit, after = keep_finished(done, zero_row, emit), keep_finished(done, before, after)
            arrays = map_structure(lambda array, value: array.write(time, value), arrays, emit)
            following = loop if next_loop is None else next_loop
            return time + 1, logical_or(done, next_done), next_input, arrays, after, following

        *_, emitted, state, loop_state = while_loop(
            lambda time, done, *_: logical_not(reduce_all(done)),
            body,
            (
                constant(0),
                convert_to_tensor(finished),
                inputs,
                emitted,
                state,
                loop_state if has_loop_state else constant(0),
            ),
            parallel_iterations=parallel_iterations or PARALLEL_ITERATIONS,
            swap_memory=swap_memory,
        )
        return emitted, state, loop_state if has_loop_state else None


def _zero_emits(cell: Any, row: Structure, batch_size: Any, dtype: DType) -> Structure:
    """Zeros like one step's emissions: rows like ``row``, or the cell's outputs of ``dtype``."""
    if row is None:
        return map_structure(lambda size: zeros_of(size, batch_size, dtype), cell.output_size)
    rows = map_structure(convert_to_tensor, row)
    return map_structure(lambda one: zeros_of(one.shape, batch_size, one.dtype), rows)


def transpose_batch_time(x: Tensor) -> Tensor:
    return transpose(x, [1, 0, *range(2, x.shape.ndims or 0)])


def _check_sequence(x: Tensor) -> None:
    if x.shape.ndims is None or x.shape.ndims < 3 or None in x.shape.as_list()[2:]:
        raise misuse(f"dynamic_rnn: expected inputs [batch, time, depth] of known depth; got {x!r}")


def _check_alike(sequences: list[Tensor]) -> None:
    shape = sequences[0].shape[:2]
    for other in sequences[1:]:
        if not shape.is_compatible_with(other.shape[:2]):
            raise misuse(
                f"dynamic_rnn: expected inputs of equal time and batch; got {sequences[0]!r} and {other!r}"
            )


def _shaped(tensor: Tensor, shape: Any) -> Tensor:
    tensor.set_shape(shape)
    return tensor
