"""Garbage collection of the blob store (rule O7)."""
