"""The Model protocol and the built-in models."""
