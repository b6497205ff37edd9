"""Options that several commands have."""

from typing import Annotated

import typer

Store = Annotated[str, typer.Option("--store", metavar="URL", help="A store: sqlite:///file.db, or a path.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of a table.")]
