"""List scheduling. scheduler.py is the scheduler, levels.py has priorities, placement_levels.py b-levels of a placement."""
