"""What one check of `clef-serve check` found. Knows no check."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "not needed", "warning", "failed"]


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One line about one thing, and what to do where it is not as it should be."""

    name: str
    status: Status
    line: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """A warning is: the server would start."""
        return self.status != "failed"


def passed(name: str, line: str) -> CheckResult:
    return CheckResult(name=name, status="ok", line=line)


def not_needed(name: str, line: str) -> CheckResult:
    return CheckResult(name=name, status="not needed", line=line)


def warning(name: str, line: str, remedy: str) -> CheckResult:
    return CheckResult(name=name, status="warning", line=line, remedy=remedy)


def failed(name: str, line: str, remedy: str) -> CheckResult:
    return CheckResult(name=name, status="failed", line=line, remedy=remedy)
