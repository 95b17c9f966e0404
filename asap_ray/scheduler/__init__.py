"""Scheduling policies of one prefill instance (3.3): pure, with time as an argument."""
