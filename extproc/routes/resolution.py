"""Which policy a request's route has: the sources in one order, and for each key where its value came from.

Most specific first, each laid over the ones below it key by key:

1. ext_proc initial metadata ``x-deltafence-policy`` (``ExtProcPerRoute`` overrides): a document
2. the route's metadata in Envoy: our own namespace, then the annotations that Envoy Gateway copied
3. ``deltafence.io/*`` annotations of the route's object, read from the Kubernetes API
4. the default file
5. the built-in defaults (proto/policy.schema.json)

A source that is refused changes nothing: what lies below it stays in force, and the refusal is reported with the result.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Protocol

from extproc.decision.policy import DEFAULT_POLICY, Policy
from extproc.routes.annotations import read_annotations
from extproc.routes.document import Layer, leaf_values, overlay, read_layer
from extproc.routes.problems import PolicyError, Problem
from extproc.routes.route_metadata import RouteMetadata, RouteObject, envoy_gateway_layer, own_layer, read_metadata
from extproc.routes.schema import LEAVES

BUILT_IN: Final = "built-in default"
INITIAL_METADATA: Final = "initial metadata x-deltafence-policy"
ROUTE_METADATA: Final = "route metadata"

CACHED_ROUTES_MAX: Final = 1_024
"""Distinct inputs whose result is kept. A gateway has tens of routes; more only cost a new reading (about a millisecond)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceError:
    """One source that was refused, and why."""

    source: str
    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        return f"{self.source}: {' | '.join(str(problem) for problem in self.problems)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicy:
    """The policy in force, where each of its values came from, and what was refused on the way."""

    policy: Policy
    sources: Mapping[str, str]
    """Every leaf path of the document to its source, in words for people."""
    errors: tuple[SourceError, ...] = ()
    route_object: RouteObject | None = None
    """The Kubernetes object that the route came from, where Envoy says so."""


class RouteAnnotations(Protocol):
    """The annotations of route objects as the Kubernetes API last showed them."""

    @property
    def revision(self) -> int:
        """Another number whenever any answer of ``annotations`` may have changed."""
        ...

    def annotations(self, route_object: RouteObject) -> Mapping[str, str]:
        """All annotations of the object, empty where it is unknown; of a refused change the last good ones."""
        ...

    def problems(self, route_object: RouteObject) -> tuple[Problem, ...]:
        """Why the object's newest annotations are not the ones in force; empty where they are."""
        ...


class NoRouteAnnotations:
    """Outside Kubernetes."""

    revision: Final = 0

    def annotations(self, route_object: RouteObject) -> Mapping[str, str]:
        """Nothing is known of any object."""
        return {}

    def problems(self, route_object: RouteObject) -> tuple[Problem, ...]:
        """Nothing was refused."""
        return ()


def built_in() -> EffectivePolicy:
    """What is in force where no source says anything."""
    return EffectivePolicy(policy=DEFAULT_POLICY, sources=MappingProxyType(dict.fromkeys(LEAVES, BUILT_IN)))


def laid_over(below: EffectivePolicy, layer: Layer) -> EffectivePolicy:
    """``below`` with a layer's values and origins. Raises PolicyError where the two together make no sense."""
    policy = overlay(below.policy, layer)
    origins = {path: layer.origin(path) for path, _ in leaf_values(layer.document)}
    return EffectivePolicy(
        policy=policy,
        sources=MappingProxyType({**below.sources, **origins}),
        errors=below.errors,
        route_object=below.route_object,
    )


class PolicyResolver:
    """Resolves routes, and remembers results by the exact inputs, so that a request costs one dictionary look-up."""

    def __init__(self, *, default: Layer | None = None, route_annotations: RouteAnnotations | None = None) -> None:
        """``default`` is the default file's layer; raises PolicyError where it doesn't fit the built-in defaults."""
        self._default: Final = built_in() if default is None else laid_over(built_in(), default)
        self._watches_objects: Final = route_annotations is not None
        self._route_annotations: Final[RouteAnnotations] = route_annotations or NoRouteAnnotations()
        self._cached: Final = lru_cache(maxsize=CACHED_ROUTES_MAX)(self._resolved)
        self._seen: Final[dict[tuple[str, str], str]] = {}

    @property
    def default(self) -> EffectivePolicy:
        """What is in force for a route that says nothing itself."""
        return self._default

    def resolve(self, *, initial_metadata: str = "", route_metadata: str = "", route_name: str = "") -> EffectivePolicy:
        """The policy of the route that a request came by.

        ``initial_metadata`` is the value of ``x-deltafence-policy``, the others are the attributes ``xds.route_metadata`` and
        ``xds.route_name``; empty where absent. Never raises: what is refused is in ``errors``.
        """
        route = (route_name, route_metadata)
        if route in self._seen or len(self._seen) < CACHED_ROUTES_MAX:
            self._seen[route] = initial_metadata
        return self._cached(initial_metadata, *route, self._route_annotations.revision)

    def seen(self) -> list[tuple[str, EffectivePolicy]]:
        """Name and policy in force now of every route that a request came by. Meshes may give several routes one name."""
        revision = self._route_annotations.revision
        return [(route[0], self._cached(initial_metadata, *route, revision)) for route, initial_metadata in self._seen.items()]

    def _resolved(self, initial_metadata: str, route_name: str, route_metadata: str, _revision: int) -> EffectivePolicy:
        errors: list[SourceError] = []
        metadata = RouteMetadata()
        try:
            metadata = read_metadata(route_metadata, route_name=route_name)
        except PolicyError as error:
            errors.append(SourceError(source=ROUTE_METADATA, problems=error.problems))
        if metadata.object_unknown is not None and self._watches_objects:
            errors.append(SourceError(source=ROUTE_METADATA, problems=(metadata.object_unknown,)))
        if metadata.route_object is not None and (refused := self._route_annotations.problems(metadata.route_object)):
            errors.append(SourceError(source=str(metadata.route_object), problems=refused))
        effective = self._default
        for source, layer_of_source in self._sources(metadata, initial_metadata):
            try:
                layer = layer_of_source()
                if layer is not None:
                    effective = laid_over(effective, layer)
            except PolicyError as error:
                errors.append(SourceError(source=source, problems=error.problems))
        return EffectivePolicy(
            policy=effective.policy,
            sources=effective.sources,
            errors=tuple(errors),
            route_object=metadata.route_object,
        )

    def _sources(self, metadata: RouteMetadata, initial_metadata: str) -> Iterator[tuple[str, Callable[[], Layer | None]]]:
        """Least specific first: the name of each source, and how to read what it sets."""
        route_object = metadata.route_object
        if route_object is not None:
            annotations = self._route_annotations.annotations(route_object)
            yield str(route_object), lambda: read_annotations(annotations, source=str(route_object))
        yield ROUTE_METADATA, lambda: envoy_gateway_layer(metadata)
        yield ROUTE_METADATA, lambda: own_layer(metadata)
        yield INITIAL_METADATA, lambda: read_layer(initial_metadata, source=INITIAL_METADATA)
