"""``GET /metrics``: what Prometheus reads."""

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


class Scrape:
    """Renders a registry in the form that the scraper asks for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def routes(self) -> list[web.RouteDef]:
        """What the admin server serves of this."""
        return [web.get("/metrics", self._metrics)]

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return web.Response(body=encode(self._registry), headers={"content-type": content_type})
