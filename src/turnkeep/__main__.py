"""`python -m turnkeep`: the command, where it is not on PATH."""

from turnkeep.cli.main import main

main()
