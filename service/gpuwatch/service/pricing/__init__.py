"""What a request costs in bytes."""
