"""Thin widgets over pure renderables."""
