"""List scheduling: scheduler.py has the scheduler, levels.py the levels that its rules use."""
