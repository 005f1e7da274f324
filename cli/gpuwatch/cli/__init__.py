"""The gpuwatch command."""
