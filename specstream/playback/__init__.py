"""A spoken reply: played at the pace of speech, paused, interrupted at a word."""
