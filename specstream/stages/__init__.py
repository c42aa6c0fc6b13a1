"""Stages turn phrases into speech, avatar cues and scene prompts; the pipeline runs them."""
