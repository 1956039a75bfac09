"""The command line as ``python -m gemmhub``, for when its script is not on the path."""

from gemmhub.cli.main import main

main(prog_name="gemmhub")
