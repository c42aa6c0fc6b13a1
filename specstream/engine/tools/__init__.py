"""Separates tool calls from the reply during generation, and forces or forbids calls."""
