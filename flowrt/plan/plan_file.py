"""`Plan`: a choice and the model that it is for, as a JSON file that is checked in beside its script.

    plan = Plan(choice, variables_of(recorded), "train.py")
    write_plan("plan.json", plan)
    read_plan("plan.json").choice.strategy()

A plan names the variables of the model, with shapes and dtypes. So it is known when the script has changed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from flowrt.errors import InvalidArgumentError, NotFoundError, nearest
from flowrt.plan.choice import Choice
from flowrt.plan.step.recorded import Recorded
from flowrt.train.checkpoints.durable_files import replace_file, typed_os_errors
from flowrt.variables.variable import Variable

VERSION = 1

VariableText = str
"""The dtype and shape of a variable, such as ``float32 [64, 128]``."""


@final
@dataclass(frozen=True)
class Plan:
    """A ``choice`` for a model with ``variables``, by name. ``script`` is where it was made for."""

    choice: Choice
    variables: Mapping[str, VariableText]
    script: str = ""

    def check(self, found: Mapping[str, VariableText], where: str) -> None:
        """Raise `InvalidArgumentError` unless a script has the plan's variables: with the first that differs,
        by name.
        """
        made = f"as {self.script} had when it was planned"
        for name, text in self.variables.items():
            if name not in found:
                hint = nearest(name, found)
                raise _changed(where, f"the variable {name!r}, {text}, {made}; got none.{hint}")
            if found[name] != text:
                raise _changed(where, f"the variable {name!r} to be {text}, {made}; got {found[name]}.")
        for name, text in found.items():
            if name not in self.variables:
                raise _changed(where, f"the variables {made}, only; got another, {name!r}, {text}.")


def _changed(where: str, message: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{where}: expected {message} Plan the script again")


def variables_of(recorded: Recorded) -> dict[str, VariableText]:
    """The variables of a recorded step that have layouts."""
    return {name: text_of(v) for name, v in recorded.variables.items() if v.trainable}


def text_of(variable: Variable) -> VariableText:
    return (
        f"{variable.dtype.name} {variable.shape.as_list() if variable.shape.ndims is not None else '[...]'}"
    )


def write_plan(path: str, plan: Plan) -> None:
    """Write ``plan`` to ``path``, atomically. Raises as `typed_os_errors`."""
    choice = dataclasses.asdict(plan.choice)
    choice["layouts"] = {name: list(entries) for name, entries in plan.choice.layouts}
    content = {"flowrt_plan": VERSION, "script": plan.script, "choice": choice, "variables": plan.variables}
    with typed_os_errors(f"plan {path}"):
        replace_file(path, (json.dumps(content, indent=2) + "\n").encode())


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in the file ``path``.

    Raises `NotFoundError` if there is none, and `InvalidArgumentError`, naming the key, for what is no plan.
    """
    where = os.fspath(path)
    try:
        with open(where, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        raise NotFoundError(
            f"plan {where}: expected a file; there is none. flowrt plan --json writes one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"plan {where}: expected a readable file; got {error}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"plan {where}: expected JSON; got {error}") from None
    return _Reader(where).plan(content)


@final
class _Reader:
    """Checks what a file says, key by key."""

    def __init__(self, where: str) -> None:
        self._where = where

    def plan(self, content: Any) -> Plan:
        self._keys(content, "", ("flowrt_plan", "script", "choice", "variables"))
        if content["flowrt_plan"] != VERSION:
            raise self._wrong("flowrt_plan", f"{VERSION}", content["flowrt_plan"])
        variables = content["variables"]
        if not isinstance(variables, dict) or not all(isinstance(v, str) for v in variables.values()):
            raise self._wrong("variables", "dtypes and shapes by name", variables)
        if not isinstance(content["script"], str):
            raise self._wrong("script", "a path", content["script"])
        return Plan(self._choice(content["choice"]), variables, content["script"])

    def _choice(self, content: Any) -> Choice:
        fields = {field.name: field.type for field in dataclasses.fields(Choice)}
        self._keys(content, "choice", tuple(fields))
        values = dict(content)
        for key, kind in (("schedule", str), ("remat", bool)):
            if not isinstance(values[key], kind):
                raise self._wrong(f"choice.{key}", f"a {kind.__name__}", values[key])
        for key in ("dp", "tp", "pp", "micro_batches", "chunks", "sharding"):
            least = 0 if key == "sharding" else 1
            if type(values[key]) is not int or values[key] < least:
                raise self._wrong(f"choice.{key}", f"an integer >= {least}", values[key])
        layouts = values["layouts"]
        if not isinstance(layouts, dict) or not all(map(_are_entries, layouts.values())):
            raise self._wrong("choice.layouts", "lists of axes by variable", layouts)
        values["layouts"] = tuple((name, tuple(entries)) for name, entries in layouts.items())
        return Choice(**values)

    def _keys(self, content: Any, key: str, names: Sequence[str]) -> None:
        if not isinstance(content, dict):
            raise self._wrong(key or "the file", "an object", content)
        prefix = f"{key}." if key else ""
        for name in names:
            if name not in content:
                raise self._wrong(prefix + name, "a value", "none")
        for name in content:
            if name not in names:
                hint = nearest(name, names)
                raise InvalidArgumentError(
                    f"plan {self._where}: expected {', '.join(names)}; got {prefix}{name}.{hint}"
                )

    def _wrong(self, key: str, expected: str, got: Any) -> InvalidArgumentError:
        return InvalidArgumentError(f"plan {self._where}: {key}: expected {expected}; got {got!r}")


def _are_entries(entries: Any) -> bool:
    return isinstance(entries, list) and all(entry is None or isinstance(entry, str) for entry in entries)
