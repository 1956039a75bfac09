"""Ends the interpreter while it is imported, as scripts without a main guard do."""

raise SystemExit("usage: gemmhub_example_bad FILE")
