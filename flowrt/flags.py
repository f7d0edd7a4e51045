"""``flowrt.flags``: command-line flags as TensorFlow 1 scripts define them, over argparse.

``DEFINE_integer("steps", 100, "help")`` creates ``FLAGS.steps``; the command line is parsed on the first
access to `FLAGS`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, final

from flowrt.errors import AlreadyExistsError, InvalidArgumentError, nearest
from flowrt.tf1.missing_names import missing_from


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "t", "1", "yes"):
        return True
    if text.lower() in ("false", "f", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"expected true or false; got {text!r}")


class Flag(NamedTuple):
    """A flag, its value and its default."""

    name: str
    value: Any
    default: Any


@final
class FlagValues:
    """The flags' values as attributes. Calling it with ``argv`` parses the flags and returns the rest."""

    def __init__(self) -> None:
        self.__dict__["_parser"] = argparse.ArgumentParser(allow_abbrev=False)
        self.__dict__["_values"] = {}
        self.__dict__["_defaults"] = {}
        self.__dict__["_required"] = set()
        self.__dict__["_parsed"] = False

    def define(
        self, name: str, default: Any, help: str, kind: Any, choices: Any = None, repeated: bool = False
    ) -> None:
        """Raises `AlreadyExistsError` for a name that is taken, and `InvalidArgumentError` for a default as
        text that the command line would not take.
        """
        if name in self._values:
            raise AlreadyExistsError(f"flag {name!r} is defined already")
        if isinstance(default, str) and not repeated:
            try:
                default = kind(default)
            except (ValueError, argparse.ArgumentTypeError):
                raise InvalidArgumentError(
                    f"flag --{name}: expected a default of the flag's type; got {default!r}"
                ) from None
        self.set_default(name, default)
        names = [f"--{name}"] + ([f"--{name.replace('_', '-')}"] if "_" in name else [])
        options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": help, "type": kind}
        if kind is _boolean:
            options |= {"nargs": "?", "const": True}
            self._parser.add_argument(
                f"--no{name}", dest=name, action="store_const", const=False, default=argparse.SUPPRESS
            )
        if repeated:
            options["action"] = "append"
        self._parser.add_argument(*names, choices=choices, **options)

    def require(self, name: str) -> None:
        self._required.add(name)

    def set_default(self, name: str, value: Any) -> None:
        """Another value than the definition's, unless the command line has one."""
        self._values[name] = self._defaults[name] = value

    def __call__(self, argv: list[str] | None = None, known_only: bool = True) -> list[str]:
        arguments: list[str] = list(sys.argv if argv is None else argv)
        values, rest = self._parser.parse_known_args(arguments[1:])
        self._values.update(vars(values))
        self.__dict__["_parsed"] = True
        missing = sorted(name for name in self._required if self._values[name] is None)
        if missing:
            raise InvalidArgumentError(f"expected a value for --{missing[0]}; got none")
        if rest and not known_only:
            raise InvalidArgumentError(
                f"unknown flags {' '.join(rest)}.{nearest(rest[0].lstrip('-'), self._values)}"
            )
        return [*arguments[:1], *rest]

    def is_parsed(self) -> bool:
        return bool(self._parsed)

    def flag_values_dict(self) -> dict[str, Any]:
        return dict(self._values)

    def __getattr__(self, name: str) -> Any:
        if name == "__flags":  # printed by scripts older than flag_values_dict
            return self._values
        if not self.__dict__["_parsed"]:
            self()
        if name not in self._values:
            raise AttributeError(f"no flag {name!r}.{nearest(name, self._values)}")
        return self._values[name]

    def __getitem__(self, name: str) -> Any:
        """The flag itself, with its ``value`` and ``default``."""
        return Flag(name, getattr(self, name), self._defaults[name])

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __dir__(self) -> list[str]:
        return list(self._values)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(f"no flag {name!r}.{nearest(name, self._values)}")
        self._values[name] = value


FLAGS = FlagValues()


def _define(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> None:
    """Take the arguments in order or by either of the names that they had: ``name`` was ``flag_name``."""
    older = {"flag_name": "name", "default_value": "default", "docstring": "help"}
    given = dict(zip(("name", "default", "help"), args, strict=False))
    given |= {older.get(key, key): value for key, value in kwargs.items()}
    FLAGS.define(given["name"], given["default"], given.get("help") or "", kind, **options)


def DEFINE_string(*args: Any, **kwargs: Any) -> None:
    """``DEFINE_string(name, default, help)``

    Args:
        args: The flag's name, its default, and a line of help.

    Example:
        >>> tf.app.flags.DEFINE_string('data_dir', 'data', 'directory of the images')
        >>> tf.app.flags.FLAGS.data_dir  # in a program, what --data_dir says
        'data'
    """
    _define(str, args, kwargs)


def DEFINE_integer(*args: Any, **kwargs: Any) -> None:
    """``DEFINE_integer(name, default, help)``

    Args:
        args: The flag's name, its default, and a line of help.

    Example:
        >>> tf.app.flags.DEFINE_integer('steps', 100, 'training steps')
        >>> tf.app.flags.FLAGS.steps + 1
        101
    """
    _define(int, args, kwargs)


def DEFINE_float(*args: Any, **kwargs: Any) -> None:
    """``DEFINE_float(name, default, help)``

    Args:
        args: The flag's name, its default, and a line of help.

    Example:
        >>> tf.app.flags.DEFINE_float('rate', 0.1, 'learning rate')
        >>> tf.app.flags.FLAGS.rate
        0.1
    """
    _define(float, args, kwargs)


def DEFINE_boolean(*args: Any, **kwargs: Any) -> None:
    """``DEFINE_boolean(name, default, help)``: ``--name``, ``--name=false`` and ``--noname``.

    Args:
        args: The flag's name, its default, and a line of help.

    Example:
        >>> tf.app.flags.DEFINE_boolean('shuffle', True, 'shuffle the data')
        >>> tf.app.flags.FLAGS.shuffle
        True
    """
    _define(_boolean, args, kwargs)


DEFINE_bool = DEFINE_boolean


def DEFINE_enum(name: str, default: str | None, enum_values: list[str], help: str = "") -> None:
    """One of ``enum_values``."""
    FLAGS.define(name, default, help, str, enum_values)


def DEFINE_list(name: str, default: Any, help: str = "") -> None:
    """Texts separated by commas."""
    value = default.split(",") if isinstance(default, str) else default
    FLAGS.define(name, value, help, lambda text: text.split(","))


def DEFINE_multi_string(name: str, default: Any, help: str = "") -> None:
    """A list: the flag may be given several times."""
    FLAGS.define(name, _listed(default), help, str, repeated=True)


def DEFINE_multi_integer(name: str, default: Any, help: str = "") -> None:
    FLAGS.define(name, _listed(default), help, int, repeated=True)


def DEFINE_multi_float(name: str, default: Any, help: str = "") -> None:
    FLAGS.define(name, _listed(default), help, float, repeated=True)


def _listed(default: Any) -> Any:
    return default if default is None or isinstance(default, list) else [default]


def mark_flag_as_required(flag_name: str) -> None:
    """Reading the command line raises `InvalidArgumentError` while the flag has no value."""
    FLAGS.require(flag_name)


def mark_flags_as_required(flag_names: list[str]) -> None:
    for name in flag_names:
        mark_flag_as_required(name)


__getattr__ = missing_from("flags")
