"""Where a network runs."""
