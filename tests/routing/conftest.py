"""The chart's arguments, rendered once a run."""

from pathlib import Path

import pytest

from tests.k8s.chart import Helm, unpack_helm
from tests.routing.routers import chart_arguments, without_discovery


@pytest.fixture(scope="session")
def chart_args(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All of them."""
    folder: Path = tmp_path_factory.mktemp("helm")
    return chart_arguments(Helm(major=4, program=unpack_helm(4, folder), folder=folder))


@pytest.fixture(scope="session")
def arguments(chart_args: list[str]) -> list[str]:
    """Those for engines whose URLs are known."""
    return without_discovery(chart_args)
