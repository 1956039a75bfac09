"""``python -m gemmhub``: the command line, where its script is not on the path."""

from gemmhub.cli.main import main

main(prog_name="gemmhub")
