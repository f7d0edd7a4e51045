"""The environment variables that flowrt reads, and the misspelled ones.

`docs/observe.md` says what each does; a test holds both lists against the source.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

VARIABLES = frozenset({
    "FLOWRT_CACHE_DIR", "FLOWRT_CHECK", "FLOWRT_CHECKSUMS", "FLOWRT_CLUSTER", "FLOWRT_CONNECT_TIMEOUT",
    "FLOWRT_DRAIN", "FLOWRT_ELASTIC", "FLOWRT_EPOCH", "FLOWRT_EXIT_WITH_JOB", "FLOWRT_FAULTS",
    "FLOWRT_HEARTBEAT", "FLOWRT_JIT", "FLOWRT_JOB_GRACE", "FLOWRT_LINKS", "FLOWRT_LOG", "FLOWRT_LOG_BYTES",
    "FLOWRT_LOG_DIR", "FLOWRT_LOG_FORMAT", "FLOWRT_LOST_AFTER", "FLOWRT_METRICS", "FLOWRT_MNIST",
    "FLOWRT_ONEDNN", "FLOWRT_PORT", "FLOWRT_SUBDOMAIN", "FLOWRT_TASK", "FLOWRT_TASKS", "FLOWRT_TLS_CA",
    "FLOWRT_TLS_CERT", "FLOWRT_TLS_KEY", "FLOWRT_TOKEN", "FLOWRT_TOKEN_PATH", "FLOWRT_TRACE",
    "FLOWRT_TRACEBACK", "FLOWRT_TRANSPORT",
})  # fmt: skip


PREFIX = "FLOWRT"


def unknown_variables(names: Iterable[str]) -> dict[str, str]:
    """The members of ``names`` that look like flowrt's and that it does not read, each with a hint: a
    misspelled variable is ignored without a word. ``flowrt_log`` counts too: names are in capitals.
    """
    strange = (name for name in names if name.upper().startswith(PREFIX) and name not in VARIABLES)
    return {name: f"not read by flowrt.{_hint(name)}" for name in sorted(strange)}


def _hint(name: str) -> str:
    """The nearest known name; what they all begin with is no likeness."""
    known = {each.removeprefix(f"{PREFIX}_"): each for each in VARIABLES}
    found = difflib.get_close_matches(name.upper().removeprefix(PREFIX).lstrip("_"), known, n=1)
    return f" Nearest: {known[found[0]]}" if found else ""
