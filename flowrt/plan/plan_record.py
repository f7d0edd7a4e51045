"""`PlanRecord`: what ``flowrt plan --log-dir`` keeps of a plan for its page in ``flowrt report``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flowrt.errors import DataLossError
from flowrt.plan.explain import Other, layouts_text, mesh_text, others, parts_of, played_text, product_of
from flowrt.plan.planning import Planned
from flowrt.plan.replay.spans import Row, Span, merged, spans_of
from flowrt.plan.replay.step_times import Played, Product
from flowrt.plan.stage_search import Machine, describe
from flowrt.plan.task import Scaled
from flowrt.storage.durable_files import replace_file, typed_os_errors

FILE = "plan.record.json"
HEAD = '{"flowrt_plan_record": 1,'
"""The beginning of a record, by which it is known."""

MAX_SPANS = 1000
"""About the number of pixels of a row: shorter spans are not seen."""


class Memory(NamedTuple):
    """Bytes of a device at ``position``: the most at a time, and the parts of them."""

    position: int
    nbytes: int
    held: Mapping[str, int]


class Scaling(NamedTuple):
    """The best estimate for a number of devices, as text, with its seconds, and speed-ups over one."""

    devices: int
    seconds: float
    strong: float
    weak: float
    choice: str


class PlanRecord(NamedTuple):
    """A plan as its page shows it."""

    script: str
    cluster: str
    choice: str
    mesh: str
    layouts: Sequence[str]
    searched: str
    samples: int
    seconds: float
    parts: Mapping[str, float]
    product: Product
    device_bytes: int
    memory: Sequence[Memory]
    others: Sequence[Other]
    rows: Sequence[Row]
    scaling: Sequence[Scaling]


def record_of(
    planned: Planned, detailed: Played, machine: Machine, samples: int, scaled: Sequence[Scaled],
    script: str, cluster: str,
) -> PlanRecord:  # fmt: skip
    """The record of the best of ``planned``, which was also played in detail. ``cluster`` is the text of its
    file.
    """
    best = planned.best
    spans = spans_of(best.programs, detailed)
    return PlanRecord(
        script, cluster, describe(best.choice), mesh_text(best.choice), layouts_text(best.choice),
        played_text(planned), samples, best.seconds, parts_of(best), product_of(best, samples),
        machine.memory, [Memory(p.position, p.peak_bytes, p.held) for p in best.programs],
        others(planned, machine), [merged(row, best.seconds / MAX_SPANS) for row in spans],
        [Scaling(s.devices, s.best.seconds, s.strong, s.weak, describe(s.best.choice)) for s in scaled],
    )  # fmt: skip


def write_record(path: Path, record: PlanRecord) -> None:
    """Write ``record`` to ``path``, atomically. Raises as `typed_os_errors`."""
    text = json.dumps(_plain(record))
    with typed_os_errors(f"plan {path}"):
        replace_file(str(path), f"{HEAD} {text.removeprefix('{')}\n".encode())


def _plain(value: Any) -> Any:
    """``value`` as JSON has it: named tuples are objects."""
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def read_record(path: Path) -> PlanRecord:
    """The record in the file ``path``. Raises `DataLossError` for one that is damaged."""
    try:
        content = json.loads(path.read_text("utf-8"))
        del content["flowrt_plan_record"]
        rows = [Row(**{**row, "spans": tuple(Span(**span) for span in row["spans"])})
                for row in content.pop("rows")]  # fmt: skip
        found = PlanRecord(
            **{**content, "product": Product(**content["product"]), "rows": rows,
               "memory": [Memory(**each) for each in content["memory"]],
               "others": [Other(**each) for each in content["others"]],
               "scaling": [Scaling(**each) for each in content["scaling"]]},
        )  # fmt: skip
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataLossError(
            f"{path}: expected the record of a plan; got {type(error).__name__}: {error}"
        ) from None
    return found
