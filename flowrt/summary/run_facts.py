"""`RunFacts`: script, command, host and versions, which a process records beside its event files.

    logs/events.out.tfevents.1764264049.host     read by TensorBoard, which looks for "tfevents" in names
    logs/run_facts.1764264049.host.4711.json     the facts of process 4711, which began to write then

A file of its own, so that every reader of event files finds in them what it did before. A process that is
started again, and each of several workers, has another file; a second writer of one process replaces the
first one's by the same facts.

Of the environment it holds flowrt's own variables, without secrets. The command line is as it was given.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flowrt.cli import machine
from flowrt.cli.env import flowrt_version, shown_variables
from flowrt.device.cuda.cuda import visible_devices
from flowrt.errors import DataLossError
from flowrt.flags import FLAGS
from flowrt.profiler.text_table import gib
from flowrt.storage.durable_files import replace_file, typed_os_errors

PREFIX, SUFFIX = "run_facts.", ".json"
FLAGS_SECTION = "hyper-parameters"

LIBRARIES = ("numpy", "llvmlite", "onednn-cpu-gomp", "cupy")
"""The libraries that compute: a difference of theirs may be seen in results and times."""


class RunFacts(NamedTuple):
    """The facts as text, by section and name. ``start``: seconds since the epoch, at the process's first
    writer. ``defaults``: of the flags in the section of hyper-parameters.
    """

    start: float
    sections: Mapping[str, Mapping[str, str]]
    defaults: Mapping[str, str]


def gather() -> RunFacts:
    """The facts of this process, with the flags that it has read from its command line."""
    flags = {flag.name: flag for flag in _flags()}
    sections = {
        "run": {"script": _script(), "command": shlex.join(sys.orig_argv), "directory": _directory()},
        FLAGS_SECTION: {name: str(flag.value) for name, flag in flags.items()},
        "host": _host(),
        "versions": _versions(),
        "environment": shown_variables({n: v for n, v in os.environ.items() if n.startswith("FLOWRT_")}),
    }
    return RunFacts(_start(), sections, {name: str(flag.default) for name, flag in flags.items()})


def write_facts(directory: str, facts: RunFacts) -> None:
    """Write ``facts`` of this process to ``directory``, atomically. Raises as `typed_os_errors`."""
    name = f"{PREFIX}{int(facts.start):010d}.{platform.node()}.{os.getpid()}{SUFFIX}"
    path = os.path.join(directory, name)
    with typed_os_errors(f"cannot write {path}"):
        replace_file(path, json.dumps(facts._asdict(), indent=1).encode())


def is_facts_file(path: Path) -> bool:
    """Whether a file has the name of a record of facts."""
    return path.name.startswith(PREFIX) and path.name.endswith(SUFFIX)


def read_facts(path: Path) -> RunFacts:
    """The facts in the file ``path``. Raises `DataLossError` for a file that is damaged or cannot be read."""
    try:
        content = json.loads(path.read_text("utf-8"))
        sections = {str(title): _texts(facts) for title, facts in content["sections"].items()}
        return RunFacts(float(content["start"]), sections, _texts(content["defaults"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataLossError(
            f"{path}: expected the facts of a run; got {type(error).__name__}: {error}"
        ) from None


def _texts(facts: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in facts.items()}


@cache
def _start() -> float:
    return time.time()


def _flags() -> Iterator[Any]:
    """The script's flags, if it has read them: flowrt's and those of absl, which scripts use alike."""
    if FLAGS.is_parsed():
        yield from (FLAGS[name] for name in FLAGS)
    absl = sys.modules.get("absl.flags")
    if absl is not None and absl.FLAGS.is_parsed():
        yield from absl.FLAGS.get_key_flags_for_module(sys.argv[0])


def _script() -> str:
    path = getattr(sys.modules["__main__"], "__file__", None)
    return path or "none: an interactive session"


def _directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "deleted"


@cache
def _host() -> dict[str, str]:
    there, usable = machine.cores()
    return {
        "name": platform.node(),
        "system": platform.platform(),
        "processor": machine.processor_name(),
        "cores": str(there) if usable == there else f"{there}, {usable} usable",
        "memory": gib(machine.host_facts().total_bytes),
    } | {f"GPU:{gpu.ordinal}": f"{gpu.name}, {gib(gpu.memory_bytes)}" for gpu in visible_devices()}


@cache
def _versions() -> dict[str, str]:
    """``git`` and the search for packages take 0.1 s."""
    packages = machine.library_versions()
    return {
        "flowrt": flowrt_version(),
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        **{name: packages[name] for name in LIBRARIES},
        **machine.cuda_versions(),
    }
