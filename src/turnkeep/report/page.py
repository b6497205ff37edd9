"""The page of a rollout and the list of a store, as HTML: self-contained, and safe whatever a model wrote.

Every string that a template writes is escaped and made visible (`turnkeep.report.visible`), and a content security
policy lets nothing run but the one script whose digest it names, and nothing be loaded at all.
"""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from turnkeep.report.arrays import carry
from turnkeep.report.content import Content
from turnkeep.report.glance import Glance
from turnkeep.report.visible import visible, visible_plain

_FOLDER = Path(__file__).parent / "templates"


def render_page(content: Content, home: str | None = None) -> str:
    """The page of a rollout; `home` is where its list is, for a page that is served."""
    return _render("rollout.html", content=content, home=home)


def render_list(store: str, glances: Sequence[Glance]) -> str:
    """The list of a store's rollouts."""
    return _render("list.html", store=store, glances=glances)


def render_error(title: str, message: str) -> str:
    """A page that says what went wrong."""
    return _render("error.html", title=title, message=message)


def policy() -> str:
    """The content security policy of every page: nothing but its own script and style."""
    return (
        f"default-src 'none'; script-src '{_digest('page.js')}'; style-src '{_digest('page.css')}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(name: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(_source(name).encode()).digest()).decode()


@cache
def _source(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _render(template: str, **members: Any) -> str:
    text = _environment().get_template(template)
    return text.render(policy=policy(), css=Markup(_source("page.css")), js=Markup(_source("page.js")), **members)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= {"plain": visible_plain, "number": number, "size": size, "nats": nats, "carry": carry}
    return environment


def _finalize(value: Any) -> Any:
    """What a template writes: text that is no markup is made visible."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def number(value: float | None) -> str:
    """`12,345`, or a dash where it is not known."""
    return "–" if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """Bytes as a person reads them."""
    if value is None:
        return "–"
    if value < 10_000:
        return f"{value:,} B"
    return f"{value / 1000:,.0f} kB" if value < 10_000_000 else f"{value / 1_000_000:,.1f} MB"


def nats(value: float | None) -> str:
    """A log prob to three places."""
    return "–" if value is None else f"{value:.3f}"
