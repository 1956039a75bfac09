"""Building blocks for backends: compilers and their cache, locks, corrections of estimates."""
