"""The choice of a backend: the registry of plugins, the decision, tuning records."""
