"""The reference pages of the journal and of the wire name what the code has, and nothing else."""

import ast
import dataclasses
import re

import pytest

from extproc.contract import headers
from extproc.journal.records import AttemptFacts, EventKind, RequestFacts
from extproc.sse.dialects import Dialect
from extproc.sse.terminal import terminal_event
from tests.docs.pages import DOCS, ROOT, blocks
from tests.unit.app.status.conftest import Admin, serving
from tests.unit.sse.test_terminal import client_error

SCHEMA = (DOCS / "journal-schema.md").read_text()
WIRE = (DOCS / "protocol.md").read_text()
COLUMN = re.compile(r"^    ([a-z_]+) [A-Z]", re.MULTILINE)
FENCE_ENDS = "kind"
"""The name under which the fence's two ends are noted."""


def rows(page: str, heading: str) -> dict[str, str]:
    """First cell to the rest, of the table under the heading whose first column is so called."""
    table = page.split(f"| {heading} |")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| (`[^|]+`) \|(.*)$", table, re.MULTILINE))


def words(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def details() -> dict[EventKind, set[str]]:
    """Every event's details, by the places that note them."""
    found: dict[EventKind, set[str]] = {kind: set() for kind in EventKind}
    for file in (ROOT / "extproc" / "processor").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "note" and node.args:
                kind = node.args[0]
                named = {keyword.arg for keyword in node.keywords if keyword.arg} - {"attempt_id", "replica"}
                if isinstance(kind, ast.Attribute):
                    found[EventKind[kind.attr]] |= named
                elif isinstance(kind, ast.Name) and kind.id == FENCE_ENDS:
                    found[EventKind.FENCED] |= named
    return found


def test_every_event_is_there_with_its_details() -> None:
    table = {name.strip("`"): rest for name, rest in rows(SCHEMA, "`kind`").items()}
    assert set(table) == set(EventKind)
    assert sum(map(len, details().values())) > 20
    for kind, named in details().items():
        assert named <= words(table[kind].rpartition(" | ")[2] or table[kind]), kind


def test_every_fact_is_there() -> None:
    told = {name for cell in rows(SCHEMA, "field") for name in words(cell)}
    assert told == {field.name for field in dataclasses.fields(RequestFacts)}
    told = {name for cell in rows(SCHEMA, "of an attempt") for name in words(cell)}
    assert told == {field.name for field in dataclasses.fields(AttemptFacts)}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_every_table_is_there_with_its_columns(database: str) -> None:
    files = sorted((ROOT / "extproc" / "storage" / "sql" / "migrations" / database).glob("*.sql"))
    made = {
        table: set(COLUMN.findall(body))
        for file in files
        for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)^\)", file.read_text(), re.DOTALL | re.MULTILINE)
    }
    assert not any("ALTER TABLE" in file.read_text() for file in files), "this test reads CREATE TABLE alone"
    told = {name.strip("`"): words(rest.split(" | ")[0]) for name, rest in rows(SCHEMA, "table").items()}
    assert told == made


def test_every_header_is_there() -> None:
    ours = {
        value for name, value in vars(headers).items() if name.isupper() and isinstance(value, str) and value != headers.PREFIX
    }
    assert {header for header in ours if f"`{header}`" not in WIRE} == set()


async def test_every_path_of_the_admin_address_is_there() -> None:
    told = {path for cell in rows(WIRE, "path") for path in re.findall(r"`([^`?]+)[^`]*`", cell)}
    async with serving(Admin()) as admin:
        served = admin.paths
    assert told == served


def test_meshs_own_log_is_told_all_that_ours_is() -> None:
    (lines,) = [block for block in blocks(DOCS / "metrics.md", "yaml") if "DYNAMIC_METADATA" in block]
    keys = re.compile(r"(\w+): '%DYNAMIC_METADATA\(deltafence:(\w+)\)%'")
    told, ours = keys.findall(lines), keys.findall((ROOT / "envoy" / "envoy.yaml.j2").read_text())
    assert told == ours
    assert len(told) > 3


@pytest.mark.parametrize("dialect", list(Dialect))
def test_terminal_events_have_the_form_that_is_shown(dialect: Dialect) -> None:
    (forms,) = [block for block in blocks(DOCS / "protocol.md", "text") if "data: " in block]
    shown: dict[str, str] = {}
    names = ""
    for line in forms.splitlines():
        names = line[:20].strip() or names
        shown[names] = shown.get(names, "") + line[20:] + "\n"
    (form,) = [form for names, form in shown.items() if str(dialect) in names]
    pattern = ".*".join(re.escape(part) for part in form.split("…"))
    assert re.fullmatch(pattern + "\n", terminal_event(dialect, client_error(), 12).decode(), re.DOTALL)
