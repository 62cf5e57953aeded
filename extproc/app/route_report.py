"""What ``GET /deltafence/v1/routes`` says: which policy is in force where, each key's source, and what was refused."""

from dataclasses import replace
from typing import Any

from extproc.app.surroundings import RouteWatch
from extproc.routes.annotations import read_annotations
from extproc.routes.document import document_of
from extproc.routes.kubernetes_annotations import AnnotatedObject
from extproc.routes.resolution import EffectivePolicy, PolicyResolver, laid_over
from extproc.routes.route_metadata import RouteObject


class RouteReport:
    """Made of what the processor has at hand; asks nobody."""

    def __init__(self, resolver: PolicyResolver, watch: RouteWatch | None) -> None:
        self._resolver = resolver
        self._watch = watch

    def document(self) -> dict[str, Any]:
        """JSON: the default, every route that a request came by, annotated objects, and how fresh the annotations are."""
        return {
            "default": encoded(self._resolver.default),
            "routes": [{"name": name, **encoded(effective)} for name, effective in self._resolver.seen()],
            "objects": self._objects(),
            "watches": self._watches(),
        }

    def _objects(self) -> list[dict[str, Any]]:
        if self._watch is None:
            return []
        return [
            {
                "annotations_in_force": dict(annotated.good),
                "refused": [str(problem) for problem in annotated.problems],
                **encoded(self._of_object(route_object, annotated)),
            }
            for route_object, annotated in self._watch.annotations.objects.items()
        ]

    def _of_object(self, route_object: RouteObject, annotated: AnnotatedObject) -> EffectivePolicy:
        """What its annotations lead to, whether a request has come by it or not; what Envoy's route says itself is not in it."""
        default = replace(self._resolver.default, route_object=route_object)
        layer = read_annotations(annotated.good, source=str(route_object))
        return default if layer is None else laid_over(default, layer)

    def _watches(self) -> list[dict[str, Any]]:
        return [
            {
                "collection": str(reflection.collection),
                "standing": str(reflection.freshness.standing),
                "age_s": None if reflection.freshness.age_s is None else round(reflection.freshness.age_s, 1),
                "trouble": reflection.freshness.trouble,
            }
            for reflection in (self._watch.reflections if self._watch else ())
        ]


def encoded(effective: EffectivePolicy) -> dict[str, Any]:
    """One effective policy as JSON."""
    return {
        "object": None if effective.route_object is None else str(effective.route_object),
        "policy": document_of(effective.policy),
        "sources": dict(effective.sources),
        "errors": [str(error) for error in effective.errors],
    }
