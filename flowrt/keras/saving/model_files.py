"""A model as data: its architecture as JSON, and one HDF5 file of architecture, weights and optimizer."""

from __future__ import annotations

import json
import os
from typing import Any

from flowrt.graph.source import misuse
from flowrt.keras.identifiers import serialize_object
from flowrt.keras.saving import hdf5
from flowrt.keras.saving.weight_files import layer_values
from flowrt.keras.state.sessions import batch_get_value


def model_config(model: Any) -> dict[str, Any]:
    """The class and configuration of ``model``, as JSON can hold them."""
    return {"class_name": type(model).__name__, "config": model.get_config(), "backend": "tensorflow"}


def to_json(model: Any, **options: Any) -> str:
    return json.dumps(model_config(model), **options)


def save_model(model: Any, filepath: str, overwrite: bool = True, include_optimizer: bool = True) -> None:
    """Save ``model`` as HDF5. Raises `InvalidArgumentError` for a model that is a class, `UnimplementedError`
    without `h5py`.
    """
    path = os.fspath(filepath)
    if os.path.exists(path) and not overwrite:
        raise misuse(f"save: expected no file at {path}; there is one, and overwrite is False")
    config = to_json(model)
    training = training_config(model) if include_optimizer and model.optimizer is not None else None
    with hdf5.open_file(path, "w") as file:
        file.attrs["model_config"] = config.encode()
        file.attrs["keras_version"], file.attrs["backend"] = b"2.2.4-tf", b"tensorflow"
        hdf5.write_weights(file.create_group("model_weights"), layer_values(model))
        if training is not None:
            file.attrs["training_config"] = json.dumps(training).encode()
            weights = model.optimizer.weights
            group = file.create_group("optimizer_weights")
            group.attrs["weight_names"] = [w.name.encode() for w in weights]
            for w, value in zip(weights, batch_get_value(weights), strict=True):
                group.create_dataset(w.name, data=value)


def training_config(model: Any) -> dict[str, Any] | None:
    """The arguments of `compile`, or None for an optimizer that has no configuration."""
    if not hasattr(model.optimizer, "get_config") or model._settings is None:
        return None
    settings = model._settings
    return {
        "optimizer_config": serialize_object(model.optimizer),
        "loss": serialize_object(settings.loss),
        "metrics": serialize_object(settings.metrics),
        "weighted_metrics": serialize_object(settings.weighted_metrics),
        "loss_weights": serialize_object(settings.loss_weights),
        "sample_weight_mode": settings.sample_weight_mode,
    }
