"""Drafting heads on a target's hidden states: how their folders are recognised, read and refused."""
