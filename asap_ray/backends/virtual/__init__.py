"""Virtual time: the loops of `engine/` as they are, with costs instead of computation (ADR 0005)."""
