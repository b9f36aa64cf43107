"""SGLang counts its slots whenever it is idle; one that is lost ends the engine, and with it the server.

That is what makes every other engine test one of leaks too.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.inspector import inspector
from tests.engine.served import READY, START_TIMEOUT_S, starting

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(("pool", "name"), [("kv", "full"), ("states", "mamba")])
def test_one_lost_slot_ends_the_server(release: Callable[[int], Path], pool: str, name: str) -> None:
    with inspector() as inside, starting(release(0), "--max-prompt-tokens", "4096", environ=inside.environ) as process:
        process.wait_for(READY, START_TIMEOUT_S)
        counts = inside.settled()["pools"][pool]
        assert counts["lost"] == 0
        inside.lose(pool)
        assert process.end(60) != 0
    left = counts["free"] - 1
    (line,) = [line for line in process.lines if f"[{name}] total=" in line]
    assert f"[{name}] total={counts['total']}, available={left}, evictable={counts['cached']}, protected=0" in line
    assert "the engine's scheduler process" in process.lines[-1]
