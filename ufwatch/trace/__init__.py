"""One request, followed from the look-up of a name to its last token; its spans, and those of others."""
