"""Where the time of a step went: timelines and tables of traced runs.

    session.run(..., options=RunOptions(trace_level=FULL_TRACE), run_metadata=metadata)
        | RunMetadata.step_stats (protobuf)
    steps.py         read_step: StepStats -> Step, its operations and transfers
        |                       |
    timeline.py              costs.py, profile.py
    Chrome trace JSON        tables by op, scope, device and line of the script

    always_on.py     FLOWRT_TRACE: the last steps are kept, and written when the process ends
    size_text.py     numbers of bytes, as tables, pictures and pages write them

Reading is pure: nothing here needs a session, or the machine where the trace was made.
"""

from typing import Any

from flowrt.missing_names import missing_name
from flowrt.profiler.always_on import recent_step_stats as recent_step_stats
from flowrt.profiler.profile import Profiler as Profiler
from flowrt.profiler.profile import profile as profile
from flowrt.profiler.profile_options import ProfileOptionBuilder as ProfileOptionBuilder
from flowrt.profiler.timeline import Timeline as Timeline


def __getattr__(name: str) -> Any:
    raise missing_name("profiler", name, globals())
