"""Usage windows in the SDK (docs/concepts/usage.md)."""
