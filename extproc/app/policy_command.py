"""``deltafence policy``: check policies before they are applied, and show what is in force and where it came from."""

import json
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import click

from extproc.routes.document import Document, document_of, read_layer
from extproc.routes.manifests import LintResult, lint
from extproc.routes.problems import PolicyError, child_path
from extproc.routes.resolution import EffectivePolicy, built_in, laid_over

STANDARD_INPUT: Final = "-"
COMMENT_COLUMN: Final = 56
"""Where sources begin; longer lines push theirs out."""


@click.group()
def policy() -> None:
    """Check and show route policies."""


@policy.command("lint")
@click.argument("files", nargs=-1, required=True, metavar="FILE|- ...")
@click.option("--default", "default_file", metavar="FILE", help="Default policy that the checked ones are laid over.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def lint_command(files: tuple[str, ...], default_file: str | None, as_json: bool) -> None:
    """Check policy documents, or the annotations of HTTPRoute, GRPCRoute and VirtualService manifests.

    Prints every problem with what to do about it. Exit status: 0 without problems, 1 with some, 2 where a file can't be read.
    """
    base = _effective(default_file).policy
    results = {name: lint(_text_of(name), base=base) for name in files}
    if as_json:
        click.echo(json.dumps(_lint_json(results), indent=2))
    else:
        for name, result in results.items():
            _print_lint(name, result)
    if any(result.findings for result in results.values()):
        sys.exit(1)


def _print_lint(name: str, result: LintResult) -> None:
    for finding in result.findings:
        click.echo(f"{name}: {finding}")
    if not result.findings:
        found = f"ok ({', '.join(result.checked)})" if result.checked else "nothing of deltafence's in it"
        click.echo(f"{name}: {found}")


def _lint_json(results: dict[str, LintResult]) -> dict[str, object]:
    return {
        "ok": not any(result.findings for result in results.values()),
        "checked": {name: list(result.checked) for name, result in results.items()},
        "problems": [
            {"file": name, "object": finding.subject, **asdict(finding.problem)}
            for name, result in results.items()
            for finding in result.findings
        ],
    }


@policy.command("show")
@click.argument("file", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the complete document and each key's source.")
def show_command(file: str | None, as_json: bool) -> None:
    """Show the whole policy that FILE leads to, - for standard input, as a document with each key's source beside it."""
    effective = _effective(file)
    document = document_of(effective.policy)
    if as_json:
        click.echo(json.dumps({"policy": document, "sources": dict(effective.sources)}, indent=2))
        return
    for line in _commented_lines(document, effective.sources):
        click.echo(line)


@policy.command("explain")
@click.option(
    "--route", metavar="NAME", help="A route's name in Envoy, or its object's: chat, default/chat, HTTPRoute default/chat."
)
@click.option("--admin", default="http://127.0.0.1:9090", show_default=True, metavar="URL", help="A processor's own address.")
@click.option("--json", "as_json", is_flag=True, help="Print what the processor says.")
def explain_command(route: str | None, admin: str, as_json: bool) -> None:
    """Show what a running processor has in force for a route, each key's source, and what was refused.

    It knows the routes that requests came by, and the annotated objects that it watches. Without --route: all of them, and the
    default of the others. Exit status 1 where the processor knows no such route.
    """
    report = _report_of(admin)
    routes = [entry for entry in report["routes"] if route is None or _is_meant(entry, route)]
    objects = [entry for entry in report["objects"] if route is None or _is_meant(entry, route)]
    if as_json:
        click.echo(json.dumps({**report, "routes": routes, "objects": objects}, indent=2))
    else:
        if route is None:
            _print_policy("# default, of every route that says nothing itself", report["default"])
        for entry in routes:
            _print_policy(f"# route {entry['name']}{' of ' + entry['object'] if entry['object'] else ''}", entry)
        used = {entry["object"] for entry in routes}
        for entry in objects:
            if entry["object"] not in used:
                _print_policy(f"# {entry['object']}, by which no request has come yet", entry)
            for problem in entry["refused"]:
                click.echo(f"# refused on {entry['object']}, the last good annotations stay: {problem}")
        for watch in report["watches"]:
            if watch["standing"] not in ("current", "absent"):
                click.echo(f"# {watch['collection']}: {watch['standing']}, {watch['age_s']} s old: {watch['trouble']}")
    if route is not None and not routes and not objects:
        raise click.ClickException(
            f"no request has come by a route {route!r} yet, and no object of that name is annotated; known: {_known(report)}"
        )


def _report_of(admin: str) -> Any:  # noqa: ANN401  (JSON)
    try:
        with urllib.request.urlopen(f"{admin.rstrip('/')}/deltafence/v1/routes", timeout=10) as answer:  # noqa: S310  (the user's URL)
            return json.load(answer)
    except (OSError, ValueError, HTTPException) as error:
        raise click.ClickException(f"{admin}: {error}") from error


def _is_meant(entry: dict[str, Any], route: str) -> bool:
    """Whether an entry is the route that a person means."""
    found = entry["object"] or ""
    kind_and_path = found.partition(" ")[2]
    return route in (entry.get("name"), found, kind_and_path, kind_and_path.partition("/")[2])


def _known(report: dict[str, Any]) -> str:
    names = [entry["name"] for entry in report["routes"]] + [entry["object"] for entry in report["objects"]]
    return ", ".join(dict.fromkeys(names)) or "none"


def _print_policy(title: str, entry: dict[str, Any]) -> None:
    click.echo(title)
    for line in _commented_lines(entry["policy"], entry["sources"]):
        click.echo(line)
    for error in entry["errors"]:
        click.echo(f"# refused: {error}")


def _commented_lines(document: Document, sources: Mapping[str, str], path: str = "", indent: str = "") -> Iterator[str]:
    for key, value in document.items():
        key_path = child_path(path, key)
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _commented_lines(value, sources, key_path, indent + "  ")
        else:
            yield f"{f'{indent}{key}: {json.dumps(value)}':<{COMMENT_COLUMN}}  # {sources[key_path]}"


def _effective(file: str | None) -> EffectivePolicy:
    """What a default file leads to; ends the command with every problem where it is refused."""
    if file is None:
        return built_in()
    try:
        return laid_over(
            built_in(), read_layer(_text_of(file), source="standard input" if file == STANDARD_INPUT else f"file {file}")
        )
    except PolicyError as error:
        raise click.ClickException("\n".join(f"{file}: {problem}" for problem in error.problems)) from error


def _text_of(name: str) -> str:
    try:
        return sys.stdin.read() if name == STANDARD_INPUT else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{name} can't be read: {error}") from error
