"""Drafting heads on a target's hidden states: their networks, and how their folders are read."""
