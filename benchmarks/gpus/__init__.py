"""Products on several GPUs of one host: ``python -m benchmarks.gpus``."""
