"""Arrays of cupy."""
