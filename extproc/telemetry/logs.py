"""Log lines: one per transition of a request, as JSON for machines or as text for people (R4).

Values from outside (model names, what a replica said) are quoted wherever they could end a line or look like a field.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TextIO

from extproc.journal.records import EventKind
from extproc.telemetry.witness import Transition, TurnedAway

LOGGER: Final = logging.getLogger("deltafence.request")

VALUE_LENGTH_MAX: Final = 1_000
"""Of one value in a line; what a replica says can be long."""

_JSON: Final = json.JSONEncoder(ensure_ascii=False, default=str)

_BUILT_IN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    """What ``--log-format`` chooses."""

    TEXT = "text"
    JSON = "json"


def configure_logging(log_format: LogFormat, stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send this process's log to a stream (stderr), in one format, replacing what was set up before."""
    lines = logging.StreamHandler(sys.stderr if stream is None else stream)
    lines.setFormatter(JsonLines() if log_format is LogFormat.JSON else TextLines())
    logging.basicConfig(level=level, handlers=[lines], force=True)
    # No line names a thread or a process, so nobody looks them up for each (logging HOWTO, "Optimization").
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class RequestLog:
    """A subscriber that writes one line per transition."""

    def saw(self, transition: Transition) -> None:
        """An admitted request has moved."""
        event = transition.event
        fields = {
            "request_id": event.request_id,
            "attempt_id": event.attempt_id,
            "replica": event.replica,
            "from_phase": transition.phase_before,
            "to_phase": transition.after.phase,
            **event.detail,
            "trace_id": transition.trace_id,
        }
        level = _level(transition)
        if LOGGER.isEnabledFor(level):
            # Not LOGGER.log, which would first look up its caller: no line names a place in the code.
            LOGGER.handle(LOGGER.makeRecord(LOGGER.name, level, "", 0, event.kind, (), None, extra={"fields": fields}))

    def turned_away(self, turned_away: TurnedAway) -> None:
        """A request was not admitted."""
        fields = {"request_id": turned_away.request_id, "api": turned_away.api, "error_code": turned_away.code}
        LOGGER.warning("turned_away", extra={"fields": fields})


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in _fields(record).items() if key not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _JSON.encode(line)


class TextLines(logging.Formatter):
    """``time level logger message key=value ...``; a value with spaces or control characters is quoted as in JSON."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        words = [_time(record), record.levelname, record.name, message if message.isprintable() else json.dumps(message)]
        words += [f"{key}={_word(value)}" for key, value in _fields(record).items()]
        if record.exc_info:
            words.append("\n" + self.formatException(record.exc_info))
        return " ".join(words)


def _level(transition: Transition) -> int:
    match transition.event.kind:
        case EventKind.ATTEMPT_FAILED | EventKind.FENCE_GIVEN_UP | EventKind.REPEAT_REFUSED:
            return logging.WARNING
        case EventKind.ENDED if transition.after.outcome in ("interrupted", "failed"):
            return logging.WARNING
        case _:
            return logging.INFO


def _time(record: logging.LogRecord) -> str:
    """Milliseconds are cut off, not rounded, after the float was rounded to the microseconds that it stands for."""
    second, microseconds = divmod(round(record.created * 1_000_000), 1_000_000)
    return f"{_second(second)}.{microseconds // 1000:03d}Z"


@lru_cache(maxsize=1)
def _second(since_epoch: int) -> str:
    """Many lines share their second, and writing it down is most of a time's work."""
    return datetime.fromtimestamp(since_epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller gave as ``extra``: a mapping called ``fields``, and single values beside it."""
    given = {key: value for key, value in vars(record).items() if key not in _BUILT_IN}
    nested = given.pop("fields", None)
    if isinstance(nested, Mapping):
        given |= nested
    return {key: _cut(value) for key, value in given.items() if value is not None}


def _cut(value: object) -> object:
    if isinstance(value, str) and len(value) > VALUE_LENGTH_MAX:
        return value[:VALUE_LENGTH_MAX] + "…"
    return value


def _word(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and " " not in text and '"' not in text and "=" not in text
    return text if plain and text else _JSON.encode(text)
