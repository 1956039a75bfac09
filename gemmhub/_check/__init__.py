"""Whether a result is right: spot checks, comparison of backends."""
