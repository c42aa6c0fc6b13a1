"""Measurements of exactness, speed and latency."""
