"""Texts of titan's as Markdown."""

from __future__ import annotations

from titancli.pages.markdown import form, prose, table


def test_code_stays_and_marks_outside_of_it_are_none() -> None:
    assert prose("`<a_b>` in [train] and q_BLHD") == "`<a_b>` in \\[train\\] and q\\_BLHD"


def test_cell_keeps_its_bars() -> None:
    assert table(("a", "b"), [("x|y", "z")]) == ["| a | b |", "| --- | --- |", "| x\\|y | z |"]


def test_table_without_rows_says_so() -> None:
    assert table(("a", "b"), []) == ["Nothing of its own."]


def test_places_of_a_rule_are_named_after_their_number() -> None:
    assert form("{shape.n_kv_heads} of {share:.0f} %") == "<n_kv_heads> of <share> %"
