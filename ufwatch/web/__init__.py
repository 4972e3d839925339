"""Floor 4: the agent's HTTP side."""
