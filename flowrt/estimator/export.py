"""``estimator.export``: what a served model is given and what it returns.

A function without arguments returns a `ServingInputReceiver`: the tensors that a server feeds, and the
features that the model function makes of them. `EstimatorSpec.export_outputs` names outputs, one a signature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flowrt.dtypes import string
from flowrt.errors import InvalidArgumentError
from flowrt.functions.parsing import parse_example
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.source import misuse
from flowrt.logging import warning
from flowrt.saved_model import signature_constants as names
from flowrt.saved_model.signatures import build_signature_def, build_tensor_info, predict_signature_def
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("estimator.export")

Tensors = Mapping[str, Tensor]


class _Receiver(NamedTuple):
    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Any


class TensorServingInputReceiver(_Receiver):
    """``features``, as the model function takes them, and ``receiver_tensors``, a dict, or one tensor named
    ``input``, that a server feeds; the alternatives, dicts by name, are other tensors that it may feed.
    """

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> TensorServingInputReceiver:
        fed = {"input": receiver_tensors} if isinstance(receiver_tensors, Tensor) else receiver_tensors
        return super().__new__(cls, features, fed, receiver_tensors_alternatives)


class ServingInputReceiver(TensorServingInputReceiver):
    """A `TensorServingInputReceiver` of features by name: one tensor is ``feature``."""

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> ServingInputReceiver:
        named = {"feature": features} if isinstance(features, Tensor) else features
        return super().__new__(cls, named, receiver_tensors, receiver_tensors_alternatives)  # type: ignore[return-value]


def build_raw_serving_input_receiver_fn(
    features: Tensors, default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """A function that makes a placeholder like each of ``features``, with batches of any size by default.

    Example:
        >>> serving_fn = tf.estimator.export.build_raw_serving_input_receiver_fn({'x': tf.zeros([1, 2])})
        >>> serving_fn().features['x'].shape
        TensorShape([None, 2])
    """
    specs = {
        name: (tensor.dtype, [default_batch_size, *tensor.shape[1:]]) for name, tensor in features.items()
    }

    def serving_input_receiver_fn() -> ServingInputReceiver:
        fed = {name: placeholder(dtype, shape, name) for name, (dtype, shape) in specs.items()}
        return ServingInputReceiver(fed, dict(fed))

    return serving_input_receiver_fn


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """A function that parses serialized `Example` messages, fed as ``examples``, by ``feature_spec``."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        messages = placeholder(string, [default_batch_size], "input_example_tensor")
        return ServingInputReceiver(parse_example(messages, feature_spec), {"examples": messages})

    return serving_input_receiver_fn


class ExportOutput(ABC):
    """Base of the outputs of a served model."""

    @abstractmethod
    def signature(self, fed: Tensors) -> Any | None:
        """The SignatureDef with the inputs ``fed``; None if servers know none with these."""


class PredictOutput(ExportOutput):
    """Tensors by name; one tensor is ``output``. Raises `InvalidArgumentError` for none."""

    def __init__(self, outputs: Any) -> None:
        self.outputs: dict[str, Tensor] = (
            dict(outputs) if isinstance(outputs, Mapping) else {"output": outputs}
        )
        if not self.outputs:
            raise misuse("PredictOutput: expected tensors by name; got none", InvalidArgumentError)

    def signature(self, fed: Tensors) -> Any:
        return predict_signature_def(fed, self.outputs)


class ClassificationOutput(ExportOutput):
    """``scores``, [batch, classes], and ``classes``, strings of that shape, or one of the two."""

    def __init__(self, scores: Tensor | None = None, classes: Tensor | None = None) -> None:
        if scores is None and classes is None:
            raise misuse(
                "ClassificationOutput: expected scores or classes; got neither", InvalidArgumentError
            )
        self.scores, self.classes = scores, classes

    def signature(self, fed: Tensors) -> Any | None:
        given = {names.CLASSIFY_OUTPUT_SCORES: self.scores, names.CLASSIFY_OUTPUT_CLASSES: self.classes}
        made = {name: tensor for name, tensor in given.items() if tensor is not None}
        return _of_examples(fed, made, names.CLASSIFY_INPUTS, names.CLASSIFY_METHOD_NAME)


class RegressionOutput(ExportOutput):
    """``value``, [batch] or [batch, 1]."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def signature(self, fed: Tensors) -> Any | None:
        made = {names.REGRESS_OUTPUTS: self.value}
        return _of_examples(fed, made, names.REGRESS_INPUTS, names.REGRESS_METHOD_NAME)


def _of_examples(fed: Tensors, made: Tensors, key: str, method: str) -> Any | None:
    """Servers classify and regress serialized examples only."""
    if [tensor.dtype for tensor in fed.values()] != [string]:
        return None
    (examples,) = fed.values()
    outputs = {name: build_tensor_info(tensor) for name, tensor in made.items()}
    return build_signature_def({key: build_tensor_info(examples)}, outputs, method)


def signatures(receiver: _Receiver, outputs: Mapping[str, ExportOutput]) -> dict[str, Any]:
    """The SignatureDefs by name: one for each output, and for each alternative ``name:output``. The only
    output is the default one, too. What servers cannot ask is left out with a warning.

    Raises `InvalidArgumentError` for several outputs, none of them the default, or if nothing is left.
    """
    default = names.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    if len(outputs) > 1 and default not in outputs:
        raise misuse(
            f"export_outputs: expected one named {default!r}; got {sorted(outputs)}", InvalidArgumentError
        )
    wanted = {default: next(iter(outputs.values())), **outputs}
    found = {key: output.signature(receiver.receiver_tensors) for key, output in wanted.items()}
    for name, fed in (receiver.receiver_tensors_alternatives or {}).items():
        found |= {f"{name}:{key}": output.signature(fed) for key, output in outputs.items()}
    if left_out := [key for key, signature in found.items() if signature is None]:
        warning("Left out of the export: %s. Their inputs would have to be serialized examples.", left_out)
    if len(left_out) == len(found):
        raise misuse("export_outputs: expected one that can be served; got none", InvalidArgumentError)
    return {key: signature for key, signature in found.items() if signature is not None}
