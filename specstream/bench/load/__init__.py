"""Figures under load: many requests, callers and sessions at once, whole conversations."""
