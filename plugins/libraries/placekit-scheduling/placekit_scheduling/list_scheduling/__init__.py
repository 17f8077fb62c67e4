"""List scheduling: scheduler.py, with priorities of operations from levels.py, or of a placement from placement_levels.py."""
