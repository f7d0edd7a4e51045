"""Failures and stragglers as text: the time that a plan loses if devices fail or workers are late."""

from __future__ import annotations

from flowrt.plan.explain import TextRow, seconds_text
from flowrt.plan.planning import Candidate
from flowrt.plan.replay.failures import Failures, Stragglers, job_mean

HOUR, MONTH = 3600.0, 30 * 24 * 3600.0
RESTART_S = 120.0
"""Seconds from a failure until training goes on, beside the work that is lost."""


def if_devices_fail(best: Candidate, hours: float, checkpoint_s: float) -> TextRow:
    """A row on a month of training if a device fails every ``hours`` on average, and a checkpoint takes
    ``checkpoint_s``. Raises as `Failures`.
    """
    devices = best.choice.devices
    mean = job_mean(hours * HOUR, devices)
    failures = Failures(mean, checkpoint_s, RESTART_S)
    outlook = failures.outlook(MONTH)
    text = (
        f"a device every {hours:g} h, so one of {devices} every {mean / HOUR:.3g} h: with a checkpoint of "
        f"{checkpoint_s:g} s every {outlook.interval / 60:.3g} min (Daly) 30 days of work take "
        f"{outlook.seconds / MONTH * 30:.3g} days, with {outlook.restarts:.3g} restarts"
    )
    return "failures", text


def if_workers_are_late(best: Candidate, late_s: float) -> TextRow:
    """A row on the time that is lost if steps of a worker end late, by an exponential time of mean
    ``late_s``, without and with backup workers (Chen et al. 2016). Raises as `Stragglers`.
    """
    workers = best.choice.dp
    stragglers = Stragglers(best.seconds, late_s)
    backups = stragglers.best_backups(workers)
    (whole, all_lost), (fewer, lost) = (
        (stragglers.update_seconds(workers, k), stragglers.share_lost(workers, k)) for k in (0, backups)
    )
    expected, all_end = seconds_text(best.seconds), seconds_text(whole)
    text = (
        f"late by {seconds_text(late_s)} on average: a step of {workers} workers takes {all_end} instead of "
        f"{expected}, and {all_lost:.1%} of all time is lost; with {backups} left out of each update "
        f"{seconds_text(fewer)} and {lost:.1%}"
    )
    return "stragglers", text
