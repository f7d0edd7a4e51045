"""Options of a profile: TensorFlow's, as far as a trace contains the data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from flowrt.errors import InvalidArgumentError, UnimplementedError

ORDERS = ("name", "micros", "bytes", "occurrence")
COLUMNS = ("micros", "bytes", "occurrence", "device", "op_types")
UNKNOWN_COSTS = (
    "min_params", "min_float_ops", "min_peak_bytes", "min_residual_bytes", "min_output_bytes",
    "min_accelerator_micros", "min_cpu_micros",
)  # fmt: skip
"""TensorFlow's thresholds on quantities that a trace does not contain: only 0, no threshold, is accepted."""


@dataclass(frozen=True)
class ProfileOptions:
    """``select``: the columns. Regular expressions match from the beginning of a name. A row is hidden, with
    all below it, where it is deeper than ``max_depth``, below a threshold, trimmed, or not counted
    (``account_type_regexes``, of op types); hidden or not shown by name, its children still are.
    """

    max_depth: int = 10000
    min_micros: float = 0
    min_bytes: int = 0
    min_occurrence: int = 0
    order_by: str = "micros"
    account_type_regexes: Sequence[str] = (".*",)
    start_name_regexes: Sequence[str] = (".*",)
    trim_name_regexes: Sequence[str] = ()
    show_name_regexes: Sequence[str] = (".*",)
    hide_name_regexes: Sequence[str] = ()
    select: Sequence[str] = COLUMNS
    step: int = -1
    """The step of a `Profiler` to show; -1 is the mean of all steps."""
    output: str = "stdout"
    """``stdout``, ``file:outfile=PATH`` or ``none``."""


def read_options(given: Mapping[str, Any] | None) -> ProfileOptions:
    """The options in a dictionary. Raises `InvalidArgumentError` for an unknown one or a bad value, and
    `UnimplementedError` for a threshold on a quantity that a trace does not contain.
    """
    options = ProfileOptions()
    known = {field.name for field in fields(ProfileOptions)}
    for name, value in (given or {}).items():
        if name in UNKNOWN_COSTS:
            if value:
                raise UnimplementedError(f"profile: {name}: expected 0; got {value}. Traces do not record it")
        elif name in known:
            options = replace(options, **{name: value})
        elif name != "account_displayed_op_only":  # every row counts all that is below it
            raise InvalidArgumentError(
                f"profile: expected options of {', '.join(sorted(known))}; got {name!r}"
            )
    _check(options)
    return options


def _check(options: ProfileOptions) -> None:
    if options.order_by not in ORDERS:
        raise InvalidArgumentError(
            f"profile: order_by: expected one of {', '.join(ORDERS)}; got {options.order_by!r}"
        )
    if unknown := [name for name in options.select if name not in COLUMNS]:
        raise InvalidArgumentError(
            f"profile: select: expected some of {', '.join(COLUMNS)}; got {', '.join(unknown)}"
        )
    kind, _, path = options.output.partition(":outfile=")
    if kind not in ("stdout", "none", "file") or (kind == "file") != bool(path):
        raise InvalidArgumentError(
            f"profile: output: expected stdout, none or file:outfile=PATH; got {options.output!r}"
        )
    for name in (field.name for field in fields(options) if field.name.endswith("_regexes")):
        for pattern in getattr(options, name):
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidArgumentError(
                    f"profile: {name}: expected a regular expression; got {pattern!r}: {error}"
                ) from None


class ProfileOptionBuilder:
    """Makes the dictionary of options, call by call: TensorFlow's ``tf.profiler.ProfileOptionBuilder``."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(options or {})

    @staticmethod
    def time_and_memory(
        min_micros: float = 1,
        min_bytes: int = 1,
        min_accelerator_micros: float = 0,
        min_cpu_micros: float = 0,
        min_peak_bytes: int = 0,
        min_residual_bytes: int = 0,
        min_output_bytes: int = 0,
    ) -> dict[str, Any]:
        """Nodes that took some time and some memory, the slowest first."""
        builder = ProfileOptionBuilder().order_by("micros")
        builder.with_min_execution_time(min_micros, min_accelerator_micros, min_cpu_micros)
        builder.with_min_memory(min_bytes, min_peak_bytes, min_residual_bytes, min_output_bytes)
        return builder.build()

    def build(self) -> dict[str, Any]:
        return dict(self._options)

    def with_max_depth(self, max_depth: int) -> ProfileOptionBuilder:
        return self._with(max_depth=max_depth)

    def with_min_memory(
        self,
        min_bytes: int = 0,
        min_peak_bytes: int = 0,
        min_residual_bytes: int = 0,
        min_output_bytes: int = 0,
    ) -> ProfileOptionBuilder:
        return self._with(
            min_bytes=min_bytes,
            min_peak_bytes=min_peak_bytes,
            min_residual_bytes=min_residual_bytes,
            min_output_bytes=min_output_bytes,
        )

    def with_min_execution_time(
        self, min_micros: float = 0, min_accelerator_micros: float = 0, min_cpu_micros: float = 0
    ) -> ProfileOptionBuilder:
        return self._with(
            min_micros=min_micros,
            min_accelerator_micros=min_accelerator_micros,
            min_cpu_micros=min_cpu_micros,
        )

    def with_min_occurrence(self, min_occurrence: int) -> ProfileOptionBuilder:
        return self._with(min_occurrence=min_occurrence)

    def with_accounted_types(self, account_type_regexes: Sequence[str]) -> ProfileOptionBuilder:
        return self._with(account_type_regexes=list(account_type_regexes))

    def with_node_names(
        self,
        start_name_regexes: Sequence[str] | None = None,
        show_name_regexes: Sequence[str] | None = None,
        hide_name_regexes: Sequence[str] | None = None,
        trim_name_regexes: Sequence[str] | None = None,
    ) -> ProfileOptionBuilder:
        given = {
            "start_name_regexes": start_name_regexes,
            "show_name_regexes": show_name_regexes,
            "hide_name_regexes": hide_name_regexes,
            "trim_name_regexes": trim_name_regexes,
        }
        return self._with(**{name: list(value) for name, value in given.items() if value is not None})

    def select(self, attributes: Sequence[str]) -> ProfileOptionBuilder:
        return self._with(select=list(attributes))

    def order_by(self, attribute: str) -> ProfileOptionBuilder:
        return self._with(order_by=attribute)

    def with_step(self, step: int) -> ProfileOptionBuilder:
        return self._with(step=step)

    def with_stdout_output(self) -> ProfileOptionBuilder:
        return self._with(output="stdout")

    def with_file_output(self, outfile: str) -> ProfileOptionBuilder:
        return self._with(output=f"file:outfile={outfile}")

    def with_empty_output(self) -> ProfileOptionBuilder:
        return self._with(output="none")

    def _with(self, **changed: Any) -> ProfileOptionBuilder:
        self._options.update(changed)
        return self
