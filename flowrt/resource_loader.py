"""``flowrt.resource_loader``: data files in the directory of the program that reads them."""

from __future__ import annotations

import os
import sys

from flowrt.gfile import GFile
from flowrt.tf1.missing_names import missing_from

__all__ = ["get_data_files_path", "get_path_to_datafile", "load_resource"]


def get_data_files_path() -> str:
    """The directory of the Python file that calls this."""
    return _directory_of_caller()


def get_path_to_datafile(path: str) -> str:
    """``path`` relative to the directory of the Python file that calls this."""
    return os.path.join(_directory_of_caller(), path)


def load_resource(path: str) -> bytes:
    """The contents of the file ``path``, relative to the directory of the Python file that calls this."""
    with GFile(os.path.join(_directory_of_caller(), path), "rb") as file:
        contents: bytes = file.read()
    return contents


def _directory_of_caller() -> str:
    """The directory of the file that called a function of this module."""
    return os.path.dirname(os.path.abspath(sys._getframe(2).f_code.co_filename))


__getattr__ = missing_from("resource_loader")
