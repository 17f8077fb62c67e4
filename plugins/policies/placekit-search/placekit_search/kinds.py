"""The kinds of moves; without numba, because options name them."""

KINDS = ("single", "swap", "cluster", "region", "piece", "exchange", "critical", "transfer", "order", "shift", "level")
ORDERING = ("order", "level")  # those that change priorities
