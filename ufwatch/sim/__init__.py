"""A simulated vLLM whose every derived value is known, for the demo and for tests."""
