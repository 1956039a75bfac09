"""Arrays of any other library, through DLPack or the CUDA array interface."""
