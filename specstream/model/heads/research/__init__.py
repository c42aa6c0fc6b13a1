"""Drafting heads that are here for research."""
