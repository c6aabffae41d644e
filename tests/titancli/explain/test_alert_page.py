"""Alerts of a run as pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.keys import field_docs
from titancli.explain.alert_page import alert_json, alert_named, alert_page
from titancli.explain.asked import asked
from titancli.monitor.alerts import ALERTS
from titancli.monitor.alerts.alert import Alert


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.id)
def test_every_alert_is_explained_in_the_width_of_a_terminal(alert: Alert) -> None:
    for width in (60, 100):
        lines = alert_page(alert, width=width, colour=False)
        assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert lines[0].startswith(f"{alert.id}, ")
    assert "{" not in text
    for part in (alert.why, *(way.told for way in alert.ways), *([field_docs()[alert.key]] if alert.key else [])):
        assert " ".join(part.split()) in text


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.id)
def test_every_id_is_known_to_explain_config(alert: Alert) -> None:
    assert (asked([alert.id.lower()]).kind, asked([alert.id]).name) == ("alert", alert.id)


def test_json_names_key_fixes_and_why() -> None:
    told = alert_json(alert_named("W203"))
    assert (told["id"], told["key"], told["severity"]) == ("W203", "parallelism.tensor_parallel_degree", "warning")
    assert told["fixes"][0] == "parallelism.enable_async_tensor_parallel = true, with compile"
    assert told["family"] == "What a run shows"


def test_explain_config_shows_an_alert(titan: Callable[..., Any]) -> None:
    ran = titan("explain-config", "W203")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("W203, a warning about a run\n")
