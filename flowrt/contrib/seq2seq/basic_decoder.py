"""`BasicDecoder`: a cell with outputs that are sampled, and with inputs from a `Helper`."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowrt.contrib.seq2seq.decoder_inputs import Helper
from flowrt.contrib.seq2seq.decoding import Decoder, shape_of_size
from flowrt.errors import DTypeError
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.nest import flatten, map_structure
from flowrt.nn.rnn_cell.base import check_cell


class BasicDecoderOutput(NamedTuple):
    """The output of the cell, behind the output layer, and what the helper sampled from it."""

    rnn_output: Any
    sample_id: Any


class BasicDecoder(Decoder):
    """A decoder that calls ``cell``, applies ``output_layer`` to its outputs, and lets ``helper`` sample from
    these and choose the next inputs.

    Raises `DTypeError` for something that is no cell or no helper.
    """

    def __init__(self, cell: Any, helper: Helper, initial_state: Any, output_layer: Any = None) -> None:
        check_cell("BasicDecoder", cell)
        if not isinstance(helper, Helper):
            raise misuse(f"BasicDecoder: expected a Helper; got {type(helper).__name__}", DTypeError)
        self._cell, self._helper, self._state, self._layer = cell, helper, initial_state, output_layer

    @property
    def batch_size(self) -> Any:
        return self._helper.batch_size

    @property
    def output_size(self) -> BasicDecoderOutput:
        return BasicDecoderOutput(
            layer_output_size(self._cell.output_size, self._layer), self._helper.sample_ids_shape
        )

    @property
    def output_dtype(self) -> BasicDecoderOutput:
        dtype = flatten(self._state)[0].dtype
        return BasicDecoderOutput(
            map_structure(lambda _: dtype, self._cell.output_size), self._helper.sample_ids_dtype
        )

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        return (*self._helper.initialize(), self._state)

    def step(self, time: Tensor, inputs: Any, state: Any, name: str | None = None) -> tuple[Any, ...]:
        with get_default_graph().name_scope(name or "BasicDecoderStep"):
            outputs, state = self._cell(inputs, state)
            if self._layer is not None:
                outputs = self._layer(outputs)
            samples = self._helper.sample(time=time, outputs=outputs, state=state)
            finished, inputs, state = self._helper.next_inputs(
                time=time, outputs=outputs, state=state, sample_ids=samples
            )
        return BasicDecoderOutput(outputs, samples), state, inputs, finished


def layer_output_size(size: Any, layer: Any) -> Any:
    """The size of a cell's outputs behind ``layer``."""
    if layer is None:
        return size
    return map_structure(
        lambda one: layer.compute_output_shape(TensorShape([None]).concatenate(shape_of_size(one)))[1:], size
    )
