"""``flowrt.keras.models``: models from their data, and copies of them."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from flowrt.errors import NotFoundError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.source import misuse
from flowrt.keras import layers as all_layers
from flowrt.keras import losses, metrics, optimizers
from flowrt.keras.engine.input_layer import InputLayer
from flowrt.keras.engine.layer import Layer
from flowrt.keras.engine.model import Model
from flowrt.keras.engine.nodes import tensors_in
from flowrt.keras.engine.sequential import Sequential
from flowrt.keras.identifiers import custom_object_scope, deserialize_object
from flowrt.keras.saving import hdf5, weight_files
from flowrt.keras.saving.model_files import save_model
from flowrt.keras.state.sessions import batch_set_value
from flowrt.nest import flatten
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("keras.models")


def layer_from_config(config: Mapping[str, Any], custom_objects: Any = None) -> Any:
    """The layer or model of a configuration with a class and its arguments."""
    if not {"class_name", "config"} <= config.keys():
        raise misuse(f"expected a configuration with class_name and config; got {config!r:.80}")
    name, inner = config["class_name"], dict(config["config"])
    with custom_object_scope(custom_objects):
        if name == "Sequential":
            return _sequential(inner)
        if name in ("Model", "Functional"):
            return _network(inner)
        for key in ("layer", "backward_layer"):
            if isinstance(inner.get(key), Mapping):
                inner[key] = layer_from_config(inner[key])
        for key in ("cell", "cells"):
            if key in inner:
                own = inner[key]
                inner[key] = (
                    [layer_from_config(c) for c in own] if isinstance(own, list) else layer_from_config(own)
                )
        own = _layer_class(name)
        inner = inner if own is None else _known_options(own, inner)
        return deserialize_object({"class_name": name, "config": inner}, _layer_class, "layer")


def _known_options(layer_class: type[Layer], config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` without options that later versions of Keras added and left at None, False or 1."""
    known = {
        name
        for cls in layer_class.__mro__
        for name in inspect.signature(vars(cls).get("__init__", cls)).parameters
    }
    return {key: value for key, value in config.items() if key in known or value not in (None, False, 1)}


def _layer_class(name: str) -> Any:
    found = getattr(all_layers, name, None) if not name.startswith("_") else None
    return found if isinstance(found, type) and issubclass(found, Layer) else None


def model_from_config(config: Mapping[str, Any], custom_objects: Any = None) -> Any:
    """The model of such a configuration, with new weights."""
    return layer_from_config(config, custom_objects)


def model_from_json(json_string: str, custom_objects: Any = None) -> Any:
    """The model that `Model.to_json` wrote, with new weights."""
    return layer_from_config(json.loads(json_string), custom_objects)


def _sequential(config: Mapping[str, Any]) -> Sequential:
    return Sequential([layer_from_config(each) for each in config["layers"]], name=config.get("name"))


def _network(config: Mapping[str, Any], layers: Mapping[str, Any] | None = None) -> Model:
    """``layers``, by default new ones, called as they were; a call waits for those that it reads."""
    made = {} if layers is None else layers
    layers = {each["name"]: made.get(each["name"]) or layer_from_config(each) for each in config["layers"]}
    outputs: dict[tuple[str, int], list[Tensor]] = {}
    waiting = []
    for each in config["layers"]:
        layer = layers[each["name"]]
        if isinstance(layer, InputLayer):
            outputs[each["name"], 0] = [layer.output]
        waiting += [(each["name"], call, inputs) for call, inputs in enumerate(each["inbound_nodes"])]
    while waiting:
        ready = [w for w in waiting if all((name, call) in outputs for name, call, *_ in w[2])]
        if not ready:
            raise misuse(f"model {config.get('name')!r}: expected calls of layers without a cycle")
        for name, call, inputs in ready:
            values = [outputs[source, at][index] for source, at, index, *_ in inputs]
            options = inputs[0][3] if len(inputs[0]) > 3 else {}
            found = layers[name](values if len(values) > 1 else values[0], **options)
            outputs[name, call] = tensors_in(found)
        waiting = [w for w in waiting if w not in ready]

    def tensors(key: str) -> list[Tensor]:
        return [outputs[name, call][index] for name, call, index in config[key]]

    inputs, ends = tensors("input_layers"), tensors("output_layers")
    return Model(inputs, ends if len(ends) > 1 else ends[0], name=config.get("name"))


def load_model(filepath: str, custom_objects: Any = None, compile: bool = True) -> Any:
    """The model that `Model.save` saved, or Keras, compiled unless ``compile`` is False.

    Raises `NotFoundError` without such a file, `UnimplementedError` without `h5py`, and
    `InvalidArgumentError` for classes and functions that are the program's own and not in ``custom_objects``.
    """
    path = os.fspath(filepath)
    if not os.path.exists(path):
        raise NotFoundError(f"load_model: expected a model; there is none at {path}")
    if os.path.isdir(path):
        raise misuse(
            f"load_model: expected an HDF5 file; {path} is a folder. A SavedModel is read by"
            " saved_model.loader.load, weights by Model.load_weights"
        )
    with hdf5.open_file(path, "r") as file:
        if "model_config" not in file.attrs:
            raise misuse(f"load_model: expected a file with an architecture; {path} has weights only")
        config, stored = json.loads(_text(file.attrs["model_config"])), hdf5.read_weights(file)
        training = (
            json.loads(_text(file.attrs["training_config"])) if "training_config" in file.attrs else None
        )
        slots = hdf5.read_arrays(file["optimizer_weights"]) if "optimizer_weights" in file else []
    model = layer_from_config(config, custom_objects)
    weight_files.set_stored(model, stored, path)
    if training is not None and compile:
        with custom_object_scope(custom_objects):
            _compile(model, training, slots)
    return model


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _compile(model: Model, training: Mapping[str, Any], slots: list[Any]) -> None:
    model.compile(
        optimizers.get(training["optimizer_config"]),
        _objects(training["loss"], losses.get),
        _objects(training.get("metrics"), metrics.get),
        training.get("loss_weights"),
        training.get("sample_weight_mode"),
        _objects(training.get("weighted_metrics"), metrics.get),
    )
    if slots:
        model._step("train")  # which makes the slots
        own = model.optimizer.weights
        if len(own) == len(slots):
            batch_set_value(list(zip(own, slots, strict=True)))


def _objects(config: Any, get: Callable[[Any], Any]) -> Any:
    """Names and configurations as objects; names of Keras's own stay, since outputs decide what "acc" is."""
    if isinstance(config, Mapping):
        if "class_name" in config:
            return get(config)
        return {key: _objects(each, get) for key, each in config.items()}
    if isinstance(config, list):
        return [_objects(each, get) for each in config]
    return config


def clone_model(
    model: Any, input_tensors: Any = None, clone_function: Callable[[Any], Any] | None = None
) -> Any:
    """A model of new layers like those of ``model``, with new weights.

    ``clone_function`` makes a layer of a layer. Raises `InvalidArgumentError` for a model that is a class.
    """
    copy = clone_function or (lambda layer: layer.copied())
    if isinstance(model, Sequential):
        cloned = Sequential(
            [clone_model(m) if isinstance(m, Model) else copy(m) for m in model.layers], model.name
        )
        if model.inputs is not None and cloned.inputs is None:
            cloned.build(model.inputs[0].shape)
        return cloned
    config = model.get_config()
    copies = {
        layer.name: clone_model(layer) if isinstance(layer, Model) else copy(layer)
        for layer in model.layers
        if not isinstance(layer, InputLayer)
    }
    found = _network(config, copies)
    return found if input_tensors is None else Model(flatten(input_tensors), found(input_tensors))
