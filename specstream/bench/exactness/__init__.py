"""Is the output really the target's? Enumeration, statistics, planted bugs and peers."""
