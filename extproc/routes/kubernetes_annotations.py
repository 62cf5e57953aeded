"""The annotations of route objects as a watch shows them: for each object the last good ones, and what is wrong with newer ones.

Told pictures, answers questions; does no I/O. An annotation that is refused changes nothing: the object keeps what it last had,
or nothing where it never had anything good. A removed object or annotation is gone at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from extproc.decision.policy import Policy
from extproc.kubernetes.resources import Name, Object
from extproc.routes.annotations import PREFIX, read_annotations
from extproc.routes.document import overlay
from extproc.routes.problems import PolicyError, Problem
from extproc.routes.route_metadata import RouteObject

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

Refused = Callable[[Object, tuple[Problem, ...]], None]
"""Told an object, as the API showed it, and what is wrong with its annotations; once for each change of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedObject:
    """What is known of one object."""

    seen: Mapping[str, str]
    """Its annotations of ours, as they are now."""
    good: Mapping[str, str]
    """The last ones that were accepted."""
    problems: tuple[Problem, ...] = ()
    """Why ``seen`` was refused; empty where it is ``good``."""


class KubernetesAnnotations:
    """The source of ``deltafence.io/*`` annotations; see RouteAnnotations in resolution.py, which this is one of."""

    def __init__(self, base: Policy, on_refused: Refused) -> None:
        """``base`` is what lies below: the default file's policy."""
        self._base: Final = base
        self._on_refused: Final = on_refused
        self._objects: Mapping[RouteObject, AnnotatedObject] = {}
        self._revision = 0

    @property
    def revision(self) -> int:
        """Another number whenever an answer may have changed."""
        return self._revision

    @property
    def objects(self) -> Mapping[RouteObject, AnnotatedObject]:
        """Every object that carries something of ours."""
        return self._objects

    def annotations(self, route_object: RouteObject) -> Mapping[str, str]:
        """The last good annotations of an object."""
        known = self._objects.get(route_object)
        return NOTHING if known is None else known.good

    def problems(self, route_object: RouteObject) -> tuple[Problem, ...]:
        """Why the object's newest annotations were refused."""
        known = self._objects.get(route_object)
        return () if known is None else known.problems

    def become(self, kind: str, picture: Mapping[Name, Object]) -> None:
        """Take a new picture of all objects of one kind, by namespace and name."""
        others = {known: value for known, value in self._objects.items() if known.kind != kind}
        ours = {}
        for (namespace, name), found in picture.items():
            route_object = RouteObject(kind=kind, namespace=namespace, name=name)
            annotated = self._judge(route_object, found)
            if annotated is not None:
                ours[route_object] = annotated
        now = {**others, **ours}
        if now != self._objects:
            self._objects = now
            self._revision += 1

    def _judge(self, route_object: RouteObject, found: Object) -> AnnotatedObject | None:
        annotations = found["metadata"].get("annotations") or {}
        seen = {name: value for name, value in annotations.items() if name.startswith(PREFIX)}
        before = self._objects.get(route_object)
        if not seen:
            return None
        if before is not None and before.seen == seen:
            return before
        try:
            layer = read_annotations(seen, source=str(route_object))
            assert layer is not None
            overlay(self._base, layer)
        except PolicyError as error:
            self._on_refused(found, error.problems)
            return AnnotatedObject(seen=seen, good=before.good if before else NOTHING, problems=error.problems)
        return AnnotatedObject(seen=seen, good=seen)
