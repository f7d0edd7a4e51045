"""Objects by name: ``"relu"``, ``{"class_name": "L2", "config": {...}}``, or the object itself.

A kind of objects (activations, initializers, losses, ...) has a table; classes and functions of the user's
own are registered with `CustomObjectScope` or passed as ``custom_objects``.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from flowrt.errors import nearest
from flowrt.graph.op_def import OpDef
from flowrt.graph.source import misuse
from flowrt.keras.state.graph_state import snake_case

_CUSTOM: dict[str, Any] = {}


def get_custom_objects() -> dict[str, Any]:
    """The user's own classes and functions by name; to be changed in place."""
    return _CUSTOM


@contextlib.contextmanager
def custom_object_scope(*args: Mapping[str, Any] | None) -> Iterator[None]:
    """Names in ``args`` are found inside."""
    before = dict(_CUSTOM)
    for objects in args:
        _CUSTOM.update(objects or {})
    try:
        yield
    finally:
        _CUSTOM.clear()
        _CUSTOM.update(before)


CustomObjectScope = custom_object_scope


def deserialize_object(
    identifier: Any, table: Callable[[str], Any], kind: str, custom_objects: Mapping[str, Any] | None = None
) -> Any:
    """The object that ``identifier`` names: classes are instantiated.

    ``table`` is the look-up of the kind's own names, None for unknown ones. Raises `InvalidArgumentError` for
    an unknown name.
    """
    if identifier is None:
        return None
    if isinstance(identifier, Mapping):
        name, config = identifier["class_name"], dict(identifier.get("config") or {})
    elif isinstance(identifier, str):
        name, config = identifier, {}
    else:
        return identifier() if inspect.isclass(identifier) else identifier
    found = {**_CUSTOM, **(custom_objects or {})}.get(name) or table(name)
    if found is None:
        known = [*_CUSTOM, *(custom_objects or {}), *getattr(table, "names", ())]
        hint = nearest(str(name), known) or " Your own needs a custom_object_scope"
        raise misuse(f"{kind}: expected a known name; got {name!r}.{hint}")
    if not inspect.isclass(found):
        return found
    from_config = getattr(found, "from_config", None)
    if from_config is None:
        return found(**config)
    if config and "custom_objects" in inspect.signature(from_config).parameters:
        return from_config(config, custom_objects=custom_objects)
    return from_config(config)


def deserialize_keras_object(
    identifier: Any, module_objects: Mapping[str, Any] | None = None, custom_objects: Any = None,
    printable_module_name: str = "object",
) -> Any:  # fmt: skip
    """`deserialize_object` of ``module_objects``, under Keras's name."""
    return deserialize_object(
        identifier, lookup_in(module_objects or {}), printable_module_name, custom_objects
    )


def lookup_in(names: Mapping[str, Any]) -> Callable[[str], Any]:
    """A look-up of public names of a module, also in the other of ``CamelCase`` and ``snake_case``."""

    def find(name: str) -> Any:
        found = None if name.startswith("_") else names.get(name)
        return found if callable(found) else None

    find.names = [name for name, each in names.items() if callable(each)]  # type: ignore[attr-defined]
    return find


def serialize_object(value: Any) -> Any:
    """``value`` as what JSON can hold: objects as class and config, functions as their names."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [serialize_object(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): serialize_object(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "get_config"):
        return {"class_name": type(value).__name__, "config": value.get_config()}
    if hasattr(value, "as_list"):
        return value.as_list()
    if isinstance(value, OpDef):  # such as flowrt.nn.relu
        return snake_case(value.name)
    name = getattr(value, "__name__", None) or getattr(value, "name", None)
    if name is None:
        raise misuse(f"get_config: expected a value that JSON can hold; got {value!r}")
    return name
