"""Names and sizes of the numbers and arrays that the compiled kernel works on. Importing this imports numba."""

from __future__ import annotations

from placekit_scheduling.fields import Field, fields

FIELDS = [
    # operations, tensors, edges, tasks, devices, groups; queues, which compete for channels from `first_shared` on
    *fields("number", "n t e tasks size g n_queues first_shared n_channels n_sources n_roots n_levels n_launched"),
    *fields("number", "order"),  # of ready tasks: 0 first come, 1 `fixed_rank`, 2 the placement's priorities
    # number of edges from sources; `Rules.prefetch` + 1, or 0 if all copies begin at time 0
    *fields("number", "n_reads window"),
    *fields("flag", "memory multicast bulk noisy ahead arrival record hosted"),
    # the problem
    *fields("ints", "group_of n_inputs output_ptr input_ptr input_tensor consumer_ptr consumer_op storage"),
    *fields("ints", "in_place writers"),  # whether a tensor writes over one of another kernel; how many do, by owner
    *fields("ints", "sources roots fixed_rank level_ptr level_op"),
    *fields("ints", "launch_order host"),  # kernels in the order of their launches; the host of each device
    *fields("ints", "read_op read_edge read_tensor read_source read_row"),
    *fields("ints", "capacity queue_of_route held_ptr held channel_capacity user_ptr user"),
    *fields("floats", "op_s tensor_bytes home_bytes op_bytes unread_bytes group_bytes latency_s s_per_byte noise"),
    *fields("floats", "launches launch_s"),  # of each operation; seconds of one, by device
    *fields("floats", "ticks_per_s"),  # one number, see ticks.py: what is called seconds here may be ticks
    # working space for one placement
    *fields("scratch_ints", "home missing rank done fresh", "n"),
    *fields("scratch_ints", "readers tensor_home first_copy n_copies", "t"),
    *fields("scratch_ints", "copy_tensor copy_dst copy_readers", "e"),
    *fields("scratch_ints", "link child far_task", "tasks"),
    *fields("scratch_ints", "near_task", "span"),
    *fields("scratch_ints", "started", "tasks_if_arrival"),  # tasks in the order in which they started
    *fields("scratch_ints", "head tail free mark touched candidates", "n_queues"),
    *fields("scratch_ints", "channel_free", "n_channels"),
    *fields("scratch_ints", "to to_readers to_rank", "size"),
    *fields("scratch_ints", "gated reader_after", "n_if_ahead"),
    *fields("scratch_ints", "reads_first reads_last reads_gate reads_count", "size"),
    *fields("scratch_ints", "open_copy open_until", "rows"),
    *fields("scratch_ints", "copy_reads copy_rank gated_after read_after requested", "n_reads"),
    *fields("scratch_ints", "edge_copy", "e_if_ahead"),
    *fields("scratch_floats", "launched_s", "n_if_hosted"),  # when the launch of each operation ends
    *fields("scratch_floats", "host_s", "size"),
    *fields("scratch_floats", "near_s", "span"),
    *fields("scratch_floats", "far_s", "tasks"),
    Field("key", "scratch_floats", "tasks", wide=True),
    *fields("scratch_floats", "used", "size"),
    # the results of a recorded run
    *fields("scratch_ints", "cause ready_by rounds", "recorded_tasks"),
    *fields("scratch_ints", "released_by", "recorded_ends"),
    *fields("scratch_ints", "last copies", "recorded_one"),
    *fields("scratch_floats", "times", "recorded_times"),
]
"""The numbers and arrays of `kernel.simulate`, in the order of the header of its integers."""
