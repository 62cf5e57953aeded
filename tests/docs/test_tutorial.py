"""The tutorial, typed into a shell line by line, prints what it says (ports are other ones, so that it can run anywhere)."""

import re

from extproc.links.listening import free_ports
from tests.docs.pages import DOCS, Command, commands
from tests.docs.typing_shell import shell

PORTS = (8001, 8002, 8080, 9090)
ASKED_WITHOUT_OPTIONS = {8080: "--listen", 9090: "--admin"}


def on_other_ports(text: str, ports: dict[int, int]) -> str:
    for port, other in ports.items():
        text = re.sub(rf"\b{port}\b", str(other), text)
    return text


def with_other_defaults(line: str, ports: dict[int, int]) -> str:
    """The commands whose defaults are the page's ports are told the others."""
    line = line.replace("deltafence up ", f"deltafence up --listen 127.0.0.1:{ports[8080]} --admin 127.0.0.1:{ports[9090]} ")
    return line.replace("deltafence top ", f"deltafence top --admin http://127.0.0.1:{ports[9090]} ")


def matches(command: Command, printed: str) -> bool:
    """Every line of the page's output in order; ``…`` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in command.output.split("…"))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


async def test_every_command_of_the_tutorial_prints_what_the_page_says(tmp_path) -> None:
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    page = list(commands(DOCS / "tutorial.md"))
    assert len(page) > 15
    async with shell(tmp_path) as typed:
        for command in page:
            command = Command(on_other_ports(command.line, ports), on_other_ports(command.output, ports))
            printed = await typed.type(with_other_defaults(command.line, ports))
            assert matches(command, printed), f"$ {command.line}\n{printed}\ninstead of\n{command.output}"
