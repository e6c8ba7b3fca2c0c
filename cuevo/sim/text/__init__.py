"""PTX text to a `Module`: tokens, syntax, types, and what can be said of it before it runs."""
