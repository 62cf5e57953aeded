"""What was refused of the routes' policies: logged and counted once, and shown for as long as it is refused (R14)."""

import logging
from collections import OrderedDict
from typing import Final

from extproc.routes.resolution import INITIAL_METADATA, ROUTE_METADATA, EffectivePolicy
from extproc.telemetry import instruments as metric
from extproc.telemetry.meters import Meters
from extproc.telemetry.names import BoundedValues

LOGGER: Final = logging.getLogger("deltafence.policy")

ROUTES_MAX: Final = 256
"""Routes that are remembered. Envoy's route names are an operator's, so more only come from a mistake."""
UNNAMED: Final = "unnamed"


class PolicyMetrics:
    """Told of every request's policy; a look-up and a comparison where nothing has changed."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._sources = BoundedValues()
        for source in (INITIAL_METADATA, ROUTE_METADATA):
            meters.begin(metric.POLICY_ERRORS, {"source": source})
        self._routes: OrderedDict[str, EffectivePolicy] = OrderedDict()

    def used(self, route: str, effective: EffectivePolicy) -> None:
        """A request came by this route and got this policy. The resolver gives the same object for the same inputs."""
        name = route or UNNAMED
        before = self._routes.get(name)
        if before is effective:
            return
        self._routes[name] = effective
        if len(self._routes) > ROUTES_MAX:
            self._routes.popitem(last=False)
        self._meters.set(metric.POLICY_REFUSED, {"route": name}, len(effective.errors))
        for error in effective.errors:
            if before is None or error not in before.errors:
                LOGGER.error("a policy source was refused; the policy below it stays in force: %s", error, extra={"route": name})
                self._meters.count(metric.POLICY_ERRORS, {"source": self._sources.of(error.source)})
