"""torch as a front door: the `torch.compile` backend, and kdsl's kernels as torch operators."""
