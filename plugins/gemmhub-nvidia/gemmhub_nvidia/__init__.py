"""The driver, NVRTC, launches, scratch memory and PTX wrappers that gemmhub's CUDA backends share."""
