"""HTML from templates. Everything is escaped, and nothing on a page is a script (the answers' CSP forbids them as well).

Model names, error texts and evidence come from outside. Besides what HTML needs, characters that print as nothing or turn the
direction of text are shown as their code, so that no name can hide or pose as another.
"""

from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES: Final = Path(__file__).parent / "templates"
TEXT_SHOWN_MAX: Final = 2_000

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""On every page."""


def render(template: str, **values: Any) -> str:  # noqa: ANN401  (whatever the template shows)
    """One page."""
    return _environment().get_template(template).render(**values)


def style_sheet() -> str:
    """The only other thing that a page needs."""
    return (TEMPLATES / "status.css").read_text(encoding="utf-8")


def shown(value: object) -> object:
    """A text without characters that can't be seen, cut to a length that a page can hold."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = value if len(value) <= TEXT_SHOWN_MAX else value[:TEXT_SHOWN_MAX] + "…"
    return text if text.isprintable() else "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text)


def ago(seconds: float) -> str:
    """How long ago, for people."""
    if seconds < 1:
        return "now"
    if seconds < 60:
        return f"{seconds:.0f} s ago"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago"


def span(seconds: float) -> str:
    """A length of time, for people."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    environment.filters |= {"ago": ago, "span": span}
    return environment
