"""Which backend runs a problem: the registry of plugins, the decision, tuning records."""
