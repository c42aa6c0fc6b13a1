"""Marks that show, in the audio itself, that speech is machine-made."""
