"""What a processor watches while it runs: where its replicas are, and what the annotations of its routes say.

Without Kubernetes that is DNS alone. Each watch is a job of its own, started again should it break: a fault of ours in a watch
must not end streams that run.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final, Self

from extproc.app.addresses import ReplicaAddress
from extproc.decision.identity import Facts
from extproc.decision.policy import Policy
from extproc.kubernetes.access import ApiAccess
from extproc.kubernetes.client import ApiClient, ApiError, ExistsError
from extproc.kubernetes.events import events_path, warning_event
from extproc.kubernetes.reflection import Reflection
from extproc.kubernetes.resources import Name, Object, endpoint_slices, pods, route_collections
from extproc.replicas.dns_discovery import DnsDiscovery, Origin
from extproc.replicas.membership import Member, Membership
from extproc.replicas.roster import Replica, Roster
from extproc.replicas.service_membership import DECLARING_LABEL, Ended, ServiceMembership
from extproc.routes.kubernetes_annotations import KubernetesAnnotations
from extproc.routes.problems import Problem

FIRST_PICTURE_S: Final = 10.0
"""How long a start waits for the first pictures. After that it serves with what it has: requests may come before servers do."""
RESTART_AFTER_S: Final = 5.0
EVENTS_WAITING_MAX: Final = 100
"""More refused objects at once are only logged: Events are for people."""

LOGGER: Final = logging.getLogger("deltafence.surroundings")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReference:
    """A Service whose EndpointSlices are watched."""

    namespace: str
    """Empty: the pod's own."""
    name: str
    port: str
    """Name or number."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """``[NAMESPACE/]SERVICE:PORT``. Raises ValueError."""
        path, colon, port = text.rpartition(":")
        namespace, _, name = path.rpartition("/")
        if not (colon and port and name) or "/" in namespace:
            raise ValueError(f"{text!r} is not [NAMESPACE/]SERVICE:PORT")
        return cls(namespace=namespace, name=name, port=port)


class RouteWatch:
    """The annotations of route objects, and word to their authors about refused ones."""

    def __init__(self, base: Policy, *, namespace: str | None = None) -> None:
        """``namespace`` is the only one that is watched; None watches all."""
        self._namespace: Final = namespace
        self.annotations: Final = KubernetesAnnotations(base, self._refused)
        self.reflections: Sequence[Reflection] = ()
        self._refusals: Final[asyncio.Queue[tuple[Object, str]]] = asyncio.Queue(EVENTS_WAITING_MAX)
        self.judged: Callable[[Mapping[str, int]], None] = lambda _: None
        """Told, after each new picture, how many problems each annotated object has."""

    def reflect(self, client: ApiClient) -> Sequence[Reflection]:
        """The watches that feed it."""
        self.reflections = [
            Reflection(client, collection, partial(self._become, collection.kind))
            for collection in route_collections(self._namespace)
        ]
        return self.reflections

    async def tell_authors(self, client: ApiClient) -> None:
        """Make an Event of each refusal, until cancelled."""
        while True:
            found, message = await self._refusals.get()
            event = warning_event(
                found, reason="PolicyRefused", message=message, now=datetime.now(UTC), instance=socket.gethostname()
            )
            try:
                await client.create(events_path(found), event)
            except ExistsError:
                pass
            except ApiError as error:
                LOGGER.warning("no Event could be made of a refused policy: %s", error)

    def _become(self, kind: str, picture: Mapping[Name, Object]) -> None:
        self.annotations.become(kind, picture)
        self.judged({str(each): len(annotated.problems) for each, annotated in self.annotations.objects.items()})

    def _refused(self, found: Object, problems: tuple[Problem, ...]) -> None:
        message = "; ".join(str(problem) for problem in problems)
        name = Name.of(found)
        LOGGER.error("%s %s/%s: policy refused, the last good one stays: %s", found["kind"], name.namespace, name.name, message)
        if not self._refusals.full():
            self._refusals.put_nowait((found, message))


def nobody_asks(replica: Replica) -> None:
    """For a process that fences nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a processor looks."""

    origins: tuple[ReplicaAddress, ...] = ()
    """Replicas by URL; names are looked up again and again."""
    declared: Mapping[ReplicaAddress, Facts] = field(default_factory=dict)
    """What the operator says of some of ``origins``."""
    service: ServiceReference | None = None
    """Replicas behind a Service, in place of ``origins``."""
    routes: RouteWatch | None = None
    access: Callable[[], ApiAccess] = field(default=lambda: ApiAccess.from_environment(os.environ))

    @asynccontextmanager
    async def watched(self, roster: Roster, ended: Ended = nobody_asks) -> AsyncIterator[None]:
        """Keep ``roster`` and the routes' annotations current until the end; ``ended`` hears of replicas whose pods have ended.

        Raises OutsideClusterError.
        """
        async with AsyncExitStack() as stack:
            jobs: dict[str, Callable[[], Awaitable[None]]] = {}
            first_pictures: list[Awaitable[object]] = []
            become = partial(_become, roster)
            if self.service is not None or self.routes is not None:
                access = self.access()
                client = await stack.enter_async_context(ApiClient(access))
                for reflection in self._reflections(client, access, become, ended):
                    jobs[str(reflection.collection)] = reflection.run
                    first_pictures.append(reflection.synced.wait())
                if self.routes is not None:
                    jobs["Events about routes"] = partial(self.routes.tell_authors, client)
            if self.service is None:
                declared = {_parts(origin): facts for origin, facts in self.declared.items()}
                discovery = DnsDiscovery([_parts(origin) for origin in self.origins], become, declared=declared)
                await discovery.refresh()
                jobs["DNS"] = discovery.run
            tasks = [asyncio.create_task(kept_running(name, job), name=name) for name, job in jobs.items()]
            stack.push_async_callback(_end, tasks)
            await _within(FIRST_PICTURE_S, first_pictures)
            yield

    def _reflections(self, client: ApiClient, access: ApiAccess, become: Membership, ended: Ended) -> Sequence[Reflection]:
        reflections = list(self.routes.reflect(client)) if self.routes is not None else []
        if self.service is not None:
            namespace = self.service.namespace or access.namespace
            membership = ServiceMembership(self.service.port, become, ended)
            slices = endpoint_slices(namespace, self.service.name)
            reflections.append(Reflection(client, slices, membership.take_slices))
            reflections.append(Reflection(client, pods(namespace, DECLARING_LABEL), membership.take_pods))
        return reflections


def _parts(origin: ReplicaAddress) -> Origin:
    return origin.scheme, origin.host, origin.port


def _become(roster: Roster, members: Sequence[Member]) -> None:
    withheld = [member.replica.destination for member in members if member.withheld]
    LOGGER.info("replicas: %s", ", ".join(_described(member) for member in members) or "none")
    roster.become([member.replica for member in members], withheld)


def _described(member: Member) -> str:
    return f"{member.replica.destination}{' (withheld)' if member.withheld else ''}"


async def kept_running(name: str, job: Callable[[], Awaitable[None]]) -> None:
    """Run a job that never ends; should it break, say so and start it again."""
    while True:
        try:
            await job()
        except Exception:
            LOGGER.exception("%s broke and is started again", name)
        await asyncio.sleep(RESTART_AFTER_S)


async def _within(limit_s: float, waits: Sequence[Awaitable[object]]) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*waits)
    except TimeoutError:
        LOGGER.warning("the Kubernetes API has not answered within %g s; serving with what is known", limit_s)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
