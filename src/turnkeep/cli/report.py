"""`turnkeep report` and `turnkeep view`."""

from pathlib import Path
from typing import TYPE_CHECKING

from turnkeep.cli.output import console, file_to_write, print_json, printable, progress, replacing, writing
from turnkeep.errors import ConfigurationError
from turnkeep.rollout.view import RolloutView
from turnkeep.store.open import open_store

if TYPE_CHECKING:
    from turnkeep.report.content import Content


def write_report(url: str, rollout: str, target: Path, *, force: bool, as_json: bool) -> None:
    """Write the page of a rollout and print what is in it."""
    place = file_to_write(target, url, force=force)
    try:
        from turnkeep.report.content import gather
        from turnkeep.report.page import render_page
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    with open_store(url, create=False) as store:
        view = RolloutView(store, rollout)
        with progress(view.turn_count, "reading turns", quiet=as_json) as advance:
            content = gather(view, lambda: advance(1))
        text = render_page(content).encode()
    with writing(target), replacing(place) as file:
        file.write(text)
    if as_json:
        print_json({"file": str(target), "bytes": len(text), **_told(content)})
        return
    told = _told(content)
    words = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in told.items())
    console().print(f"{printable(str(target))}: {words}, {len(text):,} bytes", markup=False, soft_wrap=True)


def _told(content: "Content") -> dict[str, int]:
    findings = sum(len(group.places) for group in content.findings)
    gaps = len(content.rollout.gaps)
    return {"turns": len(content.cards), "generated_tokens": content.generated, "gaps": gaps, "findings": findings}


def _missing(error: ModuleNotFoundError) -> ConfigurationError:
    """A package of the extra is not installed."""
    extra = "report" if error.name in ("jinja2", "markupsafe") else "report,serve"
    return ConfigurationError(f"this needs {error.name}: pip install 'turnkeep[{extra}]'")


def view_store(url: str, port: int) -> None:
    """Serve the pages of a store until interrupted."""
    try:
        from turnkeep.report.serve import serve
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    serve(url, port, lambda address: print(f"turnkeep view of {printable(url)} on {address}", flush=True))
