"""One file an op; each defines `SPEC`. They are discovered, not listed."""
