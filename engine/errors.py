"""Findings and errors: what a person can mend, said once and in one form.

A `Finding` is a value; rules and sources return them. A `TitanError` carries
findings up to the command line. Faults of our own are asserts, never these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]

EXIT_OK = 0
EXIT_RUN_FAILED = 1
EXIT_CONFIG = 2
EXIT_HARDWARE = 3
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong (or doubtful) with a config, and the way out.

    `key` is dotted (`training.seq_len`) or empty when no key is at fault. `file` and `line`
    point at the text that set it; both are None when it came from a default, a flag or the
    environment, and `source` then says which in words (`flag --training.seq_len`).
    """

    rule: str
    severity: Severity
    key: str
    message: str
    fix: str
    file: str | None = None
    line: int | None = None
    source: str | None = None

    @property
    def is_hardware(self) -> bool:
        """Rules of family H (hardware) and M (memory) say that a sound config does not fit."""
        return self.rule.startswith(("H", "M"))

    def to_json(self) -> dict[str, Any]:
        """The finding as the plain object of `titan validate --json`."""
        return asdict(self)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else (self.file or self.source or "")
        where = "  ".join(part for part in (place, self.key) if part)
        lines = [f"{self.severity}[{self.rule}]: {self.message}"]
        if where:
            lines.append(f"  --> {where}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


def exit_code(findings: Sequence[Finding]) -> int:
    """0 without errors; 2 when the config is wrong; 3 when it is sound but does not fit."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if not errors:
        return EXIT_OK
    return EXIT_HARDWARE if all(error.is_hardware for error in errors) else EXIT_CONFIG


class TitanError(Exception):
    """A mistake that a person can mend, with its findings.

    TitanError
     └─ raised by sources (unreadable config), data (too little text), launch (run folder taken)
    """

    def __init__(self, *findings: Finding) -> None:
        assert findings, "a TitanError without findings tells nobody anything"
        self.findings = findings
        super().__init__("\n".join(str(finding) for finding in findings))

    @property
    def exit_code(self) -> int:
        """The process exit code these findings call for (2 or 3)."""
        return exit_code(self.findings)
