"""Error budgets: counted per target, kept over restarts, reported."""
