"""Drafting methods that are here for research."""
