"""Speculative decoding proper: proposals, verdicts, proposers."""
