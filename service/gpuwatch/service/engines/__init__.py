"""Where blocking work runs."""
