"""Ears: recognisers (Whisper here, or a server), turn detectors and an echo canceller."""
