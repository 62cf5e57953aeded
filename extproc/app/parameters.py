"""Command-line values of our own kinds; click says which option a refused one belongs to."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.envoy_config import ToolEndpoint
from extproc.routes.problems import PolicyError
from extproc.routes.tool_route import read_tool_route
from extproc.telemetry.logs import LogFormat

SECONDS_PER_UNIT: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration_s(text: str) -> float:
    """``500ms``, ``30s``, ``5m`` or ``1h`` as seconds; a bare number is refused, since its unit would be a guess."""
    found = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h)", text)
    if found is None:
        raise ValueError(f"{text!r} is not a whole number with a unit (500ms, 30s, 5m, 1h)")
    return int(found[1]) * SECONDS_PER_UNIT[found[2]]


def parse_tool(text: str) -> ToolEndpoint:
    """``NAME=URL``, with settings of the route behind commas: ``mail=http://10.0.0.9:9000,require_key=true,wait_ms=5000``.

    They are ToolRoute's fields. Raises ValueError with every reason.
    """
    name, equals, rest = text.partition("=")
    url, *settings = rest.split(",")
    if not equals or not all("=" in setting for setting in settings):
        raise ValueError(f"{text!r} is not NAME=URL[,SETTING=VALUE...]")
    given = {key: _json_or_text(value) for key, _, value in (setting.partition("=") for setting in settings)}
    try:
        route = read_tool_route(json.dumps({"name": name, **given}))
    except PolicyError as error:
        raise ValueError("; ".join(str(problem) for problem in error.problems)) from error
    return ToolEndpoint(route=route, address=ReplicaAddress.parse(url))


def _json_or_text(value: str) -> object:
    try:
        return json.loads(value)
    except ValueError:
        return value


def read_text(file: Path, option: str) -> str:
    """What is in a file of UTF-8. Raises click.ClickException."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{option} {file} can't be read: {error}") from error


def read_secret(file: Path | None, option: str) -> str:
    """The secret in a file, without the line break that editors leave; empty without a file. Raises click.ClickException."""
    if file is None:
        return ""
    try:
        secret = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise click.ClickException(f"{option} {file}: {error}") from error
    if not secret or not secret.isprintable():
        raise click.ClickException(f"{option} {file}: the file must hold one line of printable ASCII")
    return secret


class ParsedParameter(click.ParamType[Any]):
    """A value read by a function that raises ValueError with the reason."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401  (click's own)
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as refusal:
            self.fail(str(refusal), param, ctx)


ADDRESS: Final = ParsedParameter("host:port", Address.parse)
REPLICA: Final = ParsedParameter("url", ReplicaAddress.parse)
DURATION: Final = ParsedParameter("duration", parse_duration_s)

TOOL_OPTION: Final = click.option(
    "--tool",
    "tools",
    multiple=True,
    type=ParsedParameter("name=url", parse_tool),
    metavar="NAME=URL",
    help="A tool behind the ledger, served at /tools/NAME; settings of its route follow as ,SETTING=VALUE.",
)

LOG_FORMAT_OPTION: Final = click.option(
    "--log-format",
    type=click.Choice([str(each) for each in LogFormat]),
    callback=lambda _context, _parameter, value: LogFormat(value),
    default=str(LogFormat.TEXT),
    show_default=True,
    help="One line per transition of a request, for people or for machines.",
)
