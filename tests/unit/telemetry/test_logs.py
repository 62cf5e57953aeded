"""One line per transition, whatever a model is called."""

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from extproc.contract.errors import ErrorCode
from extproc.telemetry.logs import LogFormat, RequestLog, TextLines, configure_logging
from extproc.telemetry.witness import Witness
from tests.unit.telemetry.events import INTERRUPTED, REFUSED, REPEATED, admitted


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


def lines_of(log_format: LogFormat, events) -> list[str]:
    stream = io.StringIO()
    configure_logging(log_format, stream)
    witness = Witness([RequestLog()])
    for event in events:
        witness.saw(event)
    return stream.getvalue().splitlines()


def test_each_transition_is_one_json_line_with_its_ids_and_phases() -> None:
    lines = [json.loads(line) for line in lines_of(LogFormat.JSON, REPEATED)]
    assert [line["message"] for line in lines] == [str(event.kind) for event in REPEATED]
    failed = lines[3]
    assert {key: value for key, value in failed.items() if key not in ("time", "trace_id")} == {
        "level": "warning",
        "logger": "deltafence.request",
        "message": "attempt_failed",
        "request_id": "req_01JTEST",
        "attempt_id": "att_01JA",
        "replica": "10.0.0.1:8000",
        "from_phase": "prefill",
        "to_phase": "fencing",
        "cause": "replica_gone",
        "evidence": "closed by the peer",
        "fencing": "confirm",
    }
    assert len({line["trace_id"] for line in lines}) == 1


def test_refused_repeat_is_one_warning_with_its_gate_and_evidence() -> None:
    lines = [json.loads(line) for line in lines_of(LogFormat.JSON, REFUSED)]
    (line,) = [line for line in lines if line["message"] == "repeat_refused"]
    assert line["level"] == "warning"
    told = {"gate": "source_attempt_fenced", "attempts": 1, "cause": "uncertain", "evidence": "silent"}
    assert told.items() <= line.items()


def test_text_line_has_the_same_fields_and_quotes_what_has_spaces() -> None:
    line = lines_of(LogFormat.TEXT, INTERRUPTED)[3]
    assert "INFO deltafence.request cancel_sent request_id=req_01JTEST attempt_id=att_01JA" in line
    assert 'why="connection closed by the peer in the response body"' in line


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_injected_line_breaks_and_fields_stay_inside_their_value(log_format: LogFormat) -> None:
    model = 'x"\n2026-01-01T00:00:00.000Z INFO root forged=yes\r\x1b[2J' + "y" * 5_000
    (line,) = lines_of(log_format, [admitted(model=model)])
    assert len(line) < 3_000
    assert "\x1b" not in line
    if log_format is LogFormat.JSON:
        assert json.loads(line)["model"].startswith(model[:100])


def test_exception_and_extra_of_other_loggers_are_in_the_line() -> None:
    stream = io.StringIO()
    configure_logging(LogFormat.JSON, stream)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("deltafence.processor").exception("the session broke", extra={"request_id": "req_1"})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["request_id"]) == ("error", "req_1")
    assert line["exception"].endswith("ValueError: broken")


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    configure_logging(LogFormat.TEXT, stream, logging.WARNING)
    witness = Witness([RequestLog()])
    for event in REFUSED:
        witness.saw(event)
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["WARNING"] * 4


def time_of(created: float) -> str:
    """The first word of a line of a record that was made so many seconds after the epoch."""
    record = logging.makeLogRecord({"created": created, "name": "deltafence", "levelname": "INFO", "msg": "x"})
    return TextLines().format(record).split()[0]


@pytest.mark.parametrize(
    ("created", "written"),
    [
        (1_700_000_000.0, "2023-11-14T22:13:20.000Z"),
        (1_700_000_000.377, "2023-11-14T22:13:20.377Z"),  # as a float, a little less
        (1_700_000_000.0309, "2023-11-14T22:13:20.030Z"),
        (1_700_000_000.999, "2023-11-14T22:13:20.999Z"),
        (1_700_000_000.9999998, "2023-11-14T22:13:21.000Z"),
        (1_704_067_199.999, "2023-12-31T23:59:59.999Z"),
        (1_704_067_200.0, "2024-01-01T00:00:00.000Z"),
    ],
)
def test_time_is_utc_with_its_milliseconds(created: float, written: str) -> None:
    assert time_of(created) == written


def test_each_time_is_its_own_also_where_seconds_pass_repeat_or_go_back() -> None:
    began = 1_700_000_000_990
    for ms in (*range(began, began + 30), began, began + 3_600_000, began + 1, *range(began + 2_020, began + 1_990, -1)):
        moment = datetime.fromtimestamp(ms / 1000, UTC)
        assert time_of(ms / 1000) == moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_request_that_was_turned_away_is_one_line() -> None:
    stream = io.StringIO()
    configure_logging(LogFormat.JSON, stream)
    Witness([RequestLog()]).turned_away(request_id="req_1", api="chat", code=ErrorCode.DRAINING)
    line = json.loads(stream.getvalue())
    assert (line["message"], line["request_id"], line["error_code"]) == ("turned_away", "req_1", "draining")
