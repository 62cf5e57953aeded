"""``deltafence up``: the whole gateway in front of servers that already run, as children of one process."""

import asyncio
from pathlib import Path

import click

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.children import ChildDiedError
from extproc.app.database_options import DATABASE_VARIABLE
from extproc.app.envoy_config import ToolEndpoint
from extproc.app.envoy_process import EnvoyMissingError, find_envoy
from extproc.app.gateway import StoppedAtOnceError, run_gateway
from extproc.app.gateway_settings import DEFAULT_TOOLS_LISTEN, PROCESSORS_MAX, GatewaySettings, StartRefusedError
from extproc.app.parameters import ADDRESS, DURATION, LOG_FORMAT_OPTION, REPLICA, TOOL_OPTION, read_text
from extproc.decision.policy import DEFAULT_POLICY, Policy
from extproc.routes.document import read_policy
from extproc.routes.problems import PolicyError
from extproc.telemetry.logs import LogFormat, configure_logging

READABLE_FILE = click.Path(exists=True, dir_okay=False, readable=True, resolve_path=True, path_type=Path)


@click.command()
@click.option("--replica", "replicas", type=REPLICA, multiple=True, required=True, help="A server's origin; once per replica.")
@click.option(
    "--listen", type=ADDRESS, default="127.0.0.1:8080", show_default=True, help="Where clients connect; port 0 takes a free one."
)
@click.option(
    "--admin",
    type=ADDRESS,
    default="127.0.0.1:9090",
    show_default=True,
    help="Status page and metrics; further processors take the ports that follow.",
)
@click.option("--policy", type=READABLE_FILE, help="The routes' policy; checked before anything starts.")
@click.option("--token-file", type=READABLE_FILE, help="The secret that the replicas' guards expect.")
@click.option("--replica-ca", type=READABLE_FILE, help="Authorities (PEM) for https replicas.  [default: the machine's]")
@click.option("--envoy", type=click.Path(path_type=Path), help="Envoy's binary.  [default: the envoy extra's, else PATH]")
@click.option(
    "--journal",
    envvar=DATABASE_VARIABLE,
    show_envvar=True,
    metavar="URL",
    help="Where requests, keys and tool calls are kept: a file's path, or postgresql://user@host/name.  [default: in memory]",
)
@TOOL_OPTION
@click.option(
    "--tools-listen",
    type=ADDRESS,
    default=str(DEFAULT_TOOLS_LISTEN),
    show_default=True,
    help="Where agents and replicas call the tools. Not for clients: whoever can reach it speaks for any request.",
)
@click.option("--processors", type=click.IntRange(1, PROCESSORS_MAX), default=1, show_default=True, help="Processor processes.")
@click.option("--access-log", help="A file for Envoy's access log, or `stderr`.  [default: none]")
@click.option(
    "--drain-limit", type=DURATION, default="30s", show_default=True, help="How long a stop waits for running requests."
)
@LOG_FORMAT_OPTION
@click.argument("processor_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROCESSOR OPTIONS]")
def up(
    *,
    processor_options: tuple[str, ...],
    replicas: tuple[ReplicaAddress, ...],
    listen: Address,
    admin: Address,
    policy: Path | None,
    token_file: Path | None,
    replica_ca: Path | None,
    journal: str | None,
    tools: tuple[ToolEndpoint, ...],
    tools_listen: Address,
    envoy: Path | None,
    processors: int,
    access_log: str | None,
    drain_limit: float,
    log_format: LogFormat,
) -> None:
    """Start the gateway in front of running servers.

    Prints `ready URL` on stdout once a request would succeed; logs go to stderr. SIGTERM or Ctrl-C lets running requests end
    first; a second one stops at once. What follows `--` goes to the processor as it is: see `deltafence processor --help`.
    """
    configure_logging(log_format)
    if len(set(replicas)) < len(replicas):
        raise click.BadParameter("one of them is given twice", param_hint="--replica")
    mode = DEFAULT_POLICY.mode if policy is None else _read_valid_policy(policy).mode
    try:
        settings = GatewaySettings(
            replicas=replicas,
            listen=listen,
            admin=admin,
            policy=policy,
            mode=mode,
            token_file=token_file,
            replica_ca=replica_ca,
            journal=journal,
            tools=tools,
            tools_listen=tools_listen,
            envoy=find_envoy(envoy),
            processors=processors,
            access_log=access_log if access_log in (None, "stderr") else str(Path(access_log).absolute()),
            drain_limit_s=drain_limit,
            log_format=log_format,
            processor_options=processor_options,
        )
        asyncio.run(run_gateway(settings, announce=lambda url: click.echo(f"ready {url}")))
    except (StartRefusedError, EnvoyMissingError, ChildDiedError, StoppedAtOnceError) as problem:
        raise click.ClickException(str(problem)) from problem


def _read_valid_policy(path: Path) -> Policy:
    try:
        return read_policy(read_text(path, "--policy"), source=str(path))
    except PolicyError as problem:
        raise click.ClickException(f"--policy {path}: {problem}") from problem
