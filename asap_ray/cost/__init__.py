"""Seconds and bytes of an instance, from the facts of the paper and the fit to them (docs/evaluation.md)."""
