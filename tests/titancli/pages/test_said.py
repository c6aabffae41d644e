"""What findings say is read from where they are made."""

from __future__ import annotations

import pytest

from titancli.pages.said import said


@pytest.mark.parametrize(
    ("id_", "severities", "messages", "fixes"),
    [
        ("U901", ["error"], ["cannot read <name>: <why>"], ["mend it"]),
        ("U902", ["error"], ["one thing", "another <path>"], []),
        ("U903", ["warning"], ["it is late"], ["mend it soon"]),
        ("U905", ["warning"], ["<table> are too many"], ["take {_}"]),
        ("U906", ["warning"], ["there are <count>"], ["take any"]),
        ("U907", ["error"], ["there is one", "there are many (<count>)"], ["take two", "take fewer"]),
        ("U908", ["error"], ["it is full to the brim"], ["mend it, or not"]),
    ],
    ids=["by-name", "one-of-two", "by-keyword", "handed-in", "as-a-pair", "on-two-ways", "by-a-method"],
)
def test_a_finding_says_what_its_source_does(
    module: str, id_: str, severities: list[str], messages: list[str], fixes: list[str]
) -> None:
    told = said(module, "first")[id_]
    assert (told.severities, told.messages, told.fixes) == (severities, messages, fixes)


def test_what_no_call_leads_to_is_not_told(module: str) -> None:
    assert "U904" not in said(module, "first")


def test_a_command_is_read_through_its_rooms() -> None:
    (completion,) = said("titancli.app", "completion").items()
    assert (completion[0], completion[1].messages) == ("U180", ["titan completes in no shell called <shell>"])
    assert {"U110", "U111"} <= said("titancli.app", "logs").keys()


def test_what_a_caller_decides_is_an_error_or_a_warning() -> None:
    assert said("titancli.disk", "room_finding")["M520"].severities == ["error", "warning"]
