"""Which nodes of a model must stay in float32 for a 16-bit execution to be accurate, found by measuring."""
