"""The effective policy of every route that was asked for, and what was refused on the way: logged, counted and shown (R14)."""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from extproc.routes.resolution import EffectivePolicy
from extproc.telemetry import instruments as metric
from extproc.telemetry.meters import Meters
from extproc.telemetry.names import BoundedValues

LOGGER: Final = logging.getLogger("deltafence.policy")

ROUTES_MAX: Final = 256
"""Routes that are shown; Envoy's route names are an operator's, so this many only come from a mistake."""
UNNAMED: Final = "unnamed"


class PolicyBook:
    """Told of every request's policy; a look-up and a comparison where nothing has changed."""

    def __init__(self, meters: Meters, default: EffectivePolicy) -> None:
        self._meters = meters
        self._sources = BoundedValues()
        self._default: Final = default
        self._routes: OrderedDict[str, EffectivePolicy] = OrderedDict()

    @property
    def default(self) -> EffectivePolicy:
        """What is in force where a route says nothing."""
        return self._default

    @property
    def routes(self) -> Mapping[str, EffectivePolicy]:
        """Every route that had a request, by name."""
        return MappingProxyType(self._routes)

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
