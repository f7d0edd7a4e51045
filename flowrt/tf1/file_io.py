"""``tensorflow.python.lib.io.file_io``: `gfile` under TensorFlow's internal names."""

from __future__ import annotations

from typing import Any

from flowrt import gfile
from flowrt.gfile import GFile

__all__ = [
    "FileIO", "copy", "create_dir", "delete_file", "delete_recursively", "file_exists", "get_matching_files",
    "is_directory", "list_directory", "read_file_to_string", "recursive_create_dir", "rename", "walk",
    "write_string_to_file",
]  # fmt: skip

FileIO = GFile
copy = gfile.Copy
create_dir = gfile.MkDir
delete_file = gfile.Remove
delete_recursively = gfile.DeleteRecursively
file_exists = gfile.Exists
get_matching_files = gfile.Glob
is_directory = gfile.IsDirectory
list_directory = gfile.ListDirectory
recursive_create_dir = gfile.MakeDirs
rename = gfile.Rename
walk = gfile.Walk


def read_file_to_string(filename: Any, binary_mode: bool = False) -> str | bytes:
    """The contents of a file, as text (UTF-8) or bytes."""
    with GFile(filename, "rb" if binary_mode else "r") as file:
        contents: str | bytes = file.read()
    return contents


def write_string_to_file(filename: Any, file_content: str | bytes) -> None:
    """Write text (as UTF-8) or bytes; replaces the file."""
    with GFile(filename, "wb" if isinstance(file_content, bytes) else "w") as file:
        file.write(file_content)
