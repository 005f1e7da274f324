"""What we decide and run."""
