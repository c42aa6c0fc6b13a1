"""Speculative decoding: proposals, their verification, and the proposers that make them."""
