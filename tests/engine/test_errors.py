"""How a finding is printed, and what exit code findings call for."""

import dataclasses

import pytest

from engine.errors import Finding, TitanError, exit_code

KV_HEADS = Finding(
    rule="P101",
    severity="error",
    key="parallelism.tensor_parallel_degree",
    message="tensor_parallel_degree = 16 does not divide the 8 KV heads of llama3 8B",
    fix="set it to 1, 2, 4 or 8",
    file="run.toml",
    line=14,
)


def changed(**fields):
    return dataclasses.replace(KV_HEADS, **fields)


def test_a_finding_reads_as_the_contract_shows_it():
    assert str(KV_HEADS) == (
        "error[P101]: tensor_parallel_degree = 16 does not divide the 8 KV heads of llama3 8B\n"
        "  --> run.toml:14  parallelism.tensor_parallel_degree\n"
        "  fix: set it to 1, 2, 4 or 8"
    )


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"line": None}, "  --> run.toml  parallelism.tensor_parallel_degree\n"),
        ({"file": None, "line": None}, "  --> parallelism.tensor_parallel_degree\n"),
        ({"key": ""}, "  --> run.toml:14\n"),
        ({"file": None, "line": None, "key": ""}, ""),
        ({"file": None, "line": None, "source": "flag --a.b", "key": "a.b"}, "  --> flag --a.b  a.b\n"),
    ],
)
def test_a_finding_names_the_place_as_far_as_it_is_known(fields, place):
    text = str(changed(**fields))
    assert text == f"error[P101]: {KV_HEADS.message}\n{place}  fix: {KV_HEADS.fix}"


def test_a_finding_without_a_fix_prints_no_empty_fix():
    assert "fix" not in str(changed(fix=""))


def test_a_warning_begins_with_its_severity():
    assert str(changed(severity="warning")).startswith("warning[P101]: ")


def test_a_finding_has_the_fields_of_the_contract_as_json():
    assert {"rule", "severity", "key", "message", "fix", "file", "line"} <= KV_HEADS.to_json().keys()


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([], 0),
        ([("P101", "warning")], 0),
        ([("M501", "warning")], 0),
        ([("P101", "error")], 2),
        ([("S101", "error")], 2),
        ([("M501", "error")], 3),
        ([("H301", "error")], 3),
        ([("H301", "error"), ("M501", "error")], 3),
        ([("H301", "error"), ("P101", "warning")], 3),
        ([("H301", "error"), ("P101", "error")], 2),
    ],
)
def test_the_exit_code_follows_the_worst_error(findings, code):
    assert exit_code([changed(rule=rule, severity=severity) for rule, severity in findings]) == code


def test_a_titan_error_prints_all_its_findings():
    error = TitanError(KV_HEADS, changed(rule="P102"))
    assert "P101" in str(error)
    assert "P102" in str(error)
    assert error.exit_code == 2


def test_a_titan_error_without_findings_is_our_fault():
    with pytest.raises(AssertionError, match="without findings"):
        TitanError()
