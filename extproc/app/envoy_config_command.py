"""``deltafence envoy-config``: the configuration of an Envoy that somebody else runs, as in a pod."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.envoy_config import GENERATION_ROUTES, EnvoySettings, GenerationRoute, ToolEndpoint, render
from extproc.app.parameters import ADDRESS, DURATION, REPLICA, TOOL_OPTION
from extproc.decision.policy import Mode
from extproc.routes.document import layer_of
from extproc.routes.plain_tree import read_tree
from extproc.routes.problems import PolicyError

STANDARD_OUTPUT: Final = "-"
SOCKET = click.Path(path_type=Path)


@click.command("envoy-config")
@click.option("--listen", type=ADDRESS, multiple=True, required=True, help="Where clients connect; repeatable.")
@click.option("--replica", "replicas", type=REPLICA, multiple=True, required=True, help="A server's origin; once per replica.")
@click.option("--processor-socket", "processor_sockets", type=SOCKET, multiple=True, required=True, help="One per processor.")
@click.option("--egress-socket", type=SOCKET, required=True, help="Where processors send their attempts.")
@click.option("--envoy-admin", "admin_socket", type=SOCKET, required=True, help="Envoy's own admin interface.")
@click.option("--routes", type=click.Path(path_type=Path), help="YAML: name, path and policy of each generation route.")
@click.option(
    "--mode",
    type=click.Choice([str(mode) for mode in Mode]),
    default=str(Mode.ENFORCE),
    show_default=True,
    help="Of routes whose own policy says nothing; the same as the processors' default policy says.",
)
@TOOL_OPTION
@click.option("--tools-listen", type=ADDRESS, help="Where agents and replicas call the tools; not for clients.")
@click.option("--access-log", help="A file, `stdout` or `stderr`.  [default: none]")
@click.option("--replica-ca", type=click.Path(path_type=Path), help="Authorities (PEM) for https replicas.")
@click.option("--heap-bytes-max", type=click.IntRange(1), default=1 << 30, show_default=True, help="Where Envoy sheds load.")
@click.option("--max-streams", type=click.IntRange(1), default=10_000, show_default=True, help="More at once get 503.")
@click.option(
    "--stream-idle",
    type=DURATION,
    default="15m",
    show_default=True,
    help="Silence, the wait for a first delta included, before 504; above every policy's deadlines.first_delta_ms.",
)
@click.option(
    "--stream-max",
    type=DURATION,
    default="1h",
    show_default=True,
    help="The longest life of a stream; above every policy's deadlines.total_ms.",
)
@click.option("--output", default=STANDARD_OUTPUT, show_default=True, metavar="FILE", help="Where to write it.")
def envoy_config(
    *,
    listen: tuple[Address, ...],
    replicas: tuple[ReplicaAddress, ...],
    processor_sockets: tuple[Path, ...],
    egress_socket: Path,
    admin_socket: Path,
    routes: Path | None,
    mode: str,
    tools: tuple[ToolEndpoint, ...],
    tools_listen: Address | None,
    access_log: str | None,
    replica_ca: Path | None,
    heap_bytes_max: int,
    max_streams: int,
    stream_idle: float,
    stream_max: float,
    output: str,
) -> None:
    """Write the configuration file for an Envoy 1.40. Ends with the reason where a value can't work."""
    try:
        settings = EnvoySettings(
            listen=listen,
            replicas=replicas,
            processor_sockets=processor_sockets,
            egress_socket=egress_socket,
            admin_socket=admin_socket,
            routes=tuple(
                replace(route, default_mode=Mode(mode))
                for route in (GENERATION_ROUTES if routes is None else read_routes(routes))
            ),
            tools=tools,
            tools_listen=tools_listen,
            access_log=access_log,
            replica_ca=replica_ca,
            heap_bytes_max=heap_bytes_max,
            streams_max=max_streams,
            idle_s_max=round(stream_idle),
            stream_s_max=round(stream_max),
        )
        text = render(settings)
        if output == STANDARD_OUTPUT:
            click.echo(text, nl=False)
        else:
            Path(output).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise click.ClickException(str(problem)) from problem


def read_routes(path: Path) -> tuple[GenerationRoute, ...]:
    """The routes in a file: a list of ``{name, path}`` with an optional ``policy`` document.

    Raises ValueError with every problem, OSError where the file can't be read.
    """
    try:
        tree = read_tree(path.read_text(encoding="utf-8"))
    except PolicyError as error:
        raise ValueError(f"--routes {path}: {error}") from error
    if not isinstance(tree, list):
        raise ValueError(f"--routes {path}: not a list of routes")
    return tuple(_route_of(entry, f"--routes {path}: route {number}") for number, entry in enumerate(tree, start=1))


def _route_of(entry: Any, where: str) -> GenerationRoute:  # noqa: ANN401  (whatever the file holds)
    match entry:
        case {"name": str(name), "path": str(path), **rest} if not rest.keys() - {"policy"}:
            policy = rest.get("policy")
        case _:
            raise ValueError(f"{where}: it has a name, a path and perhaps a policy, and nothing else")
    if policy is None:
        return GenerationRoute(name=name, path=path)
    try:
        return GenerationRoute(name=name, path=path, policy=layer_of(policy, source=where).document)
    except PolicyError as error:
        problems = "\n".join(f"{where} ({name}): policy: {problem}" for problem in error.problems)
        raise ValueError(problems) from error
