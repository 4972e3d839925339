"""Floor 3: where readings go. A sink that fails is counted and never stops another."""
