"""`AttentionWrapper`: a cell that reads, beside its inputs, what it attends to in a memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowrt.contrib.seq2seq.attention import AttentionMechanism
from flowrt.dtypes import int32
from flowrt.errors import DTypeError
from flowrt.functions.tensor_array import TensorArray
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.base.filling import zeros
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.base.shape_manipulation import expand_dims, squeeze
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.layers.core import Dense
from flowrt.nest import map_structure
from flowrt.nn.rnn_cell.base import RNNCell, check_cell, zeros_of


class AttentionWrapperState(NamedTuple):
    """State of an `AttentionWrapper`: the cell's; the last attention; the number of the step; and of each
    mechanism, alone or in a tuple, its alignments, all of them so far as a TensorArray or (), its state.
    """

    cell_state: Any
    attention: Any
    time: Any
    alignments: Any
    alignment_history: Any
    attention_state: Any

    def clone(self, **kwargs: Any) -> AttentionWrapperState:
        """A copy with some parts replaced."""
        return self._replace(**kwargs)


class AttentionWrapper(RNNCell):
    """``cell`` with attention: its inputs are ``cell_input_fn(inputs, attention)``, by default both side by
    side; then each mechanism is asked with its output. The attention is ``attention_layer`` of the output and
    the context side by side, without bias and of ``attention_layer_size``, or the context if both are None.
    It is the output too, if ``output_attention``.

    Several mechanisms, given as a list, each have a layer of a list likewise; what they attend to is put side
    by side. Raises `DTypeError` for other cells and mechanisms, `InvalidArgumentError` for lists that do not
    fit.
    """

    def __init__(
        self,
        cell: Any,
        attention_mechanism: Any,
        attention_layer_size: Any = None,
        alignment_history: bool = False,
        cell_input_fn: Callable[[Any, Any], Any] | None = None,
        output_attention: bool = True,
        initial_cell_state: Any = None,
        name: str | None = None,
        attention_layer: Any = None,
        attention_fn: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(name=name)
        check_cell("AttentionWrapper", cell)
        self._multiple = isinstance(attention_mechanism, (list, tuple))
        self._mechanisms = tuple(attention_mechanism) if self._multiple else (attention_mechanism,)
        for mechanism in self._mechanisms:
            if not isinstance(mechanism, AttentionMechanism):
                raise misuse(
                    f"AttentionWrapper: expected an AttentionMechanism; got {type(mechanism).__name__}",
                    DTypeError,
                )
        self._layers = self._made_layers(attention_layer_size, attention_layer)
        self._cell, self._keeps_history = cell, alignment_history
        self._cell_inputs = cell_input_fn or (lambda inputs, attention: concat([inputs, attention], -1))
        self._outputs_attention, self._initial_cell_state = output_attention, initial_cell_state
        self._attend = attention_fn or attend

    def _made_layers(self, sizes: Any, layers: Any) -> tuple[Any, ...]:
        if sizes is not None and layers is not None:
            raise misuse("AttentionWrapper: expected attention_layer_size or attention_layer; got both")
        if layers is None and sizes is None:
            return (None,) * len(self._mechanisms)
        given = layers if sizes is None else sizes
        listed = tuple(given) if isinstance(given, Sequence) else (given,)
        if len(listed) != len(self._mechanisms):
            raise misuse(
                f"AttentionWrapper: expected a layer of each mechanism, {len(self._mechanisms)}; got "
                f"{len(listed)}"
            )
        if sizes is None:
            return listed
        return tuple(
            Dense(size, name="attention_layer", use_bias=False, dtype=mechanism.dtype)
            for size, mechanism in zip(listed, self._mechanisms, strict=True)
        )

    def _each(self, values: Sequence[Any]) -> Any:
        """The values of the mechanisms as a state has them."""
        return tuple(values) if self._multiple else values[0]

    @property
    def _attention_size(self) -> int:
        sizes = []
        for mechanism, layer in zip(self._mechanisms, self._layers, strict=True):
            depth = mechanism.values.shape.as_list()[-1]
            if layer is not None:
                query = TensorShape(self._cell.output_size).as_list()[-1]
                depth = layer.compute_output_shape([None, query + depth]).as_list()[-1]
            sizes.append(depth)
        return sum(sizes)

    @property
    def output_size(self) -> Any:
        return self._attention_size if self._outputs_attention else self._cell.output_size

    @property
    def state_size(self) -> AttentionWrapperState:
        sizes = self._each([mechanism.alignments_size for mechanism in self._mechanisms])
        return AttentionWrapperState(
            cell_state=self._cell.state_size,
            attention=self._attention_size,
            time=TensorShape([]),
            alignments=sizes,
            alignment_history=self._each([()] * len(self._mechanisms)) if not self._keeps_history else sizes,
            attention_state=self._each([mechanism.state_size for mechanism in self._mechanisms]),
        )

    def zero_state(self, batch_size: Any, dtype: Any) -> AttentionWrapperState:
        """The first state for ``batch_size`` rows: the cell's is that given or zeros, there is no attention.

        Under `BeamSearchDecoder` the batch is that of all beams, and the memory has to be tiled for them.
        """
        with get_default_graph().name_scope(f"{type(self).__name__}ZeroState"):
            state = self._initial_cell_state
            if state is None:
                state = self._cell.zero_state(batch_size, dtype)
            first = [mechanism.initial_alignments(batch_size, dtype) for mechanism in self._mechanisms]
            return AttentionWrapperState(
                cell_state=map_structure(identity, state),
                attention=zeros_of(self._attention_size, batch_size, dtype),
                time=zeros([], int32),
                alignments=self._each(first),
                alignment_history=self._each([self._history(one, dtype) for one in first]),
                attention_state=self._each([m.initial_state(batch_size, dtype) for m in self._mechanisms]),
            )

    def _history(self, first: Tensor, dtype: Any) -> Any:
        if not self._keeps_history:
            return ()
        return TensorArray(dtype, 0, dynamic_size=True, element_shape=first.shape)

    def call(self, inputs: Any, state: Any, *args: Any, **kwargs: Any) -> tuple[Any, AttentionWrapperState]:
        if not isinstance(state, AttentionWrapperState):
            raise misuse(
                f"AttentionWrapper: expected an AttentionWrapperState; got {state!r:.80}", DTypeError
            )
        output, cell_state = self._cell(self._cell_inputs(inputs, state.attention), state.cell_state)
        known, histories = (
            part if self._multiple else (part,) for part in (state.attention_state, state.alignment_history)
        )
        found = [
            self._attend(mechanism, output, before, layer)
            for mechanism, before, layer in zip(self._mechanisms, known, self._layers, strict=True)
        ]
        attentions, alignments, states = zip(*found, strict=True)
        written = [
            history.write(state.time, alignment) if self._keeps_history else ()
            for history, alignment in zip(histories, alignments, strict=True)
        ]
        attention = concat(list(attentions), 1)
        following = AttentionWrapperState(
            cell_state=cell_state,
            attention=attention,
            time=state.time + 1,
            alignments=self._each(alignments),
            alignment_history=self._each(written),
            attention_state=self._each(states),
        )
        return attention if self._outputs_attention else output, following


def attend(
    mechanism: AttentionMechanism, cell_output: Tensor, attention_state: Any, attention_layer: Any
) -> tuple[Tensor, Tensor, Any]:
    """``(attention, alignments, next_state)`` of ``mechanism`` for the query ``cell_output``."""
    alignments, state = mechanism(cell_output, attention_state)
    context = squeeze(matmul(expand_dims(alignments, 1), mechanism.values), [1])
    if attention_layer is None:
        return context, alignments, state
    return attention_layer(concat([cell_output, context], 1)), alignments, state
