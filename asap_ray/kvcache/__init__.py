"""The KV cache of one attention group: its blocks, its prefixes, its tensors, and the leases of a hand-off."""
