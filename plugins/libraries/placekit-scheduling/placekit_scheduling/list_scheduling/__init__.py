"""List scheduling: scheduler.py has the scheduler, levels.py what its rules go by."""
