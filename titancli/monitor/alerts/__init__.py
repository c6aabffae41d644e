"""The one table of alerts: all that a run can show, by family W.

Knows every row, and what a look at a run raises. Does not know the form of a row (alert) or how it is drawn (panels).
"""

from __future__ import annotations

from titancli.monitor.alerts.alert import Alert, Look, Raised, raised
from titancli.monitor.alerts.learning import LEARNING_ALERTS
from titancli.monitor.alerts.life import LIFE_ALERTS
from titancli.monitor.alerts.memory import MEMORY_ALERTS
from titancli.monitor.alerts.meters import METER_ALERTS
from titancli.monitor.alerts.step_time import TIME_ALERTS

ALERTS: tuple[Alert, ...] = (*LIFE_ALERTS, *TIME_ALERTS, *MEMORY_ALERTS, *LEARNING_ALERTS, *METER_ALERTS)
"""Every alert; of two that weigh alike, the first here is said first."""


def alerts_of(look: Look) -> tuple[Raised, ...]:
    """What a look raises, worst first."""
    return raised(ALERTS, look)
