"""The list of what proves each case is complete, and every test that it names exists."""

import os
import subprocess
import sys

import pytest

from tests.cases import coverage
from tests.cases.table import CASES, CASES_WITH_VISION, CASES_WITHOUT_VISION
from tests.launch.running import ROOT

ROWS = (*CASES, *CASES_WITH_VISION, *CASES_WITHOUT_VISION)
COLLECTION_TIMEOUT_S = 300


def test_every_case_of_the_collection_is_proven_or_excepted() -> None:
    assert len(coverage.IDS) == len(set(coverage.IDS)) == 93
    assert {*coverage.IN_TABLES, *coverage.TESTS} == set(coverage.IDS)
    assert coverage.REASONS.keys() <= set(coverage.IDS)


def test_the_tables_hold_what_they_are_said_to_hold() -> None:
    assert {row.id.partition("/")[0] for row in ROWS} == coverage.IN_TABLES


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """The names of all tests that pytest finds in the files that the list names, without parameters."""
    files = sorted({name.partition("::")[0] for names in coverage.TESTS.values() for name in names})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    plain = os.environ | {"PYTEST_ADDOPTS": ""}  # another verbosity prints a tree
    done = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=COLLECTION_TIMEOUT_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}


def test_every_test_that_is_named_exists(collected: set[str]) -> None:
    named = {name for names in coverage.TESTS.values() for name in names}
    assert named - collected == set()
