"""``flowrt.flags``: command-line flags as TensorFlow 1 scripts define them, over argparse.

``DEFINE_integer("steps", 100, "help")`` makes ``FLAGS.steps``; the command line is read at the first look at `FLAGS`.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, final

from flowrt.errors import AlreadyExistsError, InvalidArgumentError
from flowrt.graph.op_def import nearest


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "t", "1", "yes"):
        return True
    if text.lower() in ("false", "f", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"expected true or false; got {text!r}")


@final
class FlagValues:
    """The flags' values as attributes. Calling it with ``argv`` reads the flags and returns what is left over."""

    def __init__(self) -> None:
        self.__dict__["_parser"] = argparse.ArgumentParser(allow_abbrev=False)
        self.__dict__["_values"] = {}
        self.__dict__["_parsed"] = False

    def define(self, name: str, default: Any, help: str, kind: Any, choices: Any = None) -> None:
        """Raises `AlreadyExistsError` for a name that is taken."""
        if name in self._values:
            raise AlreadyExistsError(f"flag {name!r} is defined already")
        self._values[name] = default
        names = [f"--{name}"] + ([f"--{name.replace('_', '-')}"] if "_" in name else [])
        options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": help, "type": kind}
        if kind is _boolean:
            options |= {"nargs": "?", "const": True}
            self._parser.add_argument(
                f"--no{name}", dest=name, action="store_const", const=False, default=argparse.SUPPRESS
            )
        self._parser.add_argument(*names, choices=choices, **options)

    def __call__(self, argv: list[str] | None = None, known_only: bool = True) -> list[str]:
        arguments = list(sys.argv if argv is None else argv)
        values, rest = self._parser.parse_known_args(arguments[1:])
        self._values.update(vars(values))
        self.__dict__["_parsed"] = True
        if rest and not known_only:
            raise InvalidArgumentError(
                f"unknown flags {' '.join(rest)}. {nearest(rest[0].lstrip('-'), self._values)}"
            )
        return arguments[:1] + rest

    def is_parsed(self) -> bool:
        return bool(self._parsed)

    def flag_values_dict(self) -> dict[str, Any]:
        return dict(self._values)

    def __getattr__(self, name: str) -> Any:
        if not self.__dict__["_parsed"]:
            self()
        if name not in self._values:
            raise AttributeError(f"no flag {name!r}. {nearest(name, self._values)}")
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(f"no flag {name!r}. {nearest(name, self._values)}")
        self._values[name] = value


FLAGS = FlagValues()


def DEFINE_string(flag_name: str, default_value: str | None, docstring: str = "") -> None:
    FLAGS.define(flag_name, default_value, docstring, str)


def DEFINE_integer(flag_name: str, default_value: int | None, docstring: str = "") -> None:
    FLAGS.define(flag_name, default_value, docstring, int)


def DEFINE_float(flag_name: str, default_value: float | None, docstring: str = "") -> None:
    FLAGS.define(flag_name, default_value, docstring, float)


def DEFINE_boolean(flag_name: str, default_value: bool | None, docstring: str = "") -> None:
    FLAGS.define(flag_name, default_value, docstring, _boolean)


DEFINE_bool = DEFINE_boolean


def DEFINE_enum(
    flag_name: str, default_value: str | None, enum_values: list[str], docstring: str = ""
) -> None:
    FLAGS.define(flag_name, default_value, docstring, str, enum_values)


def DEFINE_list(flag_name: str, default_value: Any, docstring: str = "") -> None:
    value = default_value.split(",") if isinstance(default_value, str) else default_value
    FLAGS.define(flag_name, value, docstring, lambda text: text.split(","))
