"""Measurements: what is exact, and what is fast."""
