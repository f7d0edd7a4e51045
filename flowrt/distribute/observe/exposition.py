"""Samples in Prometheus' text format, version 0.0.4.

    # HELP flowrt_sessions Open sessions with a part in this task
    # TYPE flowrt_sessions gauge
    flowrt_sessions{task="worker:0"} 1

Written here, since it is one function: `prometheus_client` would bring a registry for the whole process, and
a server without the token and the certificates of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowrt.distribute.observe.metrics import FAMILIES, Kind, Sample, number_text

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PARTS = ("_bucket", "_sum", "_count")


def family_of(name: str) -> str:
    """The family of a sample's name: that of a histogram for its parts."""
    for part in _PARTS:
        base = name.removesuffix(part)
        if base != name and base in FAMILIES and FAMILIES[base].kind is Kind.HISTOGRAM:
            return base
    return name


def exposition(samples: Iterable[Sample], task: str) -> str:
    """The text. Every sample of flowrt's own gets the label ``task``; families are in the order of
    `FAMILIES`.
    """
    lines: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for sample in samples:
        family = family_of(sample.name)
        own = (("task", task),) if family.startswith("flowrt_") else ()
        lines[family].append(f"{sample.name}{_labels(own + sample.labels)} {number_text(sample.value)}")
    text = []
    for name, found in lines.items():
        if found:
            kind, about = FAMILIES[name]
            text += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *found]
    return "\n".join(text) + "\n"


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
