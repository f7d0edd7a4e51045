"""`Plan`: a choice and the model that it is for, as a JSON file that is checked in beside its script.

    plan = Plan(choice, variables_of(recorded), "train.py", format_cluster(cluster), predicted)
    write_plan("plan.json", plan)
    read_plan("plan.json").choice.strategy()

A plan names the variables of the model, with shapes and dtypes. So it is known when the script has changed.
It has the cluster for which it was made, what was predicted, and the versions, to compare plans by.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from flowrt.errors import InvalidArgumentError, NotFoundError, nearest
from flowrt.plan.choice import Choice, mistake_of
from flowrt.plan.step.recorded import Recorded
from flowrt.storage.durable_files import replace_file, typed_os_errors
from flowrt.variables.variable import Variable
from flowrt.version import VERSION

FORMAT = 3

VariableText = str
"""The dtype and shape of a variable, such as ``float32 [64, 128]``."""


@final
@dataclass(frozen=True)
class Plan:
    """A ``choice`` for a model with ``variables``, by name. ``script`` is where it was made for."""

    choice: Choice
    variables: Mapping[str, VariableText]
    script: str = ""
    cluster: str = ""
    """The text of a cluster's file."""
    predicted: Mapping[str, Any] = field(default_factory=dict)
    """Seconds of a step and their parts, samples a second, and bytes of devices."""
    versions: Mapping[str, str] = field(default_factory=lambda: {"flowrt": VERSION})

    def check(self, found: Mapping[str, VariableText], where: str) -> None:
        """Raise `InvalidArgumentError` unless a script has the plan's variables: with the first that differs,
        by name.
        """
        made = f"as {self.script} had when it was planned"
        for name, text in self.variables.items():
            if name not in found:
                close = nearest(name, found)
                hint = f"{close}." if close else ""
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
    """The dtype and shape of ``variable``.

    >>> text_of(tf.get_variable("w", [64, 128]))
    'float32 [64, 128]'
    """
    return (
        f"{variable.dtype.name} {variable.shape.as_list() if variable.shape.ndims is not None else '[...]'}"
    )


def write_plan(path: str, plan: Plan) -> None:
    """Write ``plan`` to ``path``, atomically. Raises as `typed_os_errors`."""
    choice = dataclasses.asdict(plan.choice)
    choice["layouts"] = {name: list(entries) for name, entries in plan.choice.layouts}
    content = {
        "flowrt_plan": FORMAT, "versions": plan.versions, "script": plan.script, "choice": choice,
        "predicted": plan.predicted, "cluster": plan.cluster.splitlines(), "variables": plan.variables,
    }  # fmt: skip
    with typed_os_errors(f"plan {path}"):
        replace_file(path, (json.dumps(content, indent=2) + "\n").encode())


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in the file ``path``.

    Raises `NotFoundError` if there is none, and `InvalidArgumentError`, naming line and key, for what is no
    plan, and for a choice that is no strategy.
    """
    where = os.fspath(path)
    try:
        with open(where, encoding="utf-8") as file:
            text = file.read()
        content = json.loads(text)
    except FileNotFoundError:
        raise NotFoundError(
            f"plan {where}: expected a file; there is none. flowrt plan --json writes one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"plan {where}: expected a readable file; got {error}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"plan {where}: expected JSON; got {error}") from None
    return _Reader(where, text).plan(content)


@final
class _Reader:
    """Checks what a file says, key by key."""

    def __init__(self, where: str, text: str) -> None:
        self._where, self._text = where, text

    def plan(self, content: Any) -> Plan:
        if isinstance(content, dict) and content.get("flowrt_plan", FORMAT) != FORMAT:
            raise self._wrong("flowrt_plan", f"{FORMAT}", content["flowrt_plan"])
        names = ("flowrt_plan", "versions", "script", "choice", "predicted", "cluster", "variables")
        self._keys(content, "", names)
        for key in ("variables", "versions"):
            if not isinstance(content[key], dict) or not all(
                isinstance(v, str) for v in content[key].values()
            ):
                what = "dtypes and shapes by name" if key == "variables" else "texts by name"
                raise self._wrong(key, what, content[key])
        if not isinstance(content["script"], str):
            raise self._wrong("script", "a path", content["script"])
        if not isinstance(content["predicted"], dict):
            raise self._wrong("predicted", "an object", content["predicted"])
        lines = content["cluster"]
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise self._wrong("cluster", "the lines of a cluster's file", lines)
        choice = self._choice(content["choice"])
        for name, _ in choice.layouts:
            if name not in content["variables"]:
                hint = nearest(name, content["variables"])
                raise self._wrong(f"choice.layouts.{name}", f"the name of one of the variables.{hint}", name)
        cluster = "".join(f"{line}\n" for line in lines)
        return Plan(
            choice,
            content["variables"],
            content["script"],
            cluster,
            content["predicted"],
            content["versions"],
        )

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
        memory = values["memory"]
        if memory is not None and (type(memory) is not int or memory < 1):
            raise self._wrong("choice.memory", "null, or bytes of a device", memory)
        layouts = values["layouts"]
        if not isinstance(layouts, dict) or not all(map(_are_entries, layouts.values())):
            raise self._wrong("choice.layouts", "lists of axes by variable", layouts)
        values["layouts"] = tuple((name, tuple(entries)) for name, entries in layouts.items())
        choice = Choice(**values)
        mistake = mistake_of(choice)
        if mistake is not None:
            raise self._wrong(f"choice.{mistake.field}", mistake.expected, mistake.got)
        return choice

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
                    f"plan {self._at(prefix + name)}: expected {', '.join(names)}; got {prefix}{name}.{hint}"
                )

    def _wrong(self, key: str, expected: str, got: Any) -> InvalidArgumentError:
        return InvalidArgumentError(f"plan {self._at(key)}: {key}: expected {expected}; got {got!r}")

    def _at(self, key: str) -> str:
        """The file and the line of ``key``: that of the last of its names that is found behind the others."""
        at = 0
        for name in key.split(".", 2):
            found = self._text.find(json.dumps(name) + ":", at)
            at = found if found >= 0 else at
        return f"{self._where}:{self._text.count(chr(10), 0, at) + 1}"


def _are_entries(entries: Any) -> bool:
    return isinstance(entries, list) and all(entry is None or isinstance(entry, str) for entry in entries)
