"""``deltafence top``: one look, over a real admin server, whatever a model is called."""

import asyncio

from click.testing import CliRunner, Result

from extproc.app.top_command import top
from extproc.journal.records import EventKind
from tests.unit.app.status.conftest import admin
from tests.unit.telemetry.events import FIRST, HERE, INTERRUPTED, REQUEST, admitted, happened

__all__ = ["admin"]


async def look(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, top, ["--once", *arguments], env={"COLUMNS": "200"})


async def test_one_look_shows_replicas_running_requests_and_decisions(admin) -> None:
    admin.reports["10.0.0.1:8000"] = {"verdict": "hung", "evidence": "2 running, nothing moved in 61 s", "for_s": 61}
    admin.tell(INTERRUPTED)
    admin.tell([admitted(request="req_2"), happened(EventKind.ATTEMPT_STARTED, 1, FIRST, HERE, request="req_2")])
    result = await look("--admin", admin.url)
    assert result.exit_code == 0, result.output
    for expected in (
        "serving",
        "hung",
        "2 running, nothing moved in 61 s",
        "req_2",
        "prefill 1",
        "The answer broke off",
        REQUEST,
    ):
        assert expected in result.output


async def test_hostile_names_move_no_cursor_and_are_no_markup(admin) -> None:
    admin.tell([admitted(model="[red]evil[/red]\x1b[2J\r"), happened(EventKind.ATTEMPT_STARTED, 1, FIRST, HERE)])
    result = await look("--admin", admin.url)
    assert "[red]evil[/red]\\u001b[2J\\u000d" in result.output
    assert "\x1b[2J" not in result.output


async def test_processor_that_does_not_answer_is_an_error(unused_tcp_port) -> None:
    result = await look("--admin", f"http://127.0.0.1:{unused_tcp_port}")
    assert result.exit_code == 1
    assert "refused" in result.output


async def test_what_is_not_even_http_is_an_error() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        result = await look("--admin", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert (result.exit_code, isinstance(result.exception, SystemExit)) == (1, True)
    assert "220 mail.example" in result.output
