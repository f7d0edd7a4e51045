"""Hyperparameters by name, each with a fixed type, read from text as ``"rate=0.1,sizes=[3,4]"``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flowrt.errors import InvalidArgumentError

_PAIR = re.compile(r"\s*([a-zA-Z][\w.]*)(?:\[(\d+)\])?\s*=\s*(?:\[([^\]]*)\]|([^,\[\]]*))\s*(?:,|$)")


class HParams:
    """Typed attributes. ``HParams(rate=0.1).parse("rate=0.2").rate == 0.2``.

    Raises `InvalidArgumentError` for a duplicate or unknown name, for None or an empty list as the first
    value, and for a value of another type; after an error all values are unchanged.
    """

    def __init__(self, hparam_def: Any = None, model_structure: Any = None, **kwargs: Any) -> None:
        if hparam_def is not None:
            raise InvalidArgumentError("HParams: expected values by name; got a message (hparam_def)")
        self._types: dict[str, tuple[type, bool]] = {}
        self._model_structure = model_structure
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        if hasattr(self, name):
            raise InvalidArgumentError(f"HParams: expected a new name; {name!r} is taken")
        many = isinstance(value, (list, tuple))
        if many and not value:
            raise InvalidArgumentError(f"HParams: expected a list with elements for {name!r}; got {value!r}")
        self._types[name] = (type(value[0]) if many else type(value), many)
        setattr(self, name, list(value) if many else value)

    def set_hparam(self, name: str, value: Any) -> None:
        kind, many = self._type(name)
        if isinstance(value, (list, tuple)) is not many:
            raise InvalidArgumentError(
                f"HParams: expected {'a list' if many else 'one value'} for {name!r}; got {value!r}"
            )
        setattr(self, name, [_cast(name, kind, v) for v in value] if many else _cast(name, kind, value))

    def del_hparam(self, name: str) -> None:
        self._type(name)
        del self._types[name]
        delattr(self, name)

    def parse(self, values: str) -> HParams:
        """Set values from ``"name=value,list=[1,2],list[0]=3"``. Returns the object itself."""
        new = self.values()
        for name, index, items, single in _pairs(values):
            kind, many = self._type(name)
            if (index is None and many is (items is None)) or (index is not None and not many):
                raise InvalidArgumentError(
                    f"HParams: expected {'a list' if many else 'one value'} for {name!r}; got {values!r}"
                )
            if index is not None:
                new[name] = list(new[name])
                if int(index) >= len(new[name]):
                    raise InvalidArgumentError(f"HParams: {name!r} has no index {index}")
                new[name][int(index)] = _read(name, kind, single)
            elif items is not None:
                new[name] = [_read(name, kind, item) for item in items.split(",") if item.strip()]
            else:
                new[name] = _read(name, kind, single)
        return self.override_from_dict(new)

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        before = self.values()
        try:
            for name, value in values_dict.items():
                self.set_hparam(name, value)
        except InvalidArgumentError:
            for name, value in before.items():
                setattr(self, name, value)
            raise
        return self

    def to_json(self, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        """The values that are not functions, as JSON."""
        plain = {name: value for name, value in self.values().items() if not callable(value)}
        return json.dumps(plain, indent=indent, separators=separators, sort_keys=sort_keys)

    def parse_json(self, values_json: str) -> HParams:
        return self.override_from_dict(json.loads(values_json))

    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._types}

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key) if key in self._types else default

    def get_model_structure(self) -> Any:
        return self._model_structure

    def set_model_structure(self, model_structure: Any) -> None:
        self._model_structure = model_structure

    def __contains__(self, key: object) -> bool:
        return key in self._types

    def __repr__(self) -> str:
        return f"HParams({', '.join(f'{n}={v!r}' for n, v in sorted(self.values().items()))})"

    def _type(self, name: str) -> tuple[type, bool]:
        if name not in self._types:
            raise InvalidArgumentError(f"HParams: expected one of {', '.join(self._types)}; got {name!r}")
        return self._types[name]


def _pairs(text: str) -> Iterator[tuple[str, str | None, str | None, str]]:
    """Name, index, list and single value of each ``name=value``."""
    position = 0
    while position < len(text):
        found = _PAIR.match(text, position)
        if found is None:
            raise InvalidArgumentError(f"HParams: expected name=value; got {text[position:]!r}")
        name, index, items, single = found.groups()
        yield name, index, items, single or ""
        position = found.end()


def _read(name: str, kind: type, text: str) -> Any:
    text = text.strip()
    if kind is bool:
        truths = {"true": True, "1": True, "false": False, "0": False}
        if text.lower() not in truths:
            raise InvalidArgumentError(f"HParams: expected true or false for {name!r}; got {text!r}")
        return truths[text.lower()]
    return _cast(name, kind, text, from_text=True)


def _cast(name: str, kind: type, value: Any, from_text: bool = False) -> Any:
    """``value`` as ``kind``, if the conversion is lossless."""
    if value is None or issubclass(kind, Callable):  # type: ignore[arg-type]
        return value
    is_text, is_bool = isinstance(value, (str, bytes)), isinstance(value, bool)
    wrong = (
        is_bool is not issubclass(kind, bool)
        or (is_text is not issubclass(kind, (str, bytes)) and not from_text)
        or (issubclass(kind, int) and isinstance(value, float) and not value.is_integer())
    )
    try:
        if not wrong:
            return kind(value)
    except (TypeError, ValueError):
        pass
    raise InvalidArgumentError(f"HParams: expected {kind.__name__} for {name!r}; got {value!r}")
