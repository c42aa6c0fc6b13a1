"""Models: loading, forward passes, key-value caches and sampling, on torch and transformers."""
