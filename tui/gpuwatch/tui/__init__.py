"""What the operator sees. Imports storage only."""
