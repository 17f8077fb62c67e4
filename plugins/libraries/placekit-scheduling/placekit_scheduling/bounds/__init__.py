"""Lower bounds of the makespan: makespan.py has them all, with their proofs."""
