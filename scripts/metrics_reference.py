"""Write the table of docs/metrics.md from the instruments' own; with --check, fail where the page says something else."""

import sys
from pathlib import Path
from typing import Final

from extproc.telemetry.instruments import INSTRUMENTS, Instrument

PAGE: Final = Path(__file__).parents[1] / "docs" / "metrics.md"
BEGIN: Final = "<!-- made by scripts/metrics_reference.py from here -->\n"
END: Final = "<!-- to here -->\n"


def table() -> str:
    """One row a metric."""
    rows = ["| in Prometheus | in OpenTelemetry | kind | labels | meaning |", "|---|---|---|---|---|"]
    rows += [row(instrument) for instrument in INSTRUMENTS]
    return "\n".join(rows) + "\n"


def row(instrument: Instrument) -> str:
    """Labels as Prometheus spells them."""
    labels = ", ".join(f"`{label.replace('.', '_')}`" for label in instrument.labels) or "none"
    names = f"| `{instrument.prometheus_name}` | `{instrument.name}` ({instrument.unit})"
    return f"{names} | {instrument.kind} | {labels} | {instrument.meaning} |"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    text = page[:begin] + table() + page[end:]
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif page != text:
        sys.exit(f"{PAGE} is not what scripts/metrics_reference.py writes; run it")


if __name__ == "__main__":
    main()
