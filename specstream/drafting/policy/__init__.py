"""Chooses who proposes, and how many tokens, from measured costs and acceptance."""
