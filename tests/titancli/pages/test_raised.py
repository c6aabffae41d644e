"""Which definitions a function leads to is read from what it names."""

from __future__ import annotations

import sys

from titancli.pages.raised import reached


def test_definitions_are_found_along_calls_names_and_tables(module: str) -> None:
    names = {scope.place[1] for scope in reached(module, "first") if scope.place[0] == module}
    assert {"first", "second", "TABLE", "later", "Kept", "pair", "_ADVICE"} <= names
    assert "apart" not in names


def test_a_definition_is_found_where_it_stands_and_not_where_it_is_passed_on(module: str) -> None:
    assert ("titancli.report", "error") in [scope.place for scope in reached(module, "first")]


def test_nothing_is_run_to_be_read(module: str) -> None:
    assert reached(module, "first")
    assert module not in sys.modules
