"""Floor 2: what we write, as text. Pure."""
