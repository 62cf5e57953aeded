"""What was refused of the routes' policies: logged and counted once, and shown for as long as it is refused (R14)."""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from extproc.routes.resolution import INITIAL_METADATA, ROUTE_METADATA, EffectivePolicy
from extproc.telemetry import instruments as metric
from extproc.telemetry.meters import Meters
from extproc.telemetry.names import BoundedValues

LOGGER: Final = logging.getLogger("deltafence.policy")

ROUTES_MAX: Final = 256
"""Routes that are remembered. Envoy's route names are an operator's, so more only come from a mistake."""
UNNAMED: Final = "unnamed"
ANNOTATIONS: Final = "annotations"
"""The source of what is refused on Kubernetes objects."""


class PolicyMetrics:
    """Told of every request's policy; a look-up and a comparison where nothing has changed."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._sources = BoundedValues()
        self._objects: dict[str, int] = {}
        for source in (INITIAL_METADATA, ROUTE_METADATA, ANNOTATIONS):
            meters.begin(metric.POLICY_ERRORS, {"source": source})
        self._routes: OrderedDict[str, EffectivePolicy] = OrderedDict()

    def objects_judged(self, problems: Mapping[str, int]) -> None:
        """How many problems the annotations of each route object have now; an object that is gone has none."""
        for name in problems.keys() | self._objects.keys():
            now, before = problems.get(name, 0), self._objects.get(name, 0)
            if now != before:
                self._meters.set(metric.POLICY_REFUSED, {"route": name}, now)
            if now > before:
                self._meters.count(metric.POLICY_ERRORS, {"source": ANNOTATIONS}, now - before)
        self._objects = {name: number for name, number in problems.items() if number}

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
