"""A server for the hosted service's own clients: our app on loopback, with an engine that can be made to refuse."""

from dataclasses import dataclass, field

from serving.engine import ScoreRequest, ScoreResult
from serving.fake_engine import FakeEngine

ACCOUNT = "0123456789abcdef0123456789abcdef"
NAMES = {"served_model_name": "Cloudflare/clef-flash"}
MAX_PROMPT_TOKENS = 2_000


@dataclass(kw_only=True)
class RefusingEngine(FakeEngine):
    """Raises what stands in `refusals`, first to last, then answers. The front's own refusals take the same way out."""

    refusals: list[Exception] = field(default_factory=list)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """See `serving.engine.Engine`."""
        if self.refusals:
            self.requests.append(request)
            raise self.refusals.pop(0)
        return await super().score(request)
