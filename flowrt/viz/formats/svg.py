"""SVG, drawn by Graphviz: ``dot`` reads the text that `flowrt.viz.formats.dot` writes."""

from __future__ import annotations

import shutil
import subprocess

from flowrt.errors import DeadlineExceededError, InternalError, UnavailableError
from flowrt.viz.formats.dot import encode_dot
from flowrt.viz.formats.picture import Picture

DOT = "dot"

MAX_S = 120
"""Seconds that a drawing may take."""


def find_dot() -> str:
    """The path of Graphviz's ``dot``. Raises `UnavailableError` if it is not installed."""
    program = shutil.which(DOT)
    if program is None:
        raise UnavailableError(
            "svg: expected Graphviz's command 'dot' on PATH; got none. Install the package graphviz, or"
            " use html or dot, which do not need it"
        )
    return program


def encode_svg(picture: Picture) -> bytes:
    """``picture.view`` as an SVG file.

    Raises `UnavailableError` without Graphviz, and `DeadlineExceededError` after `MAX_S` seconds.
    """
    program = find_dot()
    try:
        drawn = subprocess.run(
            [program, "-Tsvg"], input=encode_dot(picture), capture_output=True, timeout=MAX_S, check=False
        )
    except subprocess.TimeoutExpired:
        hint = "--depth and --focus reduce the drawing"
        count = len(picture.view.nodes)
        raise DeadlineExceededError(
            f"svg: expected dot to draw {count} boxes within {MAX_S} s; it was stopped. {hint}"
        ) from None
    if drawn.returncode or not drawn.stdout:
        raise InternalError(f"svg: dot ended with status {drawn.returncode}: {drawn.stderr.decode()[:400]}")
    return drawn.stdout
