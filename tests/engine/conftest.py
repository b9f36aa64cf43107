"""Releases are built once a run; each file of this folder starts the engines of one shape, one at a time."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.served import build_release


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The tiny release of a seed."""
    built: dict[int, Path] = {}

    def of_seed(seed: int) -> Path:
        if seed not in built:
            built[seed] = build_release(tmp_path_factory.mktemp("release") / f"tiny-{seed}", seed)
        return built[seed]

    return of_seed
