"""Measured ratios against named peers: ``python -m benchmarks [NAME ...] [--quick]``.

The peers are reimplemented here from their documented behaviour; the product packages never import them.
"""
