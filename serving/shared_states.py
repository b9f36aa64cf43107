"""Requests about one new state that arrive together: the first computes it, the others wait for that and reuse it.

An engine would put them into one batch and compute the state once for each. Knows nothing of engines or prompts, only keys.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable


class SharedStates:
    """Lets one request at a time pass for each state that is not known to have been computed.

    Args:
        remembered: of how many computed states to remember that nobody needs to wait. One that the engine has evicted
            since is computed by whoever asks next, together if they come together.
    """

    def __init__(self, remembered: int = 4096) -> None:
        self._remembered = remembered
        self._computed: OrderedDict[Hashable, None] = OrderedDict()
        self._computing: dict[Hashable, asyncio.Future[None]] = {}

    @contextlib.asynccontextmanager
    async def turn(self, state: Hashable) -> AsyncIterator[None]:
        """Wait until the state has been computed or it is this request's turn to compute it, for as long as the body runs.

        If the body fails or is cancelled, the next one that waits takes over.
        """
        while (computing := self._computing.get(state)) is not None:
            # Shielded: who stops waiting must not stop the others.
            await asyncio.shield(computing)
        if state in self._computed:
            self._computed.move_to_end(state)
            yield
            return
        self._computing[state] = done = asyncio.get_running_loop().create_future()
        try:
            yield
            self._computed[state] = None
            if len(self._computed) > self._remembered:
                self._computed.popitem(last=False)
        finally:
            del self._computing[state]
            done.set_result(None)
