"""Cluster runtimes of sessions: registered by the packages above, so that `Session` need not import them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CLUSTERS: dict[str, Callable[[str, Any], Any]] = {}
"""Functions of a target and a `ConfigProto` that return the `Runtime` of a session with a cluster, by the
protocol of the target.
"""
