"""Edges to a device, behind one protocol."""
