"""Text to phrases, and phrases to what a voice should say."""
