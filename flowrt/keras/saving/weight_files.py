"""`save_weights` and `load_weights`: a checkpoint of TensorFlow's format, or HDF5.

The keys of a checkpoint are those of `tf.keras`: ``layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE``,
by the attribute of the layer that holds the variable, so weights that `tf.keras` saved can be loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from flowrt.errors import NotFoundError
from flowrt.graph.source import misuse
from flowrt.keras.saving import hdf5
from flowrt.keras.state.sessions import batch_get_value, batch_set_value
from flowrt.layers import base
from flowrt.train.checkpoints.checkpoint_state import update_checkpoint_state
from flowrt.train.checkpoints.open_checkpoint import checkpoint_exists, open_checkpoint
from flowrt.train.checkpoints.tensorflow_writer import write_bundle_files
from flowrt.variables.variable import Variable

_SUFFIX = ".ATTRIBUTES/VARIABLE_VALUE"
_HDF5 = (".h5", ".hdf5", ".keras")


def save_weights(model: Any, filepath: str, overwrite: bool, save_format: str | None) -> None:
    """Save the values of the model's weights. Raises `InvalidArgumentError` for an unknown format, and for a
    file that is there without ``overwrite``.
    """
    path = os.fspath(filepath)
    kind = save_format or ("h5" if path.endswith(_HDF5) else "tf")
    if kind in ("tf", "tensorflow"):
        keys = _keys(model)
        values = batch_get_value(list(keys.values()))
        write_bundle_files(path, sorted(zip(keys, values, strict=True)))
        update_checkpoint_state(os.path.dirname(path) or ".", path, [path])
    elif kind in ("h5", "hdf5", "keras"):
        if os.path.exists(path) and not overwrite:
            raise misuse(f"save_weights: expected no file at {path}; there is one, and overwrite is False")
        with hdf5.open_file(path, "w") as file:
            hdf5.write_weights(file, layer_values(model))
    else:
        raise misuse(f"save_format: expected 'tf' or 'h5'; got {save_format!r}")


def layer_values(model: Any) -> list[tuple[str, list[tuple[str, Any]]]]:
    """The weights of each layer by name, with their values."""
    names = [(layer, [w.name for w in layer.weights]) for layer in model.layers]
    values = iter(batch_get_value([w for layer in model.layers for w in layer.weights]))
    return [(layer.name, [(name, next(values)) for name in own]) for layer, own in names]


def load_weights(model: Any, filepath: str, by_name: bool, skip_mismatch: bool) -> None:
    """Load weights. Raises `NotFoundError` if there are none, and `InvalidArgumentError` if they are not the
    model's: nothing is changed then.
    """
    path = os.fspath(filepath)
    if path.endswith(_HDF5) or (os.path.isfile(path) and not checkpoint_exists(path)):
        if not os.path.exists(path):
            raise NotFoundError(f"load_weights: expected a file of weights; there is none at {path}")
        with hdf5.open_file(path, "r") as file:
            stored = hdf5.read_weights(file)
        if by_name:
            batch_set_value(_by_name(model, stored, skip_mismatch))
        else:
            set_stored(model, stored, path)
        return
    if by_name:
        raise misuse("load_weights: expected an HDF5 file for by_name=True")
    _load_checkpoint(model, path)


def _load_checkpoint(model: Any, path: str) -> None:
    if not checkpoint_exists(path):
        raise NotFoundError(f"load_weights: expected a checkpoint; there is none at {path}")
    reader = open_checkpoint(path)
    pairs = []
    for key, variable in _keys(model).items():
        if not reader.has_tensor(key):
            raise misuse(f"load_weights: expected {key!r}, for {variable.name!r}; {path} has none")
        pairs.append((variable, _checked(variable, reader.get_tensor(key), path)))
    batch_set_value(pairs)


def set_stored(model: Any, stored: Any, path: str) -> None:
    """Set the weights to ``stored``, layer by layer. Raises `InvalidArgumentError` for those of another
    model.
    """
    batch_set_value(_in_order(model, stored, path))


def _in_order(model: Any, stored: Any, path: str) -> list[tuple[Variable, Any]]:
    layers = [layer for layer in model.layers if layer.weights]
    if len(layers) != len(stored):
        raise misuse(f"load_weights: expected {len(layers)} layers with weights; {path} has {len(stored)}")
    return [
        pair
        for layer, (_, own) in zip(layers, stored, strict=True)
        for pair in _pairs(layer, [value for _, value in own], path)
    ]


def _by_name(model: Any, stored: Any, skip_mismatch: bool) -> list[tuple[Variable, Any]]:
    found = dict(stored)
    pairs = []
    for layer in model.layers:
        own = [value for _, value in found.get(layer.name, ())]
        fits = [w.shape.as_list() for w in layer.weights] == [list(np.shape(v)) for v in own]
        if own and (fits or not skip_mismatch):
            pairs += _pairs(layer, own, layer.name)
    return pairs


def _pairs(layer: Any, values: list[Any], where: str) -> list[tuple[Variable, Any]]:
    weights = layer.weights
    if len(weights) != len(values):
        raise misuse(f"layer {layer.name!r}: expected {len(weights)} weights; {where} has {len(values)}")
    return [(w, _checked(w, value, where)) for w, value in zip(weights, values, strict=True)]


def _checked(variable: Variable, value: Any, where: str) -> Any:
    if not variable.shape.is_compatible_with(np.shape(value)):
        raise misuse(
            f"variable {variable.name!r}: expected the shape {variable.shape}; {where} has {np.shape(value)}"
        )
    return value


# --- keys of a checkpoint


def _keys(model: Any) -> dict[str, Variable]:
    """The model's variables by key."""
    found: dict[str, Variable] = {}
    index = 0
    for layer in model.layers:
        if layer.weights:
            for path, variable in _paths(layer):
                found[f"layer_with_weights-{index}/{path}/{_SUFFIX}"] = variable
            index += 1
    return found


def _paths(layer: Any) -> Iterator[tuple[str, Variable]]:
    """The variables of ``layer`` by the attributes on the way to each; those in none by their names."""
    if hasattr(layer, "layers") and hasattr(layer, "inputs"):
        for key, variable in _keys(layer).items():
            yield key.removesuffix(f"/{_SUFFIX}"), variable
        return
    seen = set[int]()
    for name, value in vars(layer).items():
        for place, each in _places(name, value):
            if isinstance(each, Variable):
                seen.add(id(each))
                yield place, each
            else:
                for path, variable in _paths(each):
                    seen.add(id(variable))
                    yield f"{place}/{path}", variable
    for variable in layer.weights:
        if id(variable) not in seen:
            yield variable.op.name.rpartition("/")[2], variable


def _places(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if name.startswith("_"):
        return
    if isinstance(value, (Variable, base.Layer)):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from _places(f"{name}/{i}", each)
