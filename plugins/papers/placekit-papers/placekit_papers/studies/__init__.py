"""Items that are not just a sweep. Each module has `show()` (lines from the recorded rows) and `run(folder, registry)`."""
