"""``specstream bench``: its options, and each kind of figures."""
