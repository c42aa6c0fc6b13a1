"""What several commands share: options, terminal, progress, and the parts that they make."""
