"""Attention over cached keys and values: one file per back-end."""
