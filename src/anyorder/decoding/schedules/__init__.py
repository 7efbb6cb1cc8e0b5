"""Schedules by name: how many positions a step fills."""

from anyorder.decoding.schedules import adaptive, blocks, step_counts  # noqa: F401 - importing them registers their schedules
from anyorder.decoding.schedules.base import (
    SCHEDULES,
    AdaptiveSchedule,
    Constant,
    FixedSchedule,
    Schedule,
    best_ranked,
    make_schedule,
    register_schedule,
    split_schedules,
)

__all__ = [
    "SCHEDULES",
    "AdaptiveSchedule",
    "Constant",
    "FixedSchedule",
    "Schedule",
    "best_ranked",
    "make_schedule",
    "register_schedule",
    "split_schedules",
]
