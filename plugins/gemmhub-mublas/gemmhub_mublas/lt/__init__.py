"""muBLASLt, the second backend of this plugin: the same files as muBLAS has one folder above."""
