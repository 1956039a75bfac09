"""A plugin that fails in every way a plugin can. Each entry point of the tests names one way:

``gemmhub_example_bad.import_raises`` and its like fail while they are imported; the objects in ``hooks``
fail while they are registered, in their hook, or describe nonsense; those in ``backend`` describe a backend
that fails later.
"""
