"""The HTTP faces: inference and admin."""
