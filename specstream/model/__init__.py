"""Everything that touches torch modules or transformers."""
