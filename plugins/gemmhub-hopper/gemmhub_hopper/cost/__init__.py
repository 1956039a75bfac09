"""The estimates of candidates, and their ranking."""
