"""Ascend dies: the kernels of csrc/ascend behind the seams of `protocol.py`."""
