"""Stages behind the token stream: phrases, speech, avatar cues, scene prompts."""
