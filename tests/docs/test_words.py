"""R1: there is no moving and no second half of a generation, so no page, field, log line or metric has a word for it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

FORBIDDEN = re.compile(r"\b\w*(?:continu|resum(?:e|ing|ption)|migrat)\w*", re.IGNORECASE)

ALLOWED = {
    "docs/journal.md": {"migrated"},  # a database's tables
    "extproc/http2": {"CONTINUATION"},  # a frame of RFC 9113
    "extproc/kubernetes/client.py": {"continue"},  # the API's name for the next page of a list
    "extproc/sim/reading.py": {"continuous_usage_stats"},  # vLLM's option
    "extproc/storage": {"migrations"},  # of a database's tables
}
"""Words that are said of something that is no generation, per file or folder."""

TEXTS = [
    *PAGES,
    *sorted((ROOT / "extproc" / "app" / "status" / "templates").iterdir()),
    *sorted((ROOT / "deploy" / "observability").glob("*.*")),
    *sorted((ROOT / "deploy" / "k8s" / "chart").glob("*.*")),
    *sorted((ROOT / "deploy" / "k8s" / "chart" / "templates").glob("*.*")),
    *sorted((ROOT / "proto").glob("*.json")),
    *sorted((ROOT / "envoy").glob("*.j2")),
    *sorted((ROOT / "deploy" / "k8s" / "vllm").iterdir()),
    *sorted((ROOT / "deploy" / "k8s" / "chart" / "files").iterdir()),
    ROOT / "CHANGELOG.md",
]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def allowed(path: Path) -> set[str]:
    return set().union(*(words for place, words in ALLOWED.items() if relative(path).startswith(place)))


@pytest.mark.parametrize("path", TEXTS, ids=relative)
def test_page_has_no_word_for_it(path: Path) -> None:
    found = set(FORBIDDEN.findall(path.read_text()))
    assert found <= allowed(path)
    assert not FORBIDDEN.search(path.name)


def literals(tree: ast.Module) -> Iterator[str]:
    """Every string of a module that can be seen from outside: all but docstrings and bare strings."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


@pytest.mark.parametrize("path", sorted((ROOT / "extproc").rglob("*.py")), ids=relative)
def test_field_log_line_or_metric_has_no_word_for_it(path: Path) -> None:
    if path.name.endswith("_pb2.py"):
        return
    said = {word for text in literals(ast.parse(path.read_text())) for word in FORBIDDEN.findall(text)}
    assert said <= allowed(path)
