"""How a run is divided between processes: one runs the files that start engines and look at times, the others the rest."""

import os
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

# Before PyTorch is imported, here or in what tests start: networks as small as theirs gain nothing from a second thread, and
# threads that wait for each other take the core that another test runs on.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What starts engines. Two at once would take the machine's two cores from each other, and each test its time.
ENGINE_FOLDER, ENGINE_FILE = "tests/engine/", "tests/launch/test_up_engine.py"
# These start engines too, but nothing in them has to be done by a certain time, so they may run beside others.
UNHURRIED = tuple(
    f"{ENGINE_FOLDER}test_{name}.py" for name in ("memory_plan", "quality", "schemathesis", "sglang_serve", "verify")
)


class OneForEngines(LoadFileScheduling):  # type: ignore[misc]
    """Hands whole files to processes, and all files whose engines must be alone to one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "engine" if _wants_its_engine_alone(file) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneForEngines:
    return OneForEngines(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not _wants_its_engine_alone(item.nodeid))  # the longest first


def _wants_its_engine_alone(nodeid: str) -> bool:
    return nodeid.startswith((ENGINE_FOLDER, ENGINE_FILE)) and not nodeid.startswith(UNHURRIED)
