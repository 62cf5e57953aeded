"""Commands on the pages are ones that our programs take; those that need no cluster and no vLLM are run, against a gateway that
has just broken an answer off."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from extproc.app.cli import CLICK_COMMANDS, PLAIN_COMMANDS, load
from extproc.contract.headers import REQUEST_ID
from extproc.links.listening import free_port, free_ports
from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from tests.docs.pages import DOCS, PAGES, ROOT, commands, inline_code, shell_lines
from tests.docs.typing_shell import shell
from tests.telemetry.running import Running, running

WORDS = ("…", "...", "|-")


def our_commands(page: Path) -> list[str]:
    """What follows ``deltafence`` in every command of a page, in blocks and between words."""
    written = [*shell_lines(page), *(command.line for command in commands(page)), *inline_code(page)]
    return [found for text in written for found in re.findall(r"(?:^|[|;/] ?)deltafence ([a-z][^|;&>#]*)", text)]


def parse(words: list[str]) -> None:
    """Raises click.ClickException or KeyError for a command, subcommand or option that does not exist."""
    name, *rest = words
    if name in PLAIN_COMMANDS:
        return
    command = load(CLICK_COMMANDS[name])
    if isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(name, rest, resilient_parsing=True).close()


@pytest.mark.parametrize(
    ("page", "line"),
    [(page, line) for page in PAGES if page.name != "cli.md" for line in our_commands(page)],
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_every_command_of_ours_exists_with_its_options(page: Path, line: str) -> None:
    parse([word for word in shlex.split(line) if not any(mark in word for mark in WORDS)])


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        written = [*shell_lines(page), *(command.line for command in commands(page)), *inline_code(page)]
        named = {found for text in written for found in re.findall(r"^make ([a-z-]+)", text)}
        assert named <= targets, page


def test_nobody_is_sent_to_a_registry_that_does_not_have_us() -> None:
    """The package is on none, so whoever took the name there could put anything into a model's image."""
    for page in [*PAGES, *(ROOT / "extproc").rglob("*.py")]:
        assert not re.search(r"pip install ['\"]?deltafence", page.read_text()), page


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A gateway whose client has just lost its answer."""

    gateway: Running
    replica: ReplicaProcess
    request_id: str
    environment: dict[str, str]

    def filled_in(self, line: str) -> str:
        """A page's command with this gateway in the places that the page leaves open."""
        line = line.replace("--db …", f"--db {self.environment['DELTAFENCE_JOURNAL']}")
        line = re.sub(r"req_\w*…", self.request_id, line)
        line = line.replace("http://replica:8000", self.replica.url)
        line = line.replace(" FILE", f" {self.environment['POLICY']}")
        return line + " --once" if line.startswith("deltafence top") else line

    async def run(self, line: str) -> str:
        """What it prints. Fails where it fails."""
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", self.filled_in(line)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self.environment,
        )
        printed = (await process.communicate())[0].decode()
        assert process.returncode == 0, f"$ {line}\n{printed}"
        return printed


@asynccontextmanager
async def trouble(directory: Path) -> AsyncIterator[Trouble]:
    journal, policy = directory / "journal.db", directory / "policy.yaml"
    policy.write_text("mode: enforce\n")
    broken = Fault(where=Where.MID_DECODE, what=What.RESET, times=1, deltas=3, header=REQUEST_ID)
    async with start_replica(Settings(tokens=6, faults=(broken,))) as replica:
        options = ("--replica", replica.url, "--journal", journal, "--policy", policy)
        async with running(*options, directory=directory) as gateway:
            answer = await gateway.chat()
            await gateway.scrape_once("deltafence_replica_verdict{")
            environment = {
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "ADMIN": gateway.admin,
                "DELTAFENCE_JOURNAL": str(journal),
                "POLICY": str(policy),
                "COLUMNS": "200",
            }
            yield Trouble(
                gateway=gateway,
                replica=replica,
                request_id=answer.headers["x-deltafence-request-id"],
                environment=environment,
            )


OPERATIONS = {
    "deltafence top --admin $ADMIN": "The answer broke off",
    "deltafence top": None,  # a name, not a command to type
    "deltafence drain": None,
    "deltafence journal show req_… --db …": "upstream_decode_interrupted",
    "deltafence journal verify --db …": "1 request",
    'curl -s "$ADMIN/deltafence/v1/requests?outcome=interrupted&since_s=3600"': "Interrupted after 3 output tokens",
    "curl -s $ADMIN/deltafence/v1/replicas": '"evidence"',
    "deltafence policy explain --route chat --admin $ADMIN": "max_attempts",
    "deltafence policy explain --admin $ADMIN": "max_attempts",
    "deltafence policy lint FILE": "",
    "deltafence health http://replica:8000": "idle",
}
"""Every command of the operations page, and what its answer holds."""


async def test_every_command_of_the_operations_page_answers_its_question(tmp_path) -> None:
    page = {code for code in inline_code(DOCS / "operations.md") if re.match(r"(deltafence|curl) ", code)}
    assert page == set(OPERATIONS)
    async with trouble(tmp_path) as stage:
        for line, expected in OPERATIONS.items():
            if expected is not None:
                assert expected in await stage.run(line), line


async def test_every_command_of_the_journal_page_answers(tmp_path) -> None:
    page = [line for line in shell_lines(DOCS / "journal.md") if line.startswith("deltafence ")]
    assert len(page) == 3
    async with trouble(tmp_path) as stage:
        printed = [await stage.run(line) for line in page]
    assert "upstream_decode_interrupted" in printed[0]
    assert stage.request_id in printed[1]


async def test_gateway_of_the_observe_page_observes(tmp_path) -> None:
    (up,) = [line for line in shell_lines(DOCS / "observe.md") if line.startswith("deltafence up")]
    (policy,) = re.findall(r"```yaml\n# policy.yaml\n(.*?)```", (DOCS / "observe.md").read_text(), re.DOTALL)
    (tmp_path / "policy.yaml").write_text(policy)
    front, admin = free_ports(2)
    async with start_replica(Settings(name="a")) as a, start_replica(Settings(name="b")) as b, shell(tmp_path) as typed:
        up = up.replace(":8001", f":{a.port}").replace(":8002", f":{b.port}")
        up = up.replace("deltafence up", f"deltafence up --listen 127.0.0.1:{front} --admin 127.0.0.1:{admin}")
        await typed.type(f"{up} > ready 2> log & GATEWAY=$!")
        await typed.type("until grep -q ready ready; do kill -0 $GATEWAY || break; sleep 0.1; done")
        assert '"mode": "observe"' in await typed.type(f"curl -s http://127.0.0.1:{admin}/deltafence/v1/routes")
        assert "0" in (await typed.type("kill $GATEWAY; wait $GATEWAY; echo $?")).split()


async def test_probe_of_the_health_page_answers_the_kubelet(tmp_path) -> None:
    (probe,) = [line for line in shell_lines(DOCS / "health.md") if line.startswith("deltafence probe")]
    async with start_replica(Settings()) as replica, shell(tmp_path) as typed:
        port = free_port()
        line = probe.replace("http://127.0.0.1:8000", replica.url).replace(":9091", f":{port}")
        await typed.type(f"{line} 2> log & PROBE=$!")
        pages = f"http://127.0.0.1:{port}"
        await typed.type(f"until curl -sf {pages}/readyz > /dev/null; do kill -0 $PROBE || break; sleep 0.1; done")
        assert "200" in await typed.type(f"curl -s -o /dev/null -w '%{{http_code}}\\n' {pages}/livez")
        assert '"idle"' in await typed.type(f"curl -s {pages}/verdict")
