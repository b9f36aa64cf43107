"""Who waits for whom when several requests are about one state."""

import asyncio

import pytest

from serving.shared_states import SharedStates

pytestmark = pytest.mark.asyncio


class Log:
    """Who computes when; each body runs until it is released."""

    def __init__(self, states: SharedStates) -> None:
        self.states = states
        self.started: list[str] = []
        self.release = asyncio.Event()

    async def compute(self, name: str, state: str, fail: bool = False) -> None:
        async with self.states.turn(state):
            self.started.append(name)
            await self.release.wait()
            if fail:
                raise RuntimeError(name)

    def start(self, name: str, state: str = "s", fail: bool = False) -> asyncio.Task[None]:
        return asyncio.create_task(self.compute(name, state, fail))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_others_wait_for_the_first_and_then_run_together() -> None:
    log = Log(SharedStates())
    tasks = [log.start(name) for name in "abc"]
    await settle()
    assert log.started == ["a"]
    log.release.set()
    await asyncio.gather(*tasks)
    assert log.started == ["a", "b", "c"]

    log.release.clear()
    tasks = [log.start(name) for name in "de"]
    await settle()
    assert log.started[3:] == ["d", "e"], "a computed state is waited for"
    log.release.set()
    await asyncio.gather(*tasks)


async def test_other_states_do_not_wait() -> None:
    log = Log(SharedStates())
    tasks = [log.start(name, state=name) for name in "ab"]
    await settle()
    assert log.started == ["a", "b"]
    log.release.set()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("how", ["fails", "leaves"])
async def test_the_next_takes_over_from_one_that_does_not_finish(how: str) -> None:
    log = Log(SharedStates())
    first = log.start("a", fail=how == "fails")
    others = [log.start(name) for name in "bc"]
    await settle()
    if how == "leaves":
        first.cancel()
        await settle()
        assert log.started == ["a", "b"]
    log.release.set()
    await asyncio.gather(*others)
    with pytest.raises((RuntimeError, asyncio.CancelledError)):
        await first
    assert log.started == ["a", "b", "c"]


async def test_one_that_stops_waiting_stops_nobody_else() -> None:
    log = Log(SharedStates())
    first, second, third = (log.start(name) for name in "abc")
    await settle()
    second.cancel()
    await settle()
    assert log.started == ["a"]
    log.release.set()
    await asyncio.gather(first, third)
    assert second.cancelled()
    assert log.started == ["a", "c"]


async def test_what_is_remembered_is_bounded() -> None:
    states = SharedStates(remembered=2)
    for name in "abc":
        async with states.turn(name):
            pass
    log = Log(states)
    forgotten = [log.start(name, state="a") for name in "xy"]
    await settle()
    assert log.started == ["x"]
    log.release.set()
    await asyncio.gather(*forgotten)
    assert len(states._computed) == 2
    assert states._computing == {}
