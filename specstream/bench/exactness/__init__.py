"""Checks that the output has the target's distribution: by enumeration, by samples and by bits."""
