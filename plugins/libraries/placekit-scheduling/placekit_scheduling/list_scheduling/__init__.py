"""List scheduling: scheduler.py has the scheduler, levels.py the levels that its rules use, and
placement_levels.py the b-levels of a placement."""
