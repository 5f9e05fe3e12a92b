"""Whole-graph passes: loading, cleanup, folding, precision and layout."""
