"""``flowrt.contrib.slim``: layers, `arg_scope` and variables under the name that model definitions import."""

from typing import Any

from flowrt.missing_names import missing_name


def __getattr__(name: str) -> Any:
    raise missing_name("contrib.slim", name, globals())
