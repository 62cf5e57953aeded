"""docs/limits.md names every bound of the product with its value."""

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "limits.md").read_text()
ROW = re.compile(r"^\| [^|]* \| (?P<limit>[^|]+) \| `(?P<module>[\w/]+\.py)` `(?P<name>[\w.]+)` \|", re.MULTILINE)
TEST_PROGRAMS = ("extproc/sim/", "extproc/faults/")
NO_BOUNDS = {("worker/settings.py", "LEASE_TTL_MAX_MS")}
"""An environment variable's name."""
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1_000, "h": 3_600_000, "d": 86_400_000}
"""Bytes, or milliseconds."""
TEMPLATE_SETTING = re.compile(
    r"\b(\w*(?:timeout|limit|max|window|interval|duration|retries|threshold|power_of_two|probes|keepalive_time)\w*): *([0-9.]+s?)"
)

Bound = tuple[str, str]
"""Its module's path in the package, and its name there."""


def bounds() -> Iterator[Bound]:
    """Constants with MAX in their names, and defaults of fields that end in ``_max``."""
    for path in sorted((ROOT / "extproc").rglob("*.py")):
        where = str(path.relative_to(ROOT))
        if where.startswith(TEST_PROGRAMS):
            continue
        module = where.removeprefix("extproc/")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and "_MAX" in node.target.id:
                yield module, node.target.id
            if isinstance(node, ast.ClassDef):
                yield from ((module, f"{node.name}.{field}") for field in limited_fields(node))


def limited_fields(node: ast.ClassDef) -> Iterator[str]:
    fields = (entry for entry in node.body if isinstance(entry, ast.AnnAssign) and entry.value is not None)
    names = (field.target.id for field in fields if isinstance(field.target, ast.Name))
    return (name for name in names if re.search(r"_max(_|$)", name))


def value_of(bound: Bound) -> float:
    """In bytes, milliseconds or plain numbers."""
    path, name = bound
    module = importlib.import_module("extproc." + path.removesuffix(".py").replace("/", "."))
    owner, _, field = name.rpartition(".")
    if owner:
        (found,) = [each.default for each in dataclasses.fields(getattr(module, owner)) if each.name == field]
    else:
        found = getattr(module, name)
    is_in_seconds = re.search(r"_s(_|$)", name.lower())
    return float(found) * (1_000 if is_in_seconds else 1)


def written() -> dict[Bound, str]:
    return {(row["module"], row["name"]): row["limit"] for row in ROW.finditer(PAGE)}


@pytest.mark.parametrize("bound", sorted(set(bounds()) - NO_BOUNDS), ids=" ".join)
def test_every_bound_is_on_the_page_with_its_value(bound: Bound) -> None:
    assert bound in written(), f"docs/limits.md does not name {bound}"
    number, _, unit = written()[bound].partition(" ")
    assert float(number.replace(",", "")) * UNITS[unit] == value_of(bound)


def test_the_page_names_nothing_that_is_gone() -> None:
    assert set(written()) <= set(bounds())


@pytest.mark.parametrize(("setting", "value"), sorted(set(TEMPLATE_SETTING.findall((ROOT / "envoy/envoy.yaml.j2").read_text()))))
def test_every_number_of_the_envoy_template_is_on_the_page(setting: str, value: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and f"`{setting}`" in line.split("|")[1]]
    assert any(f"`{value}`" in row.split("|")[2] for row in rows), f"docs/limits.md does not say {setting}: {value}"
