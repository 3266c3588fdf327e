"""The kernels that patterns lower to, written in the core language."""
