"""Tools around the optimizer: inspect, diff, extract, and the report as a page."""
