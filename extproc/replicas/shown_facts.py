"""What a replica itself tells of its model: ``/v1/models``, its guard, and the cache's form on ``/metrics`` (R8)."""

import json
from dataclasses import dataclass, replace
from typing import Final

import aiohttp

from extproc.decision.identity import Facts, read_cache_config, read_models
from extproc.replicas.guard_client import GuardAbsentError, GuardClient, GuardUnheardError, TokenRefusedError, ToldFacts

TIMEOUT_MS: Final = 2_000
ANSWER_BYTES_MAX: Final = 4 << 20


class FactsUnreadableError(Exception):
    """A source that may have said something could not be heard, or no source says anything. The message tells which and why."""


class FactsKeptBackError(FactsUnreadableError):
    """The replica answers, and tells us nothing; asking soon again would only fill its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFacts:
    """Reads them. Asks no engine: none of these answers needs a slot (R20)."""

    guards: GuardClient

    async def read(self, url: str) -> ToldFacts:
        """All facts that the replica at ``url`` (no trailing slash) tells. Raises FactsUnreadableError or FactsKeptBackError.

        What runs comes before what was asked for: flags only fill what is not shown. The guard is asked first: if the process
        that it names still serves afterwards, it has told all the rest as well.
        """
        try:
            asked_for, shown = await self._flags(url), await self._models(url)
            if shown is None and asked_for is None:
                raise FactsKeptBackError("/v1/models is not open to the gateway, and there is no guard that knows its token")
            told = asked_for or ToldFacts(facts=Facts())
            return replace(told, facts=(shown or Facts()).filled(await self._cache(url)).filled(told.facts))
        except (aiohttp.ClientError, TimeoutError, OSError, GuardUnheardError, ValueError) as error:
            raise FactsUnreadableError(str(error) or repr(error)) from error

    async def _models(self, url: str) -> Facts | None:
        """None where the page is kept from us, by an API key for example."""
        status, body = await self._get(f"{url}/v1/models")
        if 400 <= status < 500:
            return None
        if status != 200:
            raise FactsUnreadableError(f"/v1/models answered {status}")
        return read_models(json.loads(body))

    async def _flags(self, url: str) -> ToldFacts | None:
        """None where there is no guard, or none that listens to us."""
        try:
            return await self.guards.facts(url, timeout_ms=TIMEOUT_MS)
        except (GuardAbsentError, TokenRefusedError):
            return None

    async def _cache(self, url: str) -> Facts:
        """Part of the fingerprint only, so a server without such a page is as good as any for a repeat."""
        try:
            status, body = await self._get(f"{url}/metrics")
            return read_cache_config(body.decode(errors="replace")) if status == 200 else Facts()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return Facts()

    async def _get(self, url: str) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_MS / 1000)
        async with self.guards.session.get(url, timeout=timeout, allow_redirects=False) as response:
            body = await response.content.read(ANSWER_BYTES_MAX)
            while not response.content.at_eof() and len(body) < ANSWER_BYTES_MAX:
                body += await response.content.read(ANSWER_BYTES_MAX - len(body))
            return response.status, body
