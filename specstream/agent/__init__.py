"""A talking agent: engine, voice, avatar, prompts, ears and play-out, joined."""
