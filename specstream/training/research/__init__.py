"""Heads for drafting methods that are here for research."""
