"""The rewrite rules: one module, one rule, discovered and not listed. Modules named `_x` are helpers."""
