"""The click group whose commands are imported when they are called."""

import click

from extproc import __version__
from extproc.app.cli import CLICK_COMMANDS, PLAIN_COMMANDS, load


class LazyGroup(click.Group):
    """A group that knows its commands' names from a table and imports only what it needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(CLICK_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = CLICK_COMMANDS.get(cmd_name)
        if target is None:
            return None
        command = load(target)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=LazyGroup,
    epilog=f"Without extras: {', '.join(sorted(PLAIN_COMMANDS))}" if PLAIN_COMMANDS else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="deltafence")
def root() -> None:
    """Repeat an LLM request only while nothing of its answer was delivered; after that, end the stream honestly."""
