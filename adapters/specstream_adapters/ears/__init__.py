"""Ears: `WhisperRecognizer` (speech to text) and `SileroDetector` (voice activity). Extra ``ears``."""
