"""Where the console's news come from."""
