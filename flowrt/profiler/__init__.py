"""Profiles of steps: timelines and tables of traced runs.

    session.run(..., options=RunOptions(trace_level=FULL_TRACE), run_metadata=metadata)
        | RunMetadata.step_stats (protobuf)
    steps                    StepStats -> Step: operations and transfers
        |                       |
    timeline                 costs, profile_options, profile
    Chrome trace JSON        tables by op, scope, device and line of the script

    always_on                FLOWRT_TRACE: the last steps are kept, and written at exit
    text_table               byte counts as text; text in columns

Reading is pure: it needs neither a session nor the machine of the trace.
"""

from typing import Any

from flowrt.profiler.always_on import recent_step_stats as recent_step_stats
from flowrt.profiler.profile import Profiler as Profiler
from flowrt.profiler.profile import profile as profile
from flowrt.profiler.profile_options import ProfileOptionBuilder as ProfileOptionBuilder
from flowrt.profiler.timeline import Timeline as Timeline
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("profiler")
