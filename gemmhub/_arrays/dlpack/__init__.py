"""All other array libraries, through DLPack or the CUDA array interface."""
