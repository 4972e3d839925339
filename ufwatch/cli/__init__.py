"""Floor 5: one file per verb."""
