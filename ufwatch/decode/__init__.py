"""Floor 2: bytes and foreign values in, typed values out. Pure: no clock, no socket, no logging."""
