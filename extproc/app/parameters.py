"""Command-line values of our own kinds; click says which option a refused one belongs to."""

import re
from collections.abc import Callable
from typing import Any, Final

import click

from extproc.app.addresses import Address, ReplicaAddress
from extproc.telemetry.logs import LogFormat

SECONDS_PER_UNIT: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration_s(text: str) -> float:
    """``500ms``, ``30s``, ``5m`` or ``1h`` as seconds; a bare number is refused, since its unit would be a guess."""
    found = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h)", text)
    if found is None:
        raise ValueError(f"{text!r} is not a whole number with a unit (500ms, 30s, 5m, 1h)")
    return int(found[1]) * SECONDS_PER_UNIT[found[2]]


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

LOG_FORMAT_OPTION: Final = click.option(
    "--log-format",
    type=click.Choice([str(each) for each in LogFormat]),
    callback=lambda _context, _parameter, value: LogFormat(value),
    default=str(LogFormat.TEXT),
    show_default=True,
    help="One line per transition of a request, for people or for machines.",
)
