"""Requests to replay: recorded traces, drawn ones, their prompts, and the client that sends them."""
