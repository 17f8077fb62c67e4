"""Items that are more than a sweep. Each module has `show()`, lines from the recorded rows, and `run(folder, registry)`."""
