"""Writes the reference table of docs/policy.md from proto/policy.schema.json; with ``--check`` only compares.

The table lies between the two marks below; everything else in the page is written by hand.
"""

import json
import sys
from pathlib import Path

from extproc.routes.annotations import PREFIX, annotation_key
from extproc.routes.schema import LEAVES, Leaf

PAGE = Path(__file__).parent.parent / "docs" / "policy.md"
BEGIN = "<!-- reference: written by scripts/policy_reference.py from proto/policy.schema.json -->"
END = "<!-- end of reference -->"


def values_of(leaf: Leaf) -> str:
    """The values that a key may have, in a few words."""
    rules = leaf.rules
    if "const" in rules:
        return f"only `{json.dumps(rules['const'])}`"
    if "enum" in rules:
        return ", ".join(f"`{word}`" for word in rules["enum"])
    if leaf.kind == "array":
        return "both, always"
    if leaf.kind == "boolean":
        return "`true`, `false`"
    return f"{leaf.kind}, {rules['minimum']} to {rules['maximum']}"


def reference() -> str:
    """The table, one row a key."""
    rows = ["| key | annotation | values | default | meaning |", "|---|---|---|---|---|"]
    for leaf in LEAVES.values():
        cells = (
            f"`{leaf.path}`",
            f"`{PREFIX}{annotation_key(leaf.path)}`",
            values_of(leaf),
            f"`{json.dumps(leaf.default)}`",
            leaf.rules["description"],
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def page_with_reference(page: str) -> str:
    """``page`` with a fresh table between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{reference()}\n{END}{after}"


def main() -> int:
    """Exit status 1 where ``--check`` finds the page stale."""
    page = PAGE.read_text(encoding="utf-8")
    fresh = page_with_reference(page)
    if "--check" in sys.argv[1:]:
        if page != fresh:
            print(f"{PAGE} is stale: run .venv/bin/python scripts/policy_reference.py")
        return int(page != fresh)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
