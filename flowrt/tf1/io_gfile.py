"""``flowrt.io.gfile``: `gfile` under the names of TensorFlow 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from flowrt import gfile
from flowrt.gfile import GFile
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "GFile", "copy", "exists", "glob", "isdir", "listdir", "makedirs", "mkdir", "remove", "rename", "rmtree",
    "stat", "walk",
]  # fmt: skip

copy, rename = gfile.Copy, gfile.Rename
exists, isdir = gfile.Exists, gfile.IsDirectory
listdir, makedirs, mkdir = gfile.ListDirectory, gfile.MakeDirs, gfile.MkDir
remove, rmtree = gfile.Remove, gfile.DeleteRecursively
stat = gfile.Stat


def glob(pattern: Any) -> list[str]:
    """The files that match ``pattern``, or one of several, sorted."""
    several = [pattern] if isinstance(pattern, (str, os.PathLike)) else pattern
    return sorted({path for each in several for path in gfile.Glob(each)})


def walk(top: Any, topdown: bool = True, onerror: Any = None) -> Iterator[tuple[str, list[str], list[str]]]:
    """The directories below ``top``: path, names of directories, names of files. ``onerror`` is accepted."""
    return gfile.Walk(top, topdown)


__getattr__ = missing_from("io.gfile")
