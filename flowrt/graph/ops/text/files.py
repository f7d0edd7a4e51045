"""Ops on files: whole contents read and written, names that match a pattern.

A task of a cluster does not run them for others unless it is told to: see `Privilege`.
"""

from __future__ import annotations

import glob
import os
from typing import Any

from flowrt.graph.construction.graph import Operation
from flowrt.graph.op_def import NONDIFFERENTIABLE, Effect, Effects, OpDef, Privilege, define_op
from flowrt.graph.ops.base.identities import unchanged
from flowrt.graph.ops.text.checkpoint_files import path_of
from flowrt.graph.ops.text.strings import host_array, string_array
from flowrt.storage.durable_files import replace_file, typed_os_errors

__all__ = ["matching_files", "read_file", "write_file"]

_READS = Effects(Effect.STATEFUL, privilege=lambda attrs: Privilege.READS_FILES)


def _read(xp: Any, filename: Any) -> Any:
    path = path_of(filename)
    with typed_os_errors(path), open(path, "rb") as file:
        return string_array([file.read()], ())


read_file = define_op(
    "ReadFile",
    "filename: string -> contents: string",
    shape=unchanged,
    kernel=_read,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (),
    effects=_READS,
    doc="The contents of a file.",
)


def _write(xp: Any, filename: Any, contents: Any) -> tuple[()]:
    path = path_of(filename)
    with typed_os_errors(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        replace_file(path, host_array(contents).item())
    return ()


write_file: OpDef[Operation] = define_op(
    "WriteFile",
    "filename: string, contents: string ->",
    kernel=_write,
    effects=Effects(Effect.STATEFUL, privilege=lambda attrs: Privilege.FILES),
    doc="Writes a file, and the directories that it is in.",
)


def _matching(xp: Any, pattern: Any) -> Any:
    found = {name for each in host_array(pattern).reshape(-1).tolist() for name in glob.glob(each)}
    return string_array(sorted(found), (len(found),))


matching_files = define_op(
    "MatchingFiles",
    "pattern: string -> filenames: string",
    shape=lambda s: [(None,)],
    kernel=_matching,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (),
    effects=_READS,
    doc="The names of the files that match one of the patterns, sorted.",
)
