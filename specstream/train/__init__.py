"""Training of drafts and drafting heads for a target, on the target's own replies."""
