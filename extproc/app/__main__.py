"""``python -m extproc.app`` is ``deltafence``: how one process of ours starts another with its own interpreter."""

from extproc.app.cli import main

main()
