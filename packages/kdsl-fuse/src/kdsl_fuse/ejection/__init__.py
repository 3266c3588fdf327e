"""The way down: the kernels of a plan as files to edit, and back into the plan."""
