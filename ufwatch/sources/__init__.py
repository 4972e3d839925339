"""Floor 3: where numbers come from. A failed read is an answer too: health set, no values."""
