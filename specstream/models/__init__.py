"""Models known by name: catalogue, download and local folders."""
