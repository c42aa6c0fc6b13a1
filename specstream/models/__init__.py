"""Models that are known by name: where they come from, and the folder they are kept in."""
