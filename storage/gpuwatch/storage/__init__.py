"""What we remember: records, knobs, SQLite. Imports nothing else of gpuwatch."""
