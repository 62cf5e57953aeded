"""``deltafence processor``: the external processor alone, for a proxy that is already there."""

import ssl
from collections.abc import Mapping
from pathlib import Path

import click
import uvloop

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.parameters import ADDRESS, DURATION, LOG_FORMAT_OPTION, REPLICA, ParsedParameter, read_secret, read_text
from extproc.app.processor import ProcessorSettings, run_processor
from extproc.app.replica_facts import read_replica_facts
from extproc.app.store_options import require_takeover_after_leases, store_options
from extproc.app.stores import KeySettings, StoreSettings
from extproc.app.surroundings import RouteWatch, ServiceReference, Surroundings
from extproc.app.wires import EgressProtocol, TransportKind
from extproc.decision.identity import Facts
from extproc.decision.policy import DEFAULT_POLICY
from extproc.decision.verdicts import HealthSettings
from extproc.kubernetes.access import OutsideClusterError
from extproc.processor.body_room import BODIES_BYTES_MAX
from extproc.routes.document import Layer, overlay, read_layer
from extproc.routes.problems import PolicyError
from extproc.routes.resolution import PolicyResolver
from extproc.storage.migrations import SchemaTooNew
from extproc.storage.script import StorageUnavailable
from extproc.telemetry.logs import LogFormat, configure_logging

SERVICE = ParsedParameter("service", ServiceReference.parse)
TRANSPORT = click.Choice(TransportKind, case_sensitive=False)
EGRESS_PROTOCOL = click.Choice(EgressProtocol, case_sensitive=False)


@click.command()
@click.option("--socket", required=True, metavar="PATH", help="Unix socket on which Envoy finds the ext_proc service.")
@click.option("--egress", required=True, metavar="PATH", help="Unix socket of Envoy's egress listener.")
@click.option(
    "--replica", "replicas", multiple=True, type=REPLICA, metavar="URL", help="A replica, or a name that stands for several."
)
@click.option(
    "--replica-ca",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Authorities (PEM) for https replicas.  [default: the machine's]",
)
@click.option("--replica-facts", type=click.Path(path_type=Path), metavar="FILE", help="What replicas serve, by their URLs.")
@click.option(
    "--service", type=SERVICE, metavar="[NAMESPACE/]NAME:PORT", help="Replicas behind a Service, by its EndpointSlices."
)
@click.option("--route-annotations", is_flag=True, help="Watch the annotations of route objects in Kubernetes.")
@click.option("--route-namespace", metavar="NAME", help="Watch them there only.  [default: in all namespaces]")
@click.option("--admin", type=ADDRESS, metavar="HOST:PORT", help="Readiness and the journal's facts over HTTP.")
@click.option(
    "--sibling",
    "siblings",
    multiple=True,
    type=ADDRESS,
    metavar="HOST:PORT",
    help="The --admin of another process of this gateway; the status page shows all of them as one.",
)
@click.option("--policy", type=click.Path(path_type=Path), metavar="FILE", help="The policy of routes that say nothing else.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Secret shared with the guards.")
@store_options
@click.option("--max-request-bytes", default=64 << 20, show_default=True, type=click.IntRange(1), help="Larger bodies get 413.")
@click.option(
    "--max-bodies-bytes",
    default=BODIES_BYTES_MAX,
    show_default=True,
    type=click.IntRange(1),
    help="Of all bodies that may still be repeated; more get 503.",
)
@click.option("--max-streams", default=10_000, show_default=True, type=click.IntRange(min=1), help="More at once get 503.")
@click.option(
    "--hung-after", default="60s", show_default=True, type=DURATION, help="How long a replica with work may stand still."
)
@click.option("--health-interval", default="5s", show_default=True, type=DURATION, help="Between two looks at one replica.")
@click.option(
    "--transport",
    default="grpc",
    show_default=True,
    type=TRANSPORT,
    envvar="DELTAFENCE_TRANSPORT",
    show_envvar=True,
    help="Who serves ext_proc: grpcio, or our own HTTP/2.",
)
@click.option(
    "--egress-protocol",
    default="h1",
    show_default=True,
    type=EGRESS_PROTOCOL,
    envvar="DELTAFENCE_EGRESS_PROTOCOL",
    show_envvar=True,
    help="How attempts reach the egress: a connection each, or a stream each.",
)
@click.option("--drain-limit", default="5s", show_default=True, type=DURATION, help="Running streams' time after SIGTERM.")
@click.option("--decision-log", type=click.Path(path_type=Path), metavar="FILE", help="Write every decision there, to replay it.")
@LOG_FORMAT_OPTION
def processor(
    socket: str,
    egress: str,
    replicas: tuple[ReplicaAddress, ...],
    replica_ca: Path | None,
    replica_facts: Path | None,
    service: ServiceReference | None,
    route_annotations: bool,
    route_namespace: str | None,
    admin: Address | None,
    siblings: tuple[Address, ...],
    policy: Path | None,
    token_file: Path | None,
    stores: StoreSettings,
    keys: KeySettings,
    max_request_bytes: int,
    max_bodies_bytes: int,
    max_streams: int,
    hung_after: float,
    health_interval: float,
    transport: TransportKind,
    egress_protocol: EgressProtocol,
    drain_limit: float,
    decision_log: Path | None,
    log_format: LogFormat,
) -> None:
    """Run the external processor."""
    configure_logging(log_format)
    if bool(replicas) == (service is not None):
        raise click.UsageError("say where the replicas are: by --replica, or by --service")
    default = read_default(policy)
    effective = overlay(DEFAULT_POLICY, default) if default else DEFAULT_POLICY
    require_takeover_after_leases(stores, effective.lease.ttl_ms)
    routes = RouteWatch(effective, namespace=route_namespace) if route_annotations else None
    settings = ProcessorSettings(
        socket=socket,
        egress=egress,
        replicas=(),
        tls=read_authorities(replica_ca),
        surroundings=Surroundings(origins=replicas, declared=read_facts(replica_facts, replicas), service=service, routes=routes),
        resolver=PolicyResolver(default=default, route_annotations=routes.annotations if routes else None),
        token=read_secret(token_file, "--token-file"),
        stores=stores,
        keys=keys,
        admin=admin,
        siblings=siblings,
        transport=transport,
        egress_protocol=egress_protocol,
        health=read_health(hung_after_s=hung_after, interval_s=health_interval),
        request_bytes_max=max_request_bytes,
        bodies_bytes_max=max_bodies_bytes,
        streams_max=max_streams,
        drain_limit_s=drain_limit,
        decision_log=decision_log,
    )
    try:
        uvloop.run(run_processor(settings))
    except (StorageUnavailable, SchemaTooNew) as error:
        raise click.ClickException(f"--journal: {error}") from error
    except (OSError, OutsideClusterError, ValueError) as error:
        raise click.ClickException(str(error)) from error


def read_health(*, hung_after_s: float, interval_s: float) -> HealthSettings:
    """How patient health is. Raises click.ClickException where the values contradict each other."""
    interval_ms = round(interval_s * 1000)
    try:
        return HealthSettings(
            hung_after_ms=round(hung_after_s * 1000),
            interval_ms=interval_ms,
            stale_after_ms=max(HealthSettings().stale_after_ms, 4 * interval_ms),
        )
    except ValueError as error:
        raise click.ClickException(f"--hung-after, --health-interval: {error}") from error


def read_facts(file: Path | None, replicas: tuple[ReplicaAddress, ...]) -> Mapping[ReplicaAddress, Facts]:
    """What a file says of the replicas. Raises click.ClickException."""
    if file is None:
        return {}
    try:
        return read_replica_facts(file.read_text(encoding="utf-8"), replicas)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"--replica-facts {file}: {error}") from error


def read_default(policy: Path | None) -> Layer | None:
    """What a default policy file sets. Raises click.ClickException with every problem of the file."""
    if policy is None:
        return None
    try:
        layer = read_layer(read_text(policy, "--policy"), source=f"file {policy}")
        overlay(DEFAULT_POLICY, layer)
    except PolicyError as error:
        raise click.ClickException(f"--policy {policy}: {error}") from error
    return layer


def read_authorities(file: Path | None) -> ssl.SSLContext | None:
    """By which https replicas are checked; None for the machine's authorities. Raises click.ClickException."""
    if file is None:
        return None
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise click.ClickException(f"--replica-ca {file}: {error.strerror}") from error
