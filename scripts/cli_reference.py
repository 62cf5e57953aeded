"""Write docs/cli.md from the commands' own help; with --check, fail where the page is another."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from extproc.app.cli import CLICK_COMMANDS, PLAIN_COMMANDS, load

PAGE: Final = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD: Final = """# Command line

`deltafence COMMAND --help` prints what is here. Durations have a unit (`500ms`, `30s`, `5m`, `1h`), addresses are `HOST:PORT`.
`probe` needs the wheel alone; every other command needs its extra `gateway`, which `make setup` installs.

Made by `scripts/cli_reference.py`.
"""


def sections() -> Iterator[str]:
    """One section a command, with its subcommands."""
    for name in sorted({**CLICK_COMMANDS, **PLAIN_COMMANDS}):
        if name in PLAIN_COMMANDS:
            yield section(name, plain_help(name))
            continue
        command = load(CLICK_COMMANDS[name])
        yield section(name, click_help(command, name))
        if isinstance(command, click.Group):
            for part, subcommand in sorted(command.commands.items()):
                yield section(f"{name} {part}", click_help(subcommand, f"{name} {part}"))


def section(name: str, help_text: str) -> str:
    return f"## deltafence {name}\n\n```text\n{help_text.strip()}\n```\n"


def click_help(command: click.Command, name: str) -> str:
    with click.Context(command, info_name=f"deltafence {name}", max_content_width=110, terminal_width=110) as shown:
        return command.get_help(shown)


def plain_help(name: str) -> str:
    environment = {**os.environ, "COLUMNS": "110"}
    command = [sys.executable, "-m", "extproc.app", name, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def main() -> None:
    text = "\n".join((HEAD, *sections()))
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE} is not what scripts/cli_reference.py writes; run it")


if __name__ == "__main__":
    main()
