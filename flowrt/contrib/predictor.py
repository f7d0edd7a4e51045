"""``flowrt.contrib.predictor``: models as functions of arrays by name: SavedModels, and estimators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flowrt.errors import NotFoundError
from flowrt.estimator.export import PredictOutput, signatures
from flowrt.estimator.modes import ModeKeys
from flowrt.executor.session.session import Session
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.source import misuse
from flowrt.saved_model import loader
from flowrt.saved_model.graph_model import GraphModel
from flowrt.saved_model.signature_constants import DEFAULT_SERVING_SIGNATURE_DEF_KEY
from flowrt.saved_model.signatures import tensor_name
from flowrt.saved_model.tag_constants import SERVING
from flowrt.tf1.missing_names import missing_from
from flowrt.train.checkpoints.saver import Saver
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.optimizers.global_step import get_or_create_global_step

__all__ = ["Predictor", "from_estimator", "from_saved_model"]

__getattr__ = missing_from("contrib.predictor")


class Predictor:
    """A model that a call runs: ``predictor({"x": array})`` is a dict of outputs by name.

    ``feed_tensors`` and ``fetch_tensors`` are its inputs and outputs by name, in ``session``'s ``graph``.
    """

    def __init__(self, session: Any, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        self._model = GraphModel(session, inputs, outputs)

    @property
    def session(self) -> Any:
        return self._model.session

    @property
    def graph(self) -> Graph:
        return self._model.graph

    @property
    def feed_tensors(self) -> dict[str, Tensor]:
        return self._model.inputs

    @property
    def fetch_tensors(self) -> dict[str, Tensor]:
        return self._model.outputs

    def __call__(self, input_dict: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs. Raises `InvalidArgumentError` for other inputs than the model has."""
        return self._model.run(input_dict)


def from_saved_model(
    export_dir: Any,
    signature_def_key: str | None = None,
    signature_def: Any = None,
    input_names: Mapping[str, str] | None = None,
    output_names: Mapping[str, str] | None = None,
    tags: str | None = None,
    graph: Graph | None = None,
    config: Any = None,
) -> Predictor:
    """The model of a SavedModel with ``tags``, by default the one for serving, separated by commas.

    Its inputs and outputs are those of the signature ``signature_def_key``, by default "serving_default", or
    of ``signature_def``, or ``input_names`` and ``output_names``: names of tensors. Raises `NotFoundError`
    for another key, `InvalidArgumentError` for names of one kind alone, and as `saved_model.loader.load`.
    """
    if (input_names is None) != (output_names is None):
        raise misuse("from_saved_model: expected input_names and output_names, or neither; got one")
    graph = graph or Graph()
    with graph.as_default():
        session = Session(graph=graph, config=config)
        message = loader.load(session, (tags or SERVING).split(","), export_dir)
    if input_names is None or output_names is None:
        chosen = signature_def or _signature(message.signature_def, signature_def_key)
        return _of_names(session, *_names(chosen))
    return _of_names(session, input_names, output_names)


def from_estimator(
    estimator: Any,
    serving_input_receiver_fn: Callable[[], Any],
    output_key: str | None = None,
    graph: Graph | None = None,
    config: Any = None,
) -> Predictor:
    """The model of an estimator with the values of its newest checkpoint.

    The outputs are ``export_outputs[output_key]`` of its `EstimatorSpec`, by default "serving_default", or
    its predictions. Raises `NotFoundError` for another key, and without a checkpoint.
    """
    path = estimator.needed_checkpoint(None)
    graph = graph or Graph()
    with graph.as_default():
        get_or_create_global_step()
        receiver = serving_input_receiver_fn()
        spec = estimator.call_model_fn(receiver.features, None, ModeKeys.PREDICT)
        default = {DEFAULT_SERVING_SIGNATURE_DEF_KEY: PredictOutput(spec.predictions)}
        signature = _signature(signatures(receiver, spec.export_outputs or default), output_key)
        scaffold = spec.scaffold or Scaffold()
        initialize = scaffold.local_init_op or Scaffold.default_local_init_op()
        saver = scaffold.saver or Saver()
        session = Session(graph=graph, config=config)
        saver.restore(session, path)
        session.run(initialize)
    return _of_names(session, *_names(signature))


def _signature(signature_defs: Mapping[str, Any], key: str | None) -> Any:
    key = key or DEFAULT_SERVING_SIGNATURE_DEF_KEY
    if key not in signature_defs:
        known = ", ".join(sorted(signature_defs)) or "none"
        raise misuse(f"predictor: expected one of the signatures {known}; got {key!r}", NotFoundError)
    return signature_defs[key]


def _names(signature: Any) -> Iterator[dict[str, str]]:
    """The names of the tensors of its inputs, and of its outputs."""
    for each in (signature.inputs, signature.outputs):
        yield {name: tensor_name(info) for name, info in each.items()}


def _of_names(session: Any, *names: Mapping[str, str]) -> Predictor:
    found = session.graph.get_tensor_by_name
    return Predictor(session, *({name: found(each) for name, each in part.items()} for part in names))
