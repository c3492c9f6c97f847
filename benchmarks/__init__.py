"""Measured ratios against named peers: ``python -m benchmarks [NAME ...] [--quick]``.

The peers are written here to their documented behaviour and never enter the product packages.
"""
