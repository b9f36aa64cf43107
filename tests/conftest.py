"""How a run is divided between processes: one runs what starts engines, file after file, the others run the other files."""

import pytest


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist, which reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Two engines at once would take the two cores from each other, and each test's time limit with it.
        group = "engine" if _starts_an_engine(item) else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: not _starts_an_engine(item))  # the longest first


def _starts_an_engine(item: pytest.Item) -> bool:
    return item.get_closest_marker("engine") is not None
