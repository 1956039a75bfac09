"""A plugin with every fault that a plugin can have. Each entry point of the tests names one fault:

``gemmhub_example_bad.import_raises`` and its like fail while they are imported; the objects in ``hooks``
fail while they are registered, in their hook, or describe nonsense; those in ``backend`` describe a backend
that fails later.
"""
