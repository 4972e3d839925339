"""Floor 2: the arithmetic. Pure: ``step(state, snapshot) -> (state, readings)`` and what it is made of."""
