"""How a run is divided between processes: one runs what starts engines, file after file, the others run the other files."""

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

# What starts engines. Two at once would take the machine's two cores from each other, and each test its time.
ENGINE_FOLDER, ENGINE_FILE = "tests/engine/", "tests/launch/test_up_engine.py"


class OneForEngines(LoadFileScheduling):  # type: ignore[misc]
    """Hands whole files to processes, and all files that start engines to one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "engine" if _starts_engines(file) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneForEngines:
    return OneForEngines(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not _starts_engines(item.nodeid))  # the longest first


def _starts_engines(nodeid: str) -> bool:
    return nodeid.startswith((ENGINE_FOLDER, ENGINE_FILE))
